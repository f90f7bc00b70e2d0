package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// TestGroupVersion1NeverFalls wants the exact total, and neither part of it to fall.
func TestGroupVersion1NeverFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := &group{}
		var kernel [3]uint64
		var lastUser, lastSystem float64
		for range 20 {
			user, system := rapid.Uint64Range(0, 1e12).Draw(t, "user"), rapid.Uint64Range(0, 1e12).Draw(t, "system")
			kernel[1] += user
			kernel[2] += system
			kernel[0] += rapid.Uint64Range(0, 2e12).Draw(t, "usage")
			g.split(kernel[0], kernel[1], kernel[2])
			nowUser, nowSystem := float64(g.user)/1e9, float64(g.total-g.user)/1e9
			if nowUser < lastUser || nowSystem < lastSystem || g.total != kernel[0] {
				t.Fatalf("user %v to %v, system %v to %v, total %d of %d", lastUser, nowUser, lastSystem, nowSystem, g.total, kernel[0])
			}
			lastUser, lastSystem = nowUser, nowSystem
		}
	})
}

// TestGroupVersion1 wants the exact total divided as the kernel sampled it, and no part to fall.
func TestGroupVersion1(t *testing.T) {
	g := &group{dir: t.TempDir()}
	for _, c := range []struct{ usage, user, system, wantUser, wantSystem string }{
		{"0", "0", "0", "0.000", "0.000"},
		{"1000000000", "600000000", "200000000", "0.750", "0.250"},
		{"1100000000", "600000000", "600000000", "0.750", "0.350"}, // 0.55 by the samples
		{"3000000000", "2400000000", "600000000", "2.400", "0.600"},
	} {
		for name, text := range map[string]string{"cpuacct.usage": c.usage, "cpuacct.usage_user": c.user, "cpuacct.usage_sys": c.system} {
			if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		user, system, err := g.read()
		if err != nil || fmt.Sprintf("%.3f %.3f", user, system) != c.wantUser+" "+c.wantSystem {
			t.Errorf("%s: user %v, system %v: %v", c.usage, user, system, err)
		}
	}
	if _, _, err := (&group{dir: filepath.Join(g.dir, "none")}).read(); err == nil {
		t.Error("a group that is not there was read")
	}
}
