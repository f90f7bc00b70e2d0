package cores

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeepAwake(t *testing.T) {
	file := filepath.Join(t.TempDir(), "latency")
	if _, err := keepAwake(file); err == nil || !strings.Contains(err.Error(), "this host has no "+file) {
		t.Errorf("without the file: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	release, err := keepAwake(file)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "\x00\x00\x00\x00" {
		t.Errorf("wrote %q, %v; want four zero bytes", text, err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
	if err := release(); err == nil {
		t.Error("a second release closed the file again")
	}
}
