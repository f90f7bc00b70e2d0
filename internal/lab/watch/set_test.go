package watch

import "testing"

func TestSplitDatabase(t *testing.T) {
	for text, want := range map[string][2]string{
		"db=postgres://u@h/d?sslmode=off": {"db", "postgres://u@h/d?sslmode=off"},
		"postgres://u@h/d?a=b":            {"postgres", "postgres://u@h/d?a=b"},
		"redis://h":                       {"redis", "redis://h"},
		"%":                               {"database", "%"},
	} {
		if name, address := splitDatabase(text); name != want[0] || address != want[1] {
			t.Errorf("%s: %q and %q", text, name, address)
		}
	}
}
