package trial

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"spillway/internal/apptest"
)

// Each rule has a test for promtool, in which it fires.
func TestAlertRules(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "promtool", "test", "rules", "alerts_test.yaml")
	cmd.Dir = "../prometheus"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
	rules, tests := readFile(t, "../prometheus/alerts.yaml"), readFile(t, "../prometheus/alerts_test.yaml")
	for _, name := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(rules, -1) {
		if !strings.Contains(tests, "- alertname: "+name[1]+"\n        eval_time: 10m\n        exp_alerts:\n          - exp_labels") {
			t.Errorf("%s has no test in which it fires", name[1])
		}
	}
	if alerts, lines := strings.Count(rules, "- alert:"), strings.Count(rules, " runbook: "); alerts != lines {
		t.Errorf("%d alerts have %d runbook lines", alerts, lines)
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// stage is a server with all that alerts watch, its database, Redis and a Prometheus with rules. Another server has TLS and reads from
// a replica.
type stage struct {
	t          *testing.T
	database   *apptest.PostgresServer
	replica    string // URL
	conn       *pgx.Conn
	redis      *apptest.Server
	server     *apptest.Spillway
	config     string // file
	prometheus Prometheus
	certFiles  [2]string
	fired      []string // rows of a table: alert, fault, seconds
}

const stageConfig = `
redis: %s
pool: {max: 3, acquire_timeout: 30s}
spool: {bytes: 1048576}
feeds: [{path: /rows, sql: 'SELECT id, note FROM readings', key: id}]
queries:
  - {path: /one, sql: 'SELECT note FROM readings WHERE id = :id', params: {id: integer}, cache: redis, ttl: 100ms, timeout: 1m, waiters_max: 9}
streams:
  - {path: /direct, table: readings, retry_for: 1s, columns: {id: {type: integer, required: true}, note: text}}
popups: {path: /popup, user_type: integer, store: redis, keys: ['0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef']}
`

// spooled is a stream that is added to those of stageConfig.
const spooled = "streams:\n  - {path: /readings, table: readings, ack: spool, columns: {id: {type: integer, required: true}, note: text}}\n"

const otherConfig = `
http: {tls_cert: %s, tls_key: %s}
replica: %s
replica_lag_max: 2s
feeds: [{path: /notes, sql: 'SELECT id, note FROM notes', key: id}]
`

func newStage(t *testing.T, rules string) *stage {
	t.Helper()
	s := &stage{t: t, database: apptest.Postgres(t, apptest.ReplicaSettings()...), redis: apptest.RedisAt(t, 0, "--appendonly", "yes", "--appendfsync", "always")}
	url := s.database.CreateDatabase(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	s.conn = conn
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	apptest.Execute(t, conn, "CREATE TABLE readings (id integer PRIMARY KEY, note text CHECK (note <> 'bad')); INSERT INTO readings VALUES (1, 'a');"+
		"CREATE TABLE notes (id integer PRIMARY KEY, note text)")
	s.replica = s.database.Replica(t).URL(apptest.DatabaseName(url))
	dir := t.TempDir()
	s.config = filepath.Join(dir, "spillway.yaml")
	s.configure(spooled)
	s.server = apptest.Serve(t, binary.Path(t), "--database", url, s.config)
	s.server.WaitReady(t)
	s.certFiles = [2]string{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	s.writeCertificate(90 * 24 * time.Hour)
	other := apptest.ServeText(t, &binary, fmt.Sprintf(otherConfig, s.certFiles[0], s.certFiles[1], s.replica), url)
	s.prometheus = startPrometheus(t, dir, rules, s.server.Admin, other.Admin)
	return s
}

// configure writes the server's configuration, with these streams first.
func (s *stage) configure(streams string) {
	s.t.Helper()
	text := strings.Replace(fmt.Sprintf(stageConfig, s.redis.URL("")), "streams:\n", streams, 1)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// hurry makes the rules wait for seconds instead of minutes.
func hurry(rules string) string {
	rules = regexp.MustCompile(`for: \w+`).ReplaceAllString(rules, "for: 1s")
	rules = regexp.MustCompile(`\[\dm\]`).ReplaceAllString(rules, "[10s]")
	return strings.NewReplacer("age_seconds > 30", "age_seconds > 5", "> 120", "> 5").Replace(rules)
}

// startPrometheus starts a Prometheus that scrapes admin listeners each second.
func startPrometheus(t *testing.T, dir, rules string, targets ...string) Prometheus {
	t.Helper()
	for i := range targets {
		targets[i] = strings.TrimPrefix(targets[i], "http://")
	}
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [alerts.yaml]\nscrape_configs:\n" +
		"  - {job_name: spillway, static_configs: [{targets: ['" + strings.Join(targets, "', '") + "']}]}\n"
	for name, text := range map[string]string{"prometheus.yaml": config, "alerts.yaml": rules} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listen := address(t)
	p, err := Start(dir, nil, "prometheus", "--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address="+listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _ = p.End(context.Background()); t.Failed() {
			t.Log(p.Log())
		}
	})
	api := Prometheus{"http://" + listen}
	apptest.AwaitState(t, "Prometheus has scraped every target", func() (string, bool) {
		n, err := api.Query(t.Context(), "up == 1")
		return fmt.Sprint(n, err), n == len(targets)
	})
	return api
}

// writeCertificate replaces the certificate of the second server by one that expires after a time.
func (s *stage) writeCertificate(lasts time.Duration) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotBefore: time.Now(), NotAfter: time.Now().Add(lasts)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		s.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, block := range []*pem.Block{{Type: "CERTIFICATE", Bytes: certificate}, {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(s.certFiles[i], pem.EncodeToMemory(block), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// wantAlerts waits until these alerts fire, while do is called again and again, and notes after how many seconds each did.
func (s *stage) wantAlerts(fault string, do func(), names ...string) {
	s.t.Helper()
	began := time.Now()
	apptest.AwaitState(s.t, fault+" sets off "+strings.Join(names, ", "), func() (string, bool) {
		do()
		firing, err := s.prometheus.Alerts(s.t.Context())
		names = slices.DeleteFunc(names, func(name string) bool {
			if !slices.Contains(firing, name) {
				return false
			}
			s.fired = append(s.fired, fmt.Sprintf("| %s | %s | %.0f |", name, fault, time.Since(began).Seconds()))
			return true
		})
		return fmt.Sprint(firing, err), len(names) == 0
	})
}

// visit sends some requests of each kind at the same time, whatever they answer.
func (s *stage) visit(record int) {
	ctx, stop := context.WithTimeout(s.t.Context(), 2*time.Second)
	defer stop()
	done := make(chan struct{}, 10)
	for i := range cap(done) {
		go func() {
			defer func() { done <- struct{}{} }()
			paths := []string{"rows", fmt.Sprintf("one?id=%d", record*10+i), fmt.Sprintf("popup?user=%d&placement=home", record)}
			_, _ = apptest.TryFetch(ctx, http.DefaultClient, s.server.URL(paths[i%3]))
		}()
	}
	for range cap(done) {
		<-done
	}
}

// crowd has so many clients wait for different rows until leave is called.
func (s *stage) crowd(clients int) (leave func()) {
	ctx, stop := context.WithCancel(s.t.Context())
	var waiting sync.WaitGroup
	for i := range clients {
		waiting.Go(func() {
			_, _ = apptest.TryFetch(ctx, http.DefaultClient, s.server.URL(fmt.Sprintf("one?id=%d", 1_000_000+i)))
		})
	}
	return func() { stop(); waiting.Wait() }
}

// Each alert fires on the fault that it is for. Before, none does.
func TestAlertsFire(t *testing.T) {
	rules := readFile(t, "../prometheus/alerts.yaml")
	s := newStage(t, hurry(rules))
	defer func() {
		t.Logf("alert, fault, seconds until it fired, with 1 s in place of each for:\n%s", strings.Join(s.fired, "\n"))
	}()
	visits := 0
	visit := func() { visits++; s.visit(visits) }
	for range 3 {
		visit()
	}
	s.post("readings", `{"id":2,"note":"good"}`)
	apptest.AwaitState(t, "no alert fires before any fault", func() (string, bool) { // the first scrapes are over
		firing, err := s.prometheus.Alerts(t.Context())
		return fmt.Sprint(firing, err), err == nil && len(firing) == 0
	})
	s.writeCertificate(24 * time.Hour)
	s.wantAlerts("a certificate for a day", visit, "SpillwayCertificateExpires")
	s.post("readings", `{"id":3,"note":"bad"}`)
	s.wantAlerts("a record that the table refuses", visit, "SpillwayDeadLetters")
	s.breakReplica()
	s.breakRedis(visit)
	s.lockTable(visit)
	if err := s.database.Stop(); err != nil {
		t.Fatal(err)
	}
	fill := strings.Repeat("x", 20_000)
	s.wantAlerts("a database that is away", func() {
		visit()
		s.post("direct", fmt.Sprintf(`{"id":%d}`, 1000+visits))
		for i := range 10 {
			s.post("readings", fmt.Sprintf(`{"id":%d,"note":%q}`, 1000+visits*10+i, fill))
		}
	}, "SpillwayDatabaseAway", "SpillwayPartDown", "SpillwaySpoolFilling", "SpillwaySpoolNotDrained", "SpillwayErrors", "SpillwayRecordsFailed")
	s.server.Kill()
	s.wantAlerts("a server that was killed", func() {}, "SpillwayAway")
	s.configure("streams:\n")
	if err := errors.Join(s.database.Start(), s.server.Start()); err != nil {
		t.Fatal(err)
	}
	s.wantAlerts("a stream that is removed while its records wait", func() {}, "SpillwaySpoolStuck")
	if alerts := strings.Count(rules, "- alert:"); alerts != len(s.fired) {
		t.Errorf("%d of %d alerts fired", len(s.fired), alerts)
	}
}

// post sends a record, whatever is answered.
func (s *stage) post(path, record string) {
	_, _ = apptest.TryPost(s.t.Context(), http.DefaultClient, s.server.URL(path), record)
}

// breakReplica has the replica receive changes that it does not show.
func (s *stage) breakReplica() {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.replica)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	apptest.Execute(s.t, conn, "SELECT pg_wal_replay_pause()")
	s.wantAlerts("a replica that replays nothing", func() {
		apptest.Execute(s.t, s.conn, "INSERT INTO notes SELECT count(*) FROM notes")
	}, "SpillwayReplicaLate")
	apptest.Execute(s.t, conn, "SELECT pg_wal_replay_resume()")
}

// breakRedis gives Redis a wrong clock, no memory, and no file.
func (s *stage) breakRedis(visit func()) {
	s.t.Helper()
	s.redis.SetClock(s.t, time.Hour)
	s.wantAlerts("Redis an hour ahead", visit, "SpillwayClockSkew")
	s.redis.SetClock(s.t, 0)
	sendRedis(s.t, s.redis.Addr(), "CONFIG SET maxmemory 1")
	s.wantAlerts("Redis without memory", visit, "SpillwayRedisRefuses")
	sendRedis(s.t, s.redis.Addr(), "CONFIG SET maxmemory 0")
	sendRedis(s.t, s.redis.Addr(), "CONFIG SET appendonly no")
	sendRedis(s.t, s.redis.Addr(), "CLIENT PAUSE 8000") // it is asked again what a crash loses once it has been away
	s.wantAlerts("Redis without a file, after 8 s without an answer", visit, "SpillwayPopupEventsLost")
	sendRedis(s.t, s.redis.Addr(), "CONFIG SET appendonly yes")
}

// lockTable holds up every statement that reads the table, with a crowd that waits for it.
func (s *stage) lockTable(visit func()) {
	s.t.Helper()
	tx, err := s.conn.Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := tx.Exec(s.t.Context(), "LOCK TABLE readings IN ACCESS EXCLUSIVE MODE"); err != nil {
		s.t.Fatal(err)
	}
	leave := s.crowd(12)
	s.wantAlerts("a table that is locked", visit, "SpillwayFeedStale", "SpillwayPoolExhausted", "SpillwayRefuses")
	leave()
	if err := tx.Rollback(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// sendRedis sends a command in Redis's inline form, which must answer +OK.
func sendRedis(t *testing.T, addr, command string) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	if n, err := conn.Read(answer); err != nil || !strings.HasPrefix(string(answer[:n]), "+OK") {
		t.Fatalf("Redis answers %q to %s: %v", answer[:n], command, err)
	}
}

// With the rules as they are, none fires while the load is normal, for SPILLWAY_QUIET_MINUTES (make long).
func TestAlertsStayQuiet(t *testing.T) {
	apptest.Long(t)
	minutes, err := strconv.Atoi(os.Getenv("SPILLWAY_QUIET_MINUTES"))
	if err != nil {
		t.Log("make long watches for half an hour: SPILLWAY_QUIET_MINUTES is no number")
		return
	}
	s := newStage(t, readFile(t, "../prometheus/alerts.yaml"))
	end := time.Now().Add(time.Duration(minutes) * time.Minute)
	for visits := 0; time.Now().Before(end); visits++ {
		s.visit(visits)
		for i, path := range []string{"readings", "direct"} {
			a := apptest.Post(t, s.server.URL(path), fmt.Sprintf(`{"id":%d,"note":"normal"}`, 10+2*visits+i))
			if a.Status >= http.StatusMultipleChoices {
				t.Fatalf("%s answers %d %s", path, a.Status, a.Body)
			}
		}
		if firing, err := s.prometheus.Alerts(t.Context()); err != nil || len(firing) > 0 {
			t.Fatalf("after %d visits these alerts fire: %v, %v", visits, firing, err)
		}
		apptest.Pause(t)
	}
}
