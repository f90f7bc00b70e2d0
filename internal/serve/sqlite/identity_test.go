package sqlite

import (
	"os"
	"path/filepath"
	"testing"
)

// Each file has an identity of its own, whatever its path.
func TestIdentity(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := map[string]string{}
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	identity := func(name string) string {
		id, err := (&DB{file: filepath.Join(dir, name)}).Identity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	seen["a"], seen["b"] = identity("a"), identity("b")
	if err := os.Rename(filepath.Join(dir, "b"), filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if now := identity("a"); now != seen["b"] || seen["a"] == seen["b"] {
		t.Errorf("%v, and in the place of a: %s", seen, now)
	}
	if id, err := (&DB{file: filepath.Join(dir, "none")}).Identity(t.Context()); err == nil {
		t.Errorf("a missing file has the identity %q", id)
	}
}
