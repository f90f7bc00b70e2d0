package doctor

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/expr-lang/expr"

	"spillway/internal/database"
)

// goodHost is a host without problems.
func goodHost() *Facts {
	return &Facts{
		Kernel: "6.1.0-13-amd64", PortFirst: 32768, PortLast: 60999, TWReuse: 1, TWReuseDelay: absent, TWRecycle: absent,
		MaxTWBuckets: 131072, Timestamps: 1, FinTimeout: 60, Somaxconn: 4096, MaxSynBacklog: 2048, Syncookies: 1, TimeWait: 12,
		FilesOf: "bash (pid 7)", FilesSoft: 1 << 20, FilesHard: 1 << 20, FilesOfLoad: 1 << 20, FilesInUse: 1000, FileMax: 1 << 40, NrOpen: 1 << 20,
		Conntracks: absent, ConntrackMx: absent, ConntrackTW: absent, Cores: 2, ClockSource: "tsc", Pressure: true, CPUPressure: 1.5,
		MemoryBytes: 8 << 30, AvailableBytes: 6 << 30, SwapBytes: 1 << 30, Swappiness: 60, HugePages: "madvise",
	}
}

func hostFindings(t *testing.T, f *Facts) []Finding {
	t.Helper()
	findings, err := CheckHost(f)
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

func predicted(t *testing.T, p *Prediction, f *Facts, w *Workload) []Finding {
	t.Helper()
	findings, err := p.Findings(f, w)
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

func serverFindings(t *testing.T, s *Server, f *Facts) []Finding {
	t.Helper()
	findings, err := CheckServer(s, f)
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

// named is the finding of that name.
func named(t *testing.T, findings []Finding, name string) Finding {
	t.Helper()
	i := slices.IndexFunc(findings, func(f Finding) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no finding %q", name)
	}
	return findings[i]
}

// edge is a check at a limit: the change to a good host, and the expected finding.
type edge struct {
	change func(*Facts)
	name   string
	status Status
	says   string
}

func TestCheckConnections(t *testing.T) {
	for _, e := range []edge{
		{func(f *Facts) { f.PortFirst, f.PortLast = 1024, 65535 }, "local ports", Warn, "10240 65535"},
		{func(f *Facts) { f.PortFirst, f.PortLast, f.PortsReserved = 1024, 65535, 3 }, "local ports", OK, "64,509 ports"},
		{func(f *Facts) { f.PortFirst, f.PortLast = 32768, 33767 }, "local ports", Warn, "1,000 ports"},
		{func(f *Facts) { f.PortFirst, f.PortLast = 40000, 60000 }, "local ports", Note, "20,000 ports"},
		{func(f *Facts) { f.PortFirst = 10240; f.PortLast = 65535 }, "local ports", OK, "55,296 ports"},
		{func(*Facts) {}, "TIME_WAIT", OK, "28,232 ports / 60 s = 471 new connections/s"},
		{func(f *Facts) { f.TimeWait = 22585 }, "TIME_WAIT", OK, "22,585"},
		{func(f *Facts) { f.TimeWait = 22586 }, "TIME_WAIT", Warn, "80 %"},
		{func(f *Facts) { f.TWReuse = 0 }, "tcp_tw_reuse", Note, "held for 1 s"},
		{func(f *Facts) { f.TWReuse, f.TWReuseDelay = 0, 500 }, "tcp_tw_reuse", Note, "held for 500 ms"},
		{func(f *Facts) { f.TWReuse = 2 }, "tcp_tw_reuse", Note, "loopback"},
		{func(f *Facts) { f.Timestamps = 0 }, "tcp_tw_reuse", Note, "tcp_timestamps=\"1\""},
		{func(*Facts) {}, "tcp_tw_recycle", OK, "gone since Linux 4.12"},
		{func(f *Facts) { f.TWRecycle, f.Kernel = 0, "3.10.0" }, "tcp_tw_recycle", OK, "off"},
		{func(f *Facts) { f.TWRecycle, f.Kernel = 1, "3.10.0" }, "tcp_tw_recycle", Fail, "net.ipv4.tcp_tw_recycle=\"0\""},
		{func(f *Facts) { f.MaxTWBuckets = 6000 }, "tcp_max_tw_buckets", Warn, "6,000 / 60 s = 100 closes/s"},
		{func(f *Facts) { f.MaxTWBuckets = 32768 }, "tcp_max_tw_buckets", OK, "6000: it hides"},
		{func(f *Facts) { f.Somaxconn = 1023 }, "somaxconn", Warn, "4096"},
		{func(f *Facts) { f.Somaxconn, f.Kernel = 128, "4.9.0" }, "somaxconn", Warn, "before 5.4"},
		{func(f *Facts) { f.Somaxconn = 1024 }, "somaxconn", OK, "1,024"},
		{func(f *Facts) { f.Listener = &Listener{Port: 80, Backlog: 511, Queued: 511} }, "listener :80", Warn, "511"},
		{func(f *Facts) { f.Listener = &Listener{Port: 80, Backlog: 511, Queued: 512} }, "listener :80", Fail, "full"},
		{func(f *Facts) { f.Listener = &Listener{Port: 80, Backlog: 4096} }, "listener :80", OK, "4,096"},
		{func(f *Facts) { f.ListenOverflow = 1 }, "listen overflows", Note, "1 since boot"},
		{func(f *Facts) { f.Syncookies = 0 }, "syncookies", Warn, "tcp_syncookies=\"1\""},
		{func(f *Facts) { f.Syncookies = 2 }, "syncookies", Note, "tests"},
		{func(f *Facts) { f.Syncookies, f.MaxSynBacklog = 0, 1023 }, "tcp_max_syn_backlog", Warn, "4096"},
		{func(f *Facts) { f.MaxSynBacklog = 128 }, "tcp_max_syn_backlog", OK, "4.4"},
	} {
		e.test(t)
	}
}

func TestCheckMachine(t *testing.T) {
	for _, e := range []edge{
		{func(f *Facts) { f.FilesSoft = 1024 }, "open files", Warn, "LimitNOFILE=65536"},
		{func(f *Facts) { f.FilesSoft, f.FilesHard = 4096, 4096 }, "open files", Note, "ulimit -n 4096 is the most"},
		{func(f *Facts) { f.FilesSoft, f.FilesHard = math.MaxInt64, math.MaxInt64 }, "open files", OK, "no limit"},
		{func(f *Facts) { f.FilesInUse, f.FileMax = 79, 100 }, "open files of the host", OK, "79 %"},
		{func(f *Facts) { f.FilesInUse, f.FileMax = 80, 100 }, "open files of the host", Warn, "fs.file-max=\"256\""},
		{func(f *Facts) { f.FilesInUse, f.FileMax = 95, 100 }, "open files of the host", Fail, "ENFILE"},
		{func(f *Facts) { f.Conntracks, f.ConntrackMx, f.ConntrackTW = 10, 262144, 120 }, "connection tracking", OK, "2,185 new connections/s"},
		{func(f *Facts) { f.Conntracks, f.ConntrackMx = 80, 100 }, "connection tracking", Warn, "nf_conntrack_max"},
		{func(f *Facts) { f.Conntracks, f.ConntrackMx = 95, 100 }, "connection tracking", Fail, "table full"},
		{func(f *Facts) { f.Governor = "powersave" }, "CPU governor", Note, "cpupower"},
		{func(f *Facts) { f.Governor = "performance" }, "CPU governor", OK, "performance"},
		{func(f *Facts) { f.CPUQuota = 1.5 }, "cores", Note, "1.5 cores x 100 ms = 150 ms"},
		{func(f *Facts) { f.CPUQuota = 0.5 }, "cores", Warn, "50 ms"},
		{func(f *Facts) { f.CPUQuota = 2 }, "cores", OK, "2 cores"},
		{func(f *Facts) { f.Cores = 1 }, "cores", Note, "share one core"},
		{func(f *Facts) { f.Pressure = false }, "pressure", Note, "psi=1"},
		{func(f *Facts) { f.CPUPressure = 20 }, "pressure", Warn, "busy"},
		{func(f *Facts) { f.ClockSource = "hpet" }, "clock source", Warn, "tsc"},
		{func(f *Facts) { f.MemoryLimit = 1 << 30 }, "memory", Note, "limit 1 GiB"},
		{func(f *Facts) { f.AvailableBytes = 400 << 20 }, "memory", Warn, "4.88 %"},
		{func(f *Facts) { f.SwapUsedBytes = 64 << 20 }, "swap", Note, "64 MiB of 1 GiB"},
		{func(f *Facts) { f.SwapUsedBytes = 900 << 20 }, "swap", Warn, "vm.swappiness"},
		{func(f *Facts) { f.HugePages = "always" }, "transparent huge pages", Note, "Redis"},
	} {
		e.test(t)
	}
}

func (e edge) test(t *testing.T) {
	t.Helper()
	facts := goodHost()
	e.change(facts)
	f := named(t, hostFindings(t, facts), e.name)
	all := strings.Join([]string{f.Observed, f.Arithmetic, f.Why, f.Fix, f.OldAdvice}, " ")
	if f.Status != e.status || !strings.Contains(all, e.says) {
		t.Errorf("%s is %s, want %s with %q: %s", e.name, f.Status, e.status, e.says, all)
	}
}

// All findings of a good host are ok. A host without facts has no finding that
// needs one. No finding recommends tcp_tw_recycle.
func TestCheckHostExtremes(t *testing.T) {
	for _, f := range hostFindings(t, goodHost()) {
		if f.Status != OK {
			t.Errorf("%s: %+v", f.Name, f)
		}
	}
	unknown := &Facts{Kernel: "x", TWRecycle: absent}
	for _, n := range []*int64{
		&unknown.TWReuse, &unknown.TWReuseDelay, &unknown.MaxTWBuckets, &unknown.Timestamps, &unknown.FinTimeout, &unknown.Somaxconn, &unknown.MaxSynBacklog,
		&unknown.Syncookies, &unknown.TimeWait, &unknown.ListenOverflow, &unknown.FilesSoft, &unknown.FilesHard, &unknown.FilesInUse, &unknown.FileMax,
		&unknown.Conntracks, &unknown.ConntrackMx, &unknown.MemoryBytes, &unknown.SwapBytes,
	} {
		*n = absent
	}
	for _, f := range hostFindings(t, unknown) {
		if f.Name != "tcp_tw_recycle" && f.Name != "pressure" {
			t.Errorf("finding without a fact: %+v", f)
		}
		for _, s := range f.Settings {
			if strings.Contains(s.Key, "recycle") && s.Value != "0" {
				t.Errorf("aged advice: %+v", f)
			}
		}
	}
}

// Settings of databases at the limits of the checks.
func TestCheckServer(t *testing.T) {
	host := &Facts{Cores: 4, MemoryBytes: 16 << 30, RotationalDisks: 1}
	for _, c := range []struct {
		driver  database.Driver
		setting string
		value   string
		more    map[string]string
		status  Status
		says    string
	}{
		{database.Postgres, "fsync", "on", nil, OK, "disk"},
		{database.Postgres, "fsync", "off", nil, Fail, "SET fsync = on"},
		{database.Postgres, "synchronous_commit", "off", nil, Warn, "3 x wal_writer_delay 200 ms = up to 600 ms"},
		{database.Postgres, "synchronous_commit", "remote_apply", nil, OK, "survives"},
		{database.Postgres, "full_page_writes", "off", nil, Fail, "broken"},
		{database.Postgres, "shared_buffers", "4294967296", nil, OK, "25 %"},
		{database.Postgres, "shared_buffers", "134217728", nil, Note, "4096MB"},
		{database.Postgres, "shared_buffers", "16106127360", nil, Fail, "93.8 %"},
		{database.Postgres, "max_connections", "100", nil, OK, "(4 cores x 2) + 1 disk = 9"},
		{database.Postgres, "max_connections", "1001", nil, Warn, "switching"},
		{database.Postgres, "work_mem", "4194304", map[string]string{"max_connections": "100"}, OK, "4 MiB x 100 connections = 400 MiB"},
		{database.Postgres, "work_mem", "268435456", map[string]string{"max_connections": "100"}, Warn, "40MB"},
		{database.Postgres, "max_wal_size", "1073741824", nil, OK, "1 GiB"},
		{database.Postgres, "max_wal_size", "1073741824", map[string]string{"checkpoints_timed": "3", "checkpoints_requested": "11"}, Warn, "4GB"},
		{database.Postgres, "autovacuum", "off", nil, Fail, "transaction ids"},
		{database.Postgres, "random_page_cost", "4", nil, Note, "1.1"},
		{database.Postgres, "random_page_cost", "1.1", nil, OK, "random page"},
		{database.Postgres, "statement_timeout", "0", nil, Note, "ALTER ROLE"},
		{database.Postgres, "statement_timeout", "5000", nil, OK, "5 s"},
		{database.Postgres, "wal_level", "minimal", nil, Note, "replica"},
		{database.MySQL, "sql_mode", "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION", nil, OK, "rejected"},
		{database.MySQL, "sql_mode", "", nil, Fail, "(empty)"},
		{database.MySQL, "default_storage_engine", "MyISAM", nil, Fail, "InnoDB"},
		{database.MySQL, "innodb_flush_log_at_trx_commit", "0", nil, Warn, "when mysqld crashes"},
		{database.MySQL, "innodb_flush_log_at_trx_commit", "1", nil, OK, "flush"},
		{database.MySQL, "innodb_flush_log_at_trx_commit", "2", nil, Warn, "operating system crashes"},
		{database.MySQL, "sync_binlog", "0", map[string]string{"log_bin": "ON"}, Warn, "replicas then differ"},
		{database.MySQL, "sync_binlog", "1", map[string]string{"log_bin": "ON"}, OK, "agree"},
		{database.MySQL, "innodb_doublewrite", "OFF", nil, Fail, "broken"},
		{database.MySQL, "innodb_buffer_pool_size", "8589934592", nil, OK, "50 %"},
		{database.MySQL, "innodb_buffer_pool_size", "134217728", nil, Note, "8589934592"},
		{database.MySQL, "character_set_server", "utf8mb3", nil, Warn, "utf8mb4"},
		{database.MySQL, "skip_name_resolve", "OFF", nil, Note, "DNS"},
	} {
		settings := map[string]string{c.setting: c.value}
		for name, value := range c.more {
			settings[name] = value
		}
		f := named(t, serverFindings(t, &Server{Driver: c.driver, Local: true, Settings: settings}, host), c.setting)
		all := strings.Join([]string{f.Observed, f.Arithmetic, f.Why, f.Fix, f.OldAdvice}, " ")
		if f.Status != c.status || !strings.Contains(all, c.says) {
			t.Errorf("%s=%s is %s, want %s with %q: %s", c.setting, c.value, f.Status, c.status, c.says, all)
		}
	}
}

// What is loaded at the start of a server stays in the advice to load one more.
func TestPreload(t *testing.T) {
	for loaded, says := range map[string]string{
		"":                           "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements';, restart, ",
		`timescaledb, "$libdir/x"`:   "ALTER SYSTEM SET shared_preload_libraries = 'timescaledb', '$libdir/x', 'pg_stat_statements';, restart, ",
		"pgaudit,pg_stat_statements": "",
	} {
		s := &scope{Settings: map[string]string{"shared_preload_libraries": loaded}}
		if command := s.Preload("pg_stat_statements"); command != says {
			t.Errorf("%q: %s", loaded, command)
		}
	}
	if command := new(scope).Preload("pg_stat_statements"); !strings.Contains(command, "SHOW shared_preload_libraries") {
		t.Errorf("a role that may not read them: %s", command)
	}
}

// Every expression of checks.yaml names what exists, also those of cases that no test reaches.
func TestCatalog(t *testing.T) {
	c, err := readCatalog()
	if err != nil {
		t.Fatal(err)
	}
	s := &scope{}
	for _, one := range slices.Concat(c.Host, c.Prediction, c.Postgres, c.MySQL, c.Servers) {
		for _, w := range append(one.Cases, one.words, words{Why: one.Name}) {
			codes := []string{cmp.Or(w.If, "true")}
			for _, text := range []string{w.Observed, w.Arithmetic, w.Why, w.Also, w.Fix, w.Set} {
				for _, code := range inText.FindAllString(text, -1) {
					codes = append(codes, code[1:len(code)-1])
				}
			}
			for i, code := range codes {
				program, err := expr.Compile(code, expr.Env(s))
				if err != nil || i == 0 && program.Node().Type().Kind() != reflect.Bool {
					t.Errorf("%s: %q: %v", one.Name, code, err)
				}
			}
			if !slices.Contains([]Status{"", OK, Note, Warn, Fail}, Status(w.Status)) {
				t.Errorf("%s: status %q", one.Name, w.Status)
			}
		}
	}
}
