package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/lab/sheet"
)

// postgresSettings are the settings to read from pg_settings.
const postgresSettings = `'fsync','synchronous_commit','full_page_writes','shared_buffers','max_connections','work_mem',
'max_wal_size','checkpoint_timeout','checkpoint_completion_target','autovacuum','random_page_cost','statement_timeout',
'wal_level','server_version','shared_preload_libraries','wal_writer_delay','hash_mem_multiplier','effective_cache_size'`

// readPostgres reads the settings, with sizes in bytes and times in
// milliseconds, and the statistics that help to judge them.
func (s *Server) readPostgres(ctx context.Context, c session) error {
	rows, err := c.query(ctx, "SELECT name, setting, coalesce(unit, '') FROM pg_settings WHERE name IN ("+postgresSettings+")")
	if err != nil {
		return err
	}
	for _, row := range rows {
		s.Settings[row[0]] = scaled(row[1], row[2])
	}
	s.Version, _, _ = strings.Cut(s.Settings["server_version"], " ")
	rows, err = c.query(ctx, "SELECT count(*) FROM pg_extension WHERE extname = 'pg_stat_statements'")
	if err != nil {
		return err
	}
	s.Settings["pg_stat_statements"] = rows[0][0]
	checkpoints := "SELECT checkpoints_timed, checkpoints_req FROM pg_stat_bgwriter"
	if major, _, _ := strings.Cut(s.Version, "."); parseNumber(major) >= 17 {
		checkpoints = "SELECT num_timed, num_requested FROM pg_stat_checkpointer"
	}
	if rows, err = c.query(ctx, checkpoints); err == nil && len(rows) == 1 { // compatible servers may have none
		s.Settings["checkpoints_timed"], s.Settings["checkpoints_requested"] = rows[0][0], rows[0][1]
	}
	return nil
}

// scaled converts units of pg_settings to bytes and milliseconds.
func scaled(setting, unit string) string {
	factors := map[string]int64{"B": 1, "kB": 1 << 10, "8kB": 8 << 10, "MB": 1 << 20, "GB": 1 << 30, "ms": 1, "s": 1000, "min": 60_000}
	n, err := strconv.ParseInt(setting, 10, 64)
	factor, ok := factors[unit]
	if err != nil || !ok || n < 0 {
		return setting
	}
	return strconv.FormatInt(n*factor, 10)
}

func checkPostgres(s *Server, f *Facts) []Finding {
	findings := []Finding{
		s.judge("fsync", []string{"off"}, "commits reach the disk before they are confirmed", Finding{
			Status: Fail, Fix: alter("fsync", "on"),
			Why: "a crash of the operating system can lose the whole database, not just the last commits; use it for test data only",
		}),
		s.postgresCommit(),
		s.judge("full_page_writes", []string{"off"}, "a page half written in a power failure can be restored", Finding{
			Status: Fail, Fix: alter("full_page_writes", "on"),
			Why: "a page half written in a power failure stays broken, unless the file system (such as ZFS) writes whole pages",
		}),
		s.postgresBuffers(f), s.postgresWorkMem(f), s.postgresWAL(),
		s.judge("autovacuum", []string{"off"}, "it removes dead rows and updates statistics", Finding{
			Status: Fail, Fix: alter("autovacuum", "on"),
			Why: "tables grow with every update, plans become outdated, and finally the server rejects writes because transaction ids run out",
		}),
		s.postgresStatements(), s.postgresPageCost(f), s.postgresTimeout(),
		s.judge("wal_level", []string{"minimal"}, "replicas and point-in-time recovery are possible", Finding{
			Status: Note, Fix: "ALTER SYSTEM SET wal_level = 'replica';, then restart",
			Why: "bulk loads write less, but there can be no replica and no point-in-time recovery",
		}),
	}
	if n, ok := s.number("max_connections"); ok {
		findings = append(findings, s.pool(f, n))
	}
	return findings
}

// alter is the command for a PostgreSQL setting that takes effect with a reload.
func alter(name, value string) string {
	return fmt.Sprintf("ALTER SYSTEM SET %s = %s; SELECT pg_reload_conf();", name, value)
}

func (s *Server) postgresCommit() Finding {
	f := s.finding("synchronous_commit")
	f.Why = "a confirmed commit survives a crash"
	if f.Observed == "off" {
		delay, ok := s.number("wal_writer_delay")
		if !ok {
			delay = 200
		}
		f.Status, f.Fix = Warn, alter("synchronous_commit", "on")
		f.Arithmetic = fmt.Sprintf("3 x wal_writer_delay %s = up to %s of confirmed commits are lost in a crash",
			milliseconds(delay), milliseconds(3*delay))
		f.Why = "commits do not wait for the disk; a crash loses confirmed commits but corrupts nothing. Committing many records at once " +
			"saves nearly as much and loses none"
	}
	return f
}

