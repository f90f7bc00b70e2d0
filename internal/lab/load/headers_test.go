package load

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway/internal/lab/target"
)

func TestHeaders(t *testing.T) {
	env := func(name string) (string, bool) {
		value, set := map[string]string{"TOKEN": "{sequence} s3cret", "LINES": "s3cret\nx", "EMPTY": ""}[name]
		return value, set
	}
	f := func(flags []string, file, wantErr string, want ...target.Header) {
		t.Helper()
		o := HTTP{Header: flags}
		if file != "" {
			o.HeaderFile = filepath.Join(t.TempDir(), "headers")
			if err := os.WriteFile(o.HeaderFile, []byte(file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := o.headers(env)
		if wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), wantErr) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%q %q: %v, want %q", flags, file, err, wantErr)
			}
			return
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q %q: %v\n%s", flags, file, err, diff)
		}
	}
	f(nil, "", "")
	f([]string{"A: {sequence}", "Authorization: Bearer ${TOKEN}"}, "", "", target.Header{Name: "A", Value: "{sequence}"}, target.Header{Name: "Authorization", Value: "Bearer {{sequence} s3cret"})
	f([]string{"A: x${EMPTY}y$${TOKEN}"}, "# comment\n\nB: b:c\r\n  Cookie: id=${EMPTY}\n", "",
		target.Header{Name: "A", Value: "xy${TOKEN}"}, target.Header{Name: "B", Value: "b:c"}, target.Header{Name: "Cookie", Value: "id="})
	f([]string{"A: ${NONE}"}, "", "header A: the environment variable NONE is not set")
	f([]string{"A: ${LINES}"}, "", "header A: a variable contains a line end")
	f([]string{"A: ${a b}"}, "", "header A: ${ begins the name")
	f(nil, "A: 1\ns3cret\n", "line 2: write 'Name: value'")
	f(nil, "s3cret token: 1\n", "line 1: write 'Name: value'")
	f(nil, "Connection: close\n", "line 1: header Connection")
	o := HTTP{HeaderFile: "/no/such"}
	if _, err := o.headers(env); err == nil || !strings.Contains(err.Error(), "--header-file: open /no/such") {
		t.Error(err)
	}
}
