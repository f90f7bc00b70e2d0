package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// insideVariable has the files of the copy of the test that runs in namespaces of its own.
const insideVariable = "SPILLWAY_TEST_INSIDE"

var (
	pageBlock   = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```")
	pageCommand = regexp.MustCompile("`spillway ((?:[a-z]+ ?)+)([^`]*)`")
)

// Every block of docs/how-to/production.md does what the page says, as it stands there: on the hosts app-1 and app-2, with PostgreSQL on
// db-1, and from a further host. Each is a clean Debian with a network of its own. What takes the place of systemd and ssh is in
// standIns.
func TestProductionPage(t *testing.T) {
	apptest.NeedRoot(t)
	files := strings.Fields(os.Getenv(insideVariable))
	if len(files) == 0 {
		old, next := packages(t)
		runIsolated(t, old, next, fetchDebian(t, "hosts", "apt", "sudo,openssl,curl,ca-certificates,tzdata,postgresql-client,passwd"))
		return
	}
	text, err := os.ReadFile(repository + "/docs/how-to/production.md")
	if err != nil {
		t.Fatal(err)
	}
	run(t, ".", "ip", "address", "add", hereAddress+"/32", "dev", "lo")
	s := &shop{t: t}
	s.hosts = newHosts(t, files, s.startDatabase())
	steps := s.steps()
	for _, block := range pageBlock.FindAllStringSubmatch(string(text), -1) {
		i := slices.IndexFunc(steps, func(step pageStep) bool { return strings.Contains(block[2], step.has) })
		if i < 0 {
			t.Errorf("the test does not know on which host this is run:\n%s", block[2])
			continue
		}
		steps[i].do(block[2])
		steps = slices.Delete(steps, i, i+1)
	}
	for _, step := range steps {
		t.Errorf("the page has no block with %q", step.has)
	}
	for _, command := range pageCommand.FindAllStringSubmatch(string(text), -1) { // in a sentence
		help := s.hosts["here"].run("spillway " + command[1] + " --help")
		for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(command[2], -1) {
			s.want(help, flag)
		}
	}
}

// pageStep runs the block of the page that has a text.
type pageStep struct {
	has string
	do  func(block string)
}

// shop is what the page sets up.
type shop struct {
	t     *testing.T
	hosts map[string]*host
}

// steps are those of the page, in its order.
func (s *shop) steps() []pageStep {
	on := func(name string, wants ...string) func(string) {
		return func(block string) { s.want(s.hosts[name].run(block), wants...) }
	}
	return []pageStep{
		{"apt install ./spillway_0", func(block string) {
			for _, h := range s.hosts {
				s.want(h.run(block), "complete /etc/spillway/spillway.yaml", "spillway 0.1.0")
			}
		}},
		{"rand -hex 24", on("app-1")},
		{"database: {url:", func(block string) { s.hosts["app-1"].write("/etc/spillway/spillway.yaml", block, 0o640) }},
		{"spillway grants", on("app-1", "GRANT", "ALTER ROLE")},
		{"systemctl enable --now", on("app-1", `"ready"`, `"title":"steel"`)},
		{"ssh app-2", func(block string) {
			s.hosts["app-1"].run(block)
			s.want(s.hosts["app-2"].run("stat -c '%n %U:%G %a' /etc/spillway/* /etc/default/spillway"),
				"database-password root:spillway 640", "spillway.yaml root:spillway 640", "default/spillway root:root 600")
		}},
		{"backend spillway", s.startBalancer},
		{"for host in app-1 app-2", func(block string) {
			s.hosts["here"].run(block)
			s.wantServed()
		}},
		{"spool export", func(block string) {
			s.refuse()
			s.want(s.hosts["app-1"].run(block), `"device_id":-7`)
		}},
		{"tar -czf", on("app-1")},
		{"tar -C / -xzf", func(block string) {
			s.hosts["app-1"].run("rm -r /etc/spillway /var/lib/spillway/*")
			s.hosts["app-1"].run(block)
			s.want(s.hosts["app-1"].run("spillway spool status --data /var/lib/spillway || true"), "/positions")
			s.wantServed()
		}},
		{"apt install ./spillway_NEW", func(block string) {
			s.hosts["app-2"].run(block)
			s.want(s.hosts["app-2"].run("dpkg -s spillway; systemctl restart spillway"), "Version: 99.0.0")
			s.wantServed()
		}},
		{"spillway watch", func(block string) {
			s.hosts["app-1"].run("{\n" + block + "} >/var/log/watch 2>&1 &\n")
			apptest.Await(s.t, "watch listens", func() bool {
				c, err := net.Dial("tcp", "10.0.0.5:9191")
				return err == nil && c.Close() == nil
			})
		}},
		{"spillway peak", s.measure},
		{"journalctl", on("app-1", `"name":"POST /positions","group":"writes","serves":true`, "msg=serving")},
	}
}

// want checks that a block printed all of these.
func (s *shop) want(out string, wants ...string) {
	s.t.Helper()
	for _, want := range wants {
		if !strings.Contains(out, want) {
			s.t.Errorf("want %s in\n%s", want, out)
		}
	}
}

// wantServed waits until the balancer answers from both replicas.
func (s *shop) wantServed() {
	s.t.Helper()
	apptest.AwaitState(s.t, "the balancer answers from both replicas", func() (string, bool) {
		seen := map[string]bool{}
		for range 10 {
			a, err := apptest.TryFetch(s.t.Context(), http.DefaultClient, "http://"+hereAddress+"/orders")
			if err != nil || a.Status != http.StatusOK {
				return fmt.Sprint(a.Status, string(a.Body), err), false
			}
			seen[a.Header.Get("Served-By")] = true
		}
		return fmt.Sprint(seen), len(seen) == 2
	})
}

// startBalancer starts HAProxy with the backend of the page.
func (s *shop) startBalancer(backend string) {
	s.startProxy("frontend public\n  bind " + hereAddress + ":80\n  default_backend spillway\n" + backend + "  http-response set-header Served-By %s\n")
	s.wantServed()
}

// refuse sends a record that the table refuses, after it was acknowledged.
func (s *shop) refuse() {
	s.t.Helper()
	key := strings.TrimSpace(s.hosts["app-1"].run(". /etc/default/spillway; echo $WRITE_KEY"))
	a := apptest.Post(s.t, "http://10.0.0.5:8080/positions", `{"device_id":-7}`, "Authorization", "Bearer "+key)
	if a.Status >= http.StatusMultipleChoices {
		s.t.Fatalf("a record is answered with %d %s", a.Status, a.Body)
	}
	apptest.AwaitState(s.t, "the record is a dead letter", func() (string, bool) {
		out := s.hosts["app-1"].run("spillway spool status --data /var/lib/spillway --json || true")
		return out, strings.Contains(out, `"dead_letters": 1`)
	})
}

// measure bounds the search of the page, which may take ten minutes. That a rate was missed (1) or that nothing valid was measured (4), as
// on a busy machine, is a result as well.
func (s *shop) measure(block string) {
	block = strings.Replace(block, "spillway peak ", "spillway peak --max-time 40s --start 50 --max 100 ", 1)
	block = strings.Replace(block, "peak.ndjson\n", "peak.ndjson || code=$?\ncase ${code:-0} in 0) ;; 1 | 4) set +e; trap 'exit 0' EXIT ;; *) exit $code ;; esac\n", 1)
	s.hosts["here"].run("(" + block + ")\n")
}

// startDatabase starts PostgreSQL with TLS, where the administrator needs no password. It returns the certificate.
func (s *shop) startDatabase() string {
	pg := apptest.Postgres(s.t)
	data := filepath.Join(pg.Dir(), "data")
	certificate, key := apptest.Certificate(s.t, "db-1")
	for name, text := range map[string]string{
		"server.crt": string(certificate), "server.key": string(key),
		"pg_hba.conf": "host all postgres all trust\nhostssl all all all scram-sha-256\n",
	} {
		file := filepath.Join(data, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
		run(s.t, data, "chown", "--reference=PG_VERSION", name)
	}
	admin, err := pgx.Connect(s.t.Context(), pg.URL("postgres"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer admin.Close(context.Background())
	for _, sql := range []string{"ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()", "CREATE DATABASE shop"} {
		apptest.Execute(s.t, admin, sql)
	}
	conn, err := pgx.Connect(s.t.Context(), pg.URL("shop"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(s.t, conn, `CREATE TABLE orders (id bigint PRIMARY KEY, created_at timestamptz NOT NULL DEFAULT now(), title text);
		INSERT INTO orders VALUES (1, now(), 'steel');
		CREATE TABLE positions (device_id integer NOT NULL CHECK (device_id > 0), latitude double precision, longitude double precision)`)
	s.startProxy("listen database\n  mode tcp\n  bind " + hereAddress + ":5432\n  server db-1 " + pg.Addr() + "\n")
	return string(certificate)
}

// startProxy starts an HAProxy with more sections.
func (s *shop) startProxy(sections string) {
	file := filepath.Join(s.t.TempDir(), "haproxy.cfg")
	text := "global\n  maxconn 1000\ndefaults\n  mode http\n  timeout connect 2s\n  timeout client 60s\n  timeout server 60s\n" + sections
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), "haproxy", "-db", "-f", file)
	var log apptest.Output
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if _ = cmd.Wait(); s.t.Failed() {
			s.t.Log(log.String())
		}
	})
}
