package netstat

import "testing"

func TestPortRange(t *testing.T) {
	for _, c := range []struct {
		span, reserved string
		count          int
	}{
		{"32768\t60999\n", "", 28232},
		{"32768\t60999\n", "\n", 28232},
		{"32768\t60999\n", "8080,32768,40000-40009,60999-65535\n", 28232 - 12},
	} {
		if r, err := ParsePortRange(c.span, c.reserved); err != nil || r.Count() != c.count {
			t.Errorf("%q less %q: %+v, %v, want %d ports", c.span, c.reserved, r, err, c.count)
		}
	}
	for _, invalid := range []string{"", "5", "9 8", "0 7", "1 65536", "-1 5", "a b"} {
		if r, err := ParsePortRange(invalid, ""); err == nil || r != (PortRange{}) {
			t.Errorf("%q is read as %+v", invalid, r)
		}
	}
	for _, invalid := range []string{"a", "5-", "9-8", "70000"} {
		if r, err := ParsePortRange("32768 60999", invalid); err == nil || r.First != 32768 {
			t.Errorf("%q is read as %+v, %v", invalid, r, err)
		}
	}
}

// TestPortRangeFiles reads the settings of this host twice: each reading is from the start.
func TestPortRangeFiles(t *testing.T) {
	files, err := OpenPortRange()
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	for range 2 {
		if r, err := files.Read(); err != nil || r.Count() < 1 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

func FuzzParsePortRange(f *testing.F) {
	f.Add("32768\t60999\n", "8080,32768,40000-40009")
	f.Add("1 65535", "1-65535")
	f.Fuzz(func(t *testing.T, span, reserved string) {
		r, err := ParsePortRange(span, reserved)
		if err == nil && (r.First < 1 || r.Last > 65535 || r.First > r.Last || r.Count() < 0) {
			t.Errorf("%q less %q is read as %+v", span, reserved, r)
		}
	})
}
