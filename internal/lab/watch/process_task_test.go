package watch

import "testing"

func TestParseTask(t *testing.T) {
	ran, waited, slices, err := parseSchedstat([]byte("1079382 1251091344 1686\n"))
	if ran != 1079382 || waited != 1251091344 || slices != 1686 || err != nil {
		t.Errorf("schedstat: %d, %d, %d, %v", ran, waited, slices, err)
	}
	for _, invalid := range []string{"", "1", "1 2", "1 -2 3", "-1 2 3", "1 2 99999999999999999999", "a b c"} {
		if ran, waited, slices, err := parseSchedstat([]byte(invalid)); err == nil {
			t.Errorf("schedstat %q is read as %d, %d, %d", invalid, ran, waited, slices)
		}
	}
	const status = "Name:\tx\nThreads:\t5\nMems_allowed_list:\t0\n"
	for text, want := range map[string][2]uint64{
		status + "voluntary_ctxt_switches:\t1139\nnonvoluntary_ctxt_switches:\t560\n": {1139, 560},
		status + "voluntary_ctxt_switches:\t1139\nnonvol":                             {},
		status: {},
		"":     {},
	} {
		if voluntary, involuntary := parseSwitches([]byte(text)); voluntary != want[0] || involuntary != want[1] {
			t.Errorf("status %q is read as %d and %d, want %d", text, voluntary, involuntary, want)
		}
	}
}

func FuzzParseTask(f *testing.F) {
	f.Add([]byte("1079382 1251091344 1686\n"))
	f.Add([]byte("Threads:\t5\nvoluntary_ctxt_switches:\t1139\nnonvoluntary_ctxt_switches:\t560\n"))
	f.Fuzz(func(_ *testing.T, content []byte) {
		_, _, _, _ = parseSchedstat(content)
		_, _ = parseSwitches(content)
	})
}
