package labtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/exit"
	"spillway/internal/lab/diagnose"
)

// fullOfFiles starts a process that has as many open files as it may have, and returns its pid.
func fullOfFiles(t *testing.T) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "exec 3</dev/null 4</dev/null 5</dev/null 6</dev/null 7</dev/null 8</dev/null 9</dev/null; "+
		"ulimit -n 10; echo ready; read line")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = in.Close(), cmd.Wait() })
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(errors.Join(err, cmd.Wait(), errors.New(errs.String())))
	}
	return cmd.Process.Pid
}

// TestDiagnose loads a server and watches a process without free descriptors. The verdict does not depend on how busy this host is.
func TestDiagnose(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	app, dir := "app="+strconv.Itoa(fullOfFiles(t)), t.TempDir()
	var file, stdout string
	var d diagnose.Document
	for seconds := 2; ; seconds *= 2 { // on a busy machine a short step may have no sample
		file = filepath.Join(dir, fmt.Sprint(seconds))
		watchedDocument(t, server.URL, "--rate", "20,50", "-d", fmt.Sprint(seconds, "s"), "-o", file, "--watch", app)
		var stderr string
		var code int
		if stdout, stderr, code = spillway(t, "diagnose", file, "--json", "--passing", "20/s", "--failing", "1"); code != exit.OK {
			t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
		}
		if err := json.Unmarshal([]byte(stdout), &d); err != nil {
			t.Fatalf("%v in\n%s", err, stdout)
		}
		if seconds > 30 || len(d.Verdicts) > 0 && d.Verdicts[0].Name != diagnose.Unknown {
			break
		}
	}
	if d.Format != "spillway-diagnose" || d.Passing != "20/s" || d.Failing != "50/s" || len(d.Verdicts) == 0 {
		t.Fatalf("document\n%s", stdout)
	}
	v := d.Verdicts[0]
	if v.Name != diagnose.Descriptors || !strings.Contains(v.Sentence, "open files of at most 10 at 50/s") {
		t.Errorf("the first verdict is %s: %s\n%s", v.Name, v.Sentence, stdout)
	}
	if f := v.Evidence[0]; f.Name != "app: open files" || f.Passing == nil || *f.Passing < 10 || f.Failing == nil || *f.Failing < 10 {
		t.Errorf("evidence %+v, want at least 10 open files in both steps\n%s", f, stdout)
	}
	if stdout, stderr, code := spillway(t, "diagnose", file); code != exit.OK || !strings.Contains(stdout, "descriptors (strong evidence)") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

func TestDiagnoseUsage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "run.ndjson")
	writeResult(t, file, "one")
	for want, args := range map[string][]string{
		"--failing 7/s: no such step; the steps are 0 (100/s)": {file, "--failing", "7/s"},
		"--passing 3: no such step":                            {file, "--passing", "3"},
	} {
		if stdout, stderr, code := spillway(t, append([]string{"diagnose"}, args...)...); code != exit.Usage || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit %d, want %d and %q\n%s%s", args, code, exit.Usage, want, stdout, stderr)
		}
	}
	if stdout, stderr, code := spillway(t, "diagnose", file); code != exit.OK || !strings.Contains(stdout, "unknown") || !strings.Contains(stdout, "--watch app=:PORT") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}
