package watch

import "testing"

func TestParseTask(t *testing.T) {
	ran, waited, err := parseSchedstat([]byte("1079382 1251091344 1686\n"))
	if ran != 1079382 || waited != 1251091344 || err != nil {
		t.Errorf("schedstat: %d, %d, %v", ran, waited, err)
	}
	for _, invalid := range []string{"", "1", "1 2", "1 -2 3", "-1 2 3", "1 99999999999999999999 2", "a b c"} {
		if ran, waited, err := parseSchedstat([]byte(invalid)); err == nil {
			t.Errorf("schedstat %q is read as %d, %d", invalid, ran, waited)
		}
	}
}

func FuzzParseTask(f *testing.F) {
	f.Add([]byte("1079382 1251091344 1686\n"))
	f.Fuzz(func(_ *testing.T, content []byte) {
		_, _, _ = parseSchedstat(content)
	})
}
