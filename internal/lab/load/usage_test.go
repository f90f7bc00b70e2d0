package load

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/procfs"
)

// fakeProc has files of /proc by name. A directory self is process 7.
func fakeProc(t *testing.T, files map[string]string) procfs.FS {
	t.Helper()
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "7"), 0o700), os.Symlink("7", filepath.Join(root, "self"))); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	proc, err := procfs.NewFS(root)
	if err != nil {
		t.Fatal(err)
	}
	return proc
}

func TestStealShare(t *testing.T) {
	read := func(line string) hostCPU {
		c, err := readHostCPU(fakeProc(t, map[string]string{"stat": line + "\nctxt 1\n"}))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// user nice system idle iowait irq softirq steal guest guest_nice
	before := read("cpu  1000 0 500 4000 10 0 20 100 0 0")
	for line, want := range map[string]float64{
		"cpu  1050 0 520 4010 10 0 20 120 50 0": 0.2,
		"cpu  1100 0 500 4000 10 0 20 100 0 0":  0,
		"cpu  1000 0 500 4000 10 0 20 100 0 0":  0, // no time passed
		"cpu  1100 0 500 4000 10 0 20 90 0 0":   0, // went backwards, as on some hypervisors
		"cpu  1000 0 500 4000 10 0 20 200 0 0":  1,
	} {
		if got := read(line).stealShare(before); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %g, want %g", line, got, want)
		}
	}
	if _, err := readHostCPU(fakeProc(t, nil)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without stat: %v", err)
	}
}

func TestCheckSchedstat(t *testing.T) {
	for name, c := range map[string]struct {
		files    map[string]string
		readable bool
	}{
		"counted":     {map[string]string{"7/schedstat": "1079382 1251091 1686\n"}, true},
		"never waits": {map[string]string{"7/schedstat": "1079382 0 16\n"}, true},
		"not counted": {map[string]string{"7/schedstat": "0 0 0\n"}, false},
		"absent":      {nil, false},
		"unreadable":  {map[string]string{"7/schedstat": "x\n"}, false},
	} {
		if err := checkSchedstat(fakeProc(t, c.files)); (err == nil) != c.readable {
			t.Errorf("%s: %v", name, err)
		}
	}
}
