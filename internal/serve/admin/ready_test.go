package admin

import "testing"

func TestJudgeNamed(t *testing.T) {
	t.Parallel()
	parts := []Part{
		{Name: "server", Serves: true},
		{Name: "/a", Group: Reads, Serves: true},
		{Name: "/b", Group: Reads, Reason: "away", Paths: []string{"/b", "/b/again"}},
		{Name: "POST /a", Group: Writes, Reason: "full"},
		{Name: "POST /c", Group: Writes, Serves: true, Reason: "crowded"},
	}
	for _, c := range []struct {
		group   Group
		paths   []string
		ready   bool
		reasons int
		unknown string
	}{
		{Reads, []string{"/a"}, true, 0, ""},
		{Reads, []string{"/a", "/b"}, false, 1, ""},
		{Reads, []string{"/a", "/b/again"}, false, 1, ""},
		{"", []string{"/a"}, false, 1, ""}, // its POST does not serve
		{Writes, []string{"/c"}, true, 1, ""},
		{Writes, []string{"/c", "/b"}, true, 1, "/b"},
		{"", []string{"server"}, true, 0, ""},
	} {
		answer, unknown := judgeNamed(parts, c.group, c.paths)
		if answer.Ready != c.ready || len(answer.Reasons) != c.reasons || unknown != c.unknown {
			t.Errorf("%s %v: %+v, unknown %q", c.group, c.paths, answer, unknown)
		}
	}
	parts[0].Serves = false
	if answer, _ := judgeNamed(parts, Reads, []string{"/a"}); answer.Ready {
		t.Error("ready although the process stops")
	}
}
