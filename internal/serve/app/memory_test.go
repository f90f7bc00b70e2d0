package app

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"spillway/internal/serve/config"
)

// The lowest limit of the control groups of this process counts, of both versions.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"none":        {nil, 1 << 62},
		"version 2":   {map[string]string{"proc/PID/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "4096\n"}, 4096},
		"a container": {map[string]string{"proc/PID/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "8192\n"}, 8192},
		"another one": {map[string]string{"proc/PID/cgroup": "0::/../c\n", "sys/fs/cgroup/memory.max": "8192\n"}, 8192},
		"version 1": {map[string]string{
			"proc/PID/cgroup": "5:cpu:/x\n4:memory:/docker/1\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          "9223372036854771712\n",
			"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "2048\n",
		}, 2048},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			file = filepath.Join(root, strings.ReplaceAll(file, "PID", strconv.Itoa(os.Getpid())))
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := memoryLimit(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	all := windowsShare(nil)
	if all <= 0 || all > windowsBytesMost {
		t.Errorf("windows_bytes is %d by default", all)
	}
	many := config.Feed{Params: config.Params{{Name: "city"}}}
	set := many
	set.WindowsMem = 7
	if got := windowsShare([]config.Feed{many, {}, set, many, many}); got != all/3 {
		t.Errorf("three feeds share %d as %d each", all, got)
	}
}