func (s *Server) postgresBuffers(host *Facts) Finding {
	bytes, ok := s.number("shared_buffers")
	if !ok {
		return Finding{}
	}
	f := s.memory(host, s.finding("shared_buffers"), bytes, 0.25, 0.4)
	f.Why = "reading pages in it needs no system call; the operating system caches files in the rest of the memory"
	if f.Status.rank() >= Note.rank() {
		f.Fix = "ALTER SYSTEM SET shared_buffers = '…';, then restart"
		if host.memory() > 0 {
			f.Fix = fmt.Sprintf("ALTER SYSTEM SET shared_buffers = '%dMB';, then restart", host.memory()/4>>20)
		}
	}
	return f
}

func (s *Server) postgresWorkMem(host *Facts) Finding {
	bytes, ok := s.number("work_mem")
	connections, ok2 := s.number("max_connections")
	if !ok || !ok2 {
		return Finding{}
	}
	f := s.finding("work_mem")
	f.Observed = sheet.Size(bytes)
	f.Arithmetic = fmt.Sprintf("%s x %s = %s, times the number of sorts and hashes per statement",
		sheet.Size(bytes), sheet.Plural(connections, "connection"), sheet.Size(bytes*connections))
	f.Why = "each sort or hash of a statement may use that much before it spills to disk"
	if host.memory() > 0 && bytes*connections > host.memory() {
		f.Status, f.Fix = Warn, alter("work_mem", fmt.Sprintf("'%dMB'", max(4, host.memory()/4/connections>>20)))
		f.Why += fmt.Sprintf("; together they may use more than the %s of memory", sheet.Size(host.memory()))
	}
	return f
}

func (s *Server) postgresWAL() Finding {
	bytes, ok := s.number("max_wal_size")
	if !ok {
		return Finding{}
	}
	f := s.finding("max_wal_size")
	timed, _ := s.number("checkpoints_timed")
	requested, _ := s.number("checkpoints_requested")
	f.Observed = sheet.Size(bytes)
	f.Arithmetic = fmt.Sprintf("%s, %s because the log was full or on demand",
		sheet.Plural(timed, "scheduled checkpoint"), sheet.Integer(requested))
	f.Why = "the first change of a page after a checkpoint logs the whole page, so fewer checkpoints write less"
	if requested > timed && requested > 10 || bytes < gibibyte {
		f.Status, f.Fix = Note, alter("max_wal_size", "'4GB'")
		if requested > timed && requested > 10 {
			f.Status = Warn
		}
		f.Why += "; in return, recovery after a crash takes longer"
	}
	return f
}

func (s *Server) postgresStatements() Finding {
	f := s.finding("pg_stat_statements")
	f.Source = "pg_extension"
	f.Why = "it counts time, rows and buffers per statement: look there first"
	switch f.Observed {
	case "":
	case "0":
		f.Status, f.Observed = Note, "not created in this database"
		f.Fix = s.preload("pg_stat_statements") + "CREATE EXTENSION pg_stat_statements;"
	default:
		f.Observed = "created"
	}
	return f
}

// preload is the command that loads one more library at the start of the server, "" if it is loaded. What is loaded stays: a server
// may not start without it.
func (s *Server) preload(library string) string {
	loaded, visible := s.Settings["shared_preload_libraries"]
	if !visible {
		return fmt.Sprintf("add %s to those of SHOW shared_preload_libraries (this role may not read it), restart, ", library)
	}
	var quoted []string
	for one := range strings.SplitSeq(loaded+","+library, ",") {
		if one = strings.Trim(one, ` "`); one != "" && !slices.Contains(quoted, "'"+one+"'") {
			quoted = append(quoted, "'"+one+"'")
		}
	}
	if slices.Contains(strings.Split(strings.ReplaceAll(loaded, " ", ""), ","), library) {
		return ""
	}
	return fmt.Sprintf("ALTER SYSTEM SET shared_preload_libraries = %s;, restart, ", strings.Join(quoted, ", "))
}

func (s *Server) postgresPageCost(host *Facts) Finding {
	f := s.finding("random_page_cost")
	cost, err := strconv.ParseFloat(f.Observed, 64)
	if err != nil {
		return Finding{}
	}
	f.Why = "the planner's cost of a random page relative to a sequential one"
	if cost >= 4 {
		f.Status, f.Fix = Note, alter("random_page_cost", "1.1")
		f.Arithmetic = fmt.Sprintf("%s suits a spinning disk; 1.1 suits an SSD, or data that fits in memory", sheet.Number(cost))
		f.Why += ": a value that is too high discourages index scans"
		if host.RotationalDisks > 0 {
			f.Why += "; the kernel reports a rotational disk on this host, which is often wrong for virtual disks"
		}
	}
	return f
}

func (s *Server) postgresTimeout() Finding {
	limit, ok := s.number("statement_timeout")
	if !ok {
		return Finding{}
	}
	f := s.finding("statement_timeout")
	f.Observed = milliseconds(limit)
	f.Why = "a statement that takes longer is cancelled"
	if limit == 0 {
		f.Status, f.Observed = Note, "none"
		f.Fix = "ALTER ROLE app SET statement_timeout = '5s';"
		f.Why = "a statement without its client or its index can hold a connection forever"
	}
	return f
}

// milliseconds writes a setting.
func milliseconds(n int64) string { return sheet.Duration(float64(n) / 1e3) }
