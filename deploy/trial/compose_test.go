package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/goccy/go-yaml"

	"spillway/internal/apptest"
)

var binary apptest.Binary

func TestMain(m *testing.M) { os.Exit(apptest.Closing(m, &binary).Run()) }

// insideVariable is set in the copy of the test that runs in namespaces of its own.
const insideVariable = "SPILLWAY_TEST_INSIDE"

// loadCompose decodes deploy/compose.yaml by the specification of compose files, which has no other keys.
func loadCompose(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../compose.yaml"}, cli.WithDiscardEnvFile)
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// The services of the compose file run as processes that find each other by name, in a network of their own: containers need images
// from a registry. Spillway is ready by its image's health check, no alert fires, each expression of the dashboard has data, and the
// grace period of a stop is long enough.
func TestCompose(t *testing.T) {
	apptest.NeedRoot(t)
	if os.Getenv(insideVariable) == "" {
		runInside(t)
		return
	}
	project := loadCompose(t)
	mountFiles(t, project)
	pg := apptest.Postgres(t)
	redis := apptest.Redis(t, project.Services["redis"].Command[1:]...)
	for _, names := range [][2]string{{"postgres:5432", pg.Addr()}, {"redis:6379", redis.Addr()}} {
		if err := Forward(t.Context(), names[0], names[1]); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) *Process {
		service := project.Services[name]
		var environment []string
		for key, value := range service.Environment {
			environment = append(environment, key+"="+*value)
		}
		p, err := Start(t.TempDir(), environment, args[0], args[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _ = p.End(context.Background()); t.Failed() {
				t.Log(name, p.Log())
			}
		})
		return p
	}
	if _, stderr, code := binary.Run(t, project.Services["seed"].Command...); code != 0 {
		t.Fatalf("seed: %s", stderr)
	}
	spillway := run("spillway", binary.Path(t), "serve", "/etc/spillway/spillway.yaml")
	run("prometheus", append([]string{"prometheus"}, project.Services["prometheus"].Command...)...)
	environment := "POSTGRES_PASSWORD=" + *project.Services["spillway"].Environment["POSTGRES_PASSWORD"]
	apptest.AwaitState(t, "the image's health check succeeds", func() (string, bool) {
		cmd := exec.CommandContext(t.Context(), binary.Path(t), "ready", "/etc/spillway/spillway.yaml")
		cmd.Env = append(os.Environ(), environment)
		out, err := cmd.CombinedOutput()
		return string(out) + spillway.Log(), err == nil
	})
	apptest.AwaitState(t, "every part serves", func() (string, bool) {
		a := apptest.Fetch(t, "http://spillway:9090/readyz")
		return string(a.Body), a.Status == http.StatusOK && !strings.Contains(string(a.Body), `"serves":false`)
	})
	tryDashboard(t, Prometheus{"http://prometheus:9091"})

	printed, err := exec.CommandContext(t.Context(), "env", environment, binary.Path(t), "config", "print", "/etc/spillway/spillway.yaml").Output()
	if err != nil {
		t.Fatal(err)
	}
	grace := time.Duration(*project.Services["spillway"].StopGracePeriod)
	if needed := stopTime(t, printed); grace < needed {
		t.Errorf("stop_grace_period is %v, and a stop may take %v", grace, needed)
	}
	ctx, stop := context.WithTimeout(t.Context(), grace)
	defer stop()
	if err := spillway.End(ctx); err != nil {
		t.Errorf("spillway ends with %v", err)
	}
}

// tryDashboard sends requests of all kinds until each expression of the dashboard has data. No alert may fire.
func tryDashboard(t *testing.T, p Prometheus) {
	t.Helper()
	text, err := os.ReadFile("../grafana/spillway.json")
	if err != nil {
		t.Fatal(err)
	}
	missing, err := Expressions(text)
	if err != nil {
		t.Fatal(err)
	}
	apptest.AwaitState(t, "each expression of the dashboard has data", func() (string, bool) {
		visit(t)
		missing = slices.DeleteFunc(missing, func(expression string) bool {
			n, err := p.Query(t.Context(), expression)
			return err == nil && n > 0
		})
		return strings.Join(missing, "\n"), len(missing) == 0
	})
	if firing, err := p.Alerts(t.Context()); err != nil || len(firing) > 0 {
		t.Errorf("these alerts fire without a reason: %v, %v", firing, err)
	}
}

// visit sends one request to each endpoint.
func visit(t *testing.T) {
	t.Helper()
	const base = "http://spillway:8080"
	for _, path := range []string{"/goodslist", "/positions", "/by_user?user=7"} {
		if a := apptest.Fetch(t, base+path); a.Status != http.StatusOK {
			t.Fatalf("%s answers %d %s", path, a.Status, a.Body)
		}
	}
	key, err := os.ReadFile("/run/secrets/stream-key")
	if err != nil {
		t.Fatal(err)
	}
	for path, record := range map[string]string{
		"/orders":    `{"users_id":7,"goods_name":"steel"}`,
		"/positions": `{"device_id":1,"latitude":31.2,"longitude":121.5,"speed":60}`,
	} {
		if a := apptest.Post(t, base+path, record, "Content-Type", "application/json", "Authorization", "Bearer "+string(key)); a.Status >= http.StatusMultipleChoices {
			t.Fatalf("%s answers %d %s", path, a.Status, a.Body)
		}
	}
}

// stopTime returns how long a stop may take by a printed configuration: the delay, the drain of requests, and that of records.
func stopTime(t *testing.T, printed []byte) time.Duration {
	t.Helper()
	var c struct {
		HTTP struct {
			StopDelay    string `yaml:"stop_delay"`
			DrainTimeout string `yaml:"drain_timeout"`
		}
	}
	if err := yaml.Unmarshal(printed, &c); err != nil {
		t.Fatal(err)
	}
	delay, err := time.ParseDuration(c.HTTP.StopDelay)
	if err != nil {
		t.Fatal(err)
	}
	drain, err := time.ParseDuration(c.HTTP.DrainTimeout)
	if err != nil {
		t.Fatal(err)
	}
	return delay + 2*drain
}

// runInside runs this test again in namespaces of its own, where each service has a name and an address.
func runInside(t *testing.T) {
	t.Helper()
	hosts := "127.0.0.1 localhost\n"
	names := loadCompose(t).ServiceNames()
	slices.Sort(names)
	for i, name := range names {
		hosts += fmt.Sprintf("127.0.1.%d %s\n", i+1, name)
	}
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
	const script = `ip link set lo up && mount --bind "$1" /etc/hosts && shift && exec "$@"`
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "-n", "--propagation", "private", "sh", "-c", script, "sh", file, os.Args[0],
		"-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideVariable+"=1", apptest.BinaryVariable+"="+binary.Path(t))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// mountFiles puts the configs and secrets of all services, and their volumes, where the containers have them. It runs in a mount
// namespace of its own; the directories that it had to create are removed.
func mountFiles(t *testing.T, project *types.Project) {
	t.Helper()
	files := map[string]string{}
	for _, service := range project.Services {
		for _, c := range service.Configs {
			files[c.Target] = project.Configs[c.Source].File
		}
		for _, s := range service.Secrets {
			files["/run/secrets/"+s.Source] = project.Secrets[s.Source].File
		}
	}
	dirs := []string{"/data", "/prometheus", "/run/secrets"}
	for target := range files {
		if strings.HasPrefix(target, "/etc/spillway") || strings.HasPrefix(target, "/etc/prometheus") {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if err := os.Mkdir(dir, 0o755); err == nil {
			t.Cleanup(func() { _ = exec.Command("umount", dir).Run(); _ = os.Remove(dir) })
		}
		if out, err := exec.Command("mount", "-t", "tmpfs", "tmpfs", dir).CombinedOutput(); err != nil {
			t.Fatalf("mount %s: %v: %s", dir, err, out)
		}
	}
	for target, source := range files {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(target, ".json") {
			var any any
			if err := json.Unmarshal(text, &any); err != nil {
				t.Errorf("%s: %v", source, err)
			}
		}
		if !slices.Contains(dirs, filepath.Dir(target)) {
			continue // Grafana's: Debian has none
		}
		if err := os.WriteFile(target, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
