package plan

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spillway/internal/exit"
	"spillway/internal/lab/experiment"
	"spillway/internal/lab/result"
)

func writeRun(t *testing.T, path string, run *result.Run) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := result.WriteFile(path, run); err != nil {
		t.Fatal(err)
	}
}

func writeJSONFile(t *testing.T, path string, v any) {
	t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestExperiment: the files of a trial are one search, and the shares of its hosts are those of the services.
func TestExperiment(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a [b]")
	m := model{app: 1e-3, cores: 0.5, share: true, limit: 50 * time.Millisecond}
	for block, part := range []float64{0.9, 1.1, 1} {
		trial := filepath.Join(dir, experiment.BlocksDir, []string{"001", "002", "003"}[block], "base")
		for i, hz := range []float64{300 * part, 400 * part, 499} {
			run := m.run(t, hz)
			run.Header.Hosts = []result.HostShare{{Name: "web", CPUs: 0.5}, {Name: "other", CPUs: 1}, {Name: "load", CPUs: 1}}
			writeRun(t, filepath.Join(trial, "run-"+string(rune('a'+i))+experiment.ResultSuffix), run)
		}
		writeJSONFile(t, filepath.Join(trial, experiment.TrialFile), experiment.Trial{Services: []experiment.ServiceRun{{Name: "go", Watched: "app", Host: "web"}, {Name: "unwatched", Host: "other"}}})
	}
	writeJSONFile(t, filepath.Join(dir, experiment.ManifestFile), experiment.Manifest{
		Format: experiment.Format, Version: experiment.Version, Variants: []experiment.VariantFacts{{Name: "base"}, {Name: "more"}},
		Hosts: []experiment.HostFacts{{Name: "web", CPUs: 0.5}, {Name: "other", CPUs: 1}, {Name: "load", CPUs: 1}},
	})
	f := func(code int, want string, o Options) {
		t.Helper()
		o.Headroom = "30%"
		var out bytes.Buffer
		err := Execute(o, false, &out)
		if text := out.String(); exit.Code(err) != code || (code == exit.OK) != strings.Contains(text, want) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("exit %d, want %d and %q\n%v\n%s", exit.Code(err), code, want, err, text)
		}
	}
	f(exit.OK, "2 hosts: up to 720/s (660/s to 998/s); 554/s with 30 % headroom. Limit: CPU of app.", Options{From: []string{dir}, Variant: "base", Hosts: 2})
	f(exit.OK, "/ 72 % busy = 1 core; 2 hosts of 0.5 cores", Options{From: []string{dir}, Variant: "base", Hosts: 2})
	f(exit.Usage, "has the variants base, more: choose one with --variant", Options{From: []string{dir}, Hosts: 2})
	f(exit.NothingValid, "no result file of the variant more", Options{From: []string{dir}, Variant: "more", Hosts: 2})
	f(exit.Usage, "is not the directory of a run", Options{From: []string{filepath.Join(dir, experiment.BlocksDir)}, Hosts: 2})
}

func TestParseHeadroom(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"30%": 0.3, "0.3": 0.3, "0": 0, " 200 % ": 2, "1": 1} {
		if got, err := parseHeadroom(text); err != nil || got != want {
			t.Errorf("%q is %g, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "30", "much", "%"} {
		if got, err := parseHeadroom(text); err == nil {
			t.Errorf("%q is %g", text, got)
		}
	}
}
