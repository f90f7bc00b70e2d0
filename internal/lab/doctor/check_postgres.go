package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// postgresSettings are read from pg_settings.
const postgresSettings = `'fsync','synchronous_commit','full_page_writes','shared_buffers','max_connections','work_mem',
'max_wal_size','checkpoint_timeout','checkpoint_completion_target','autovacuum','random_page_cost','statement_timeout',
'wal_level','server_version','wal_writer_delay','hash_mem_multiplier','effective_cache_size'`

// readPostgres reads the settings, sizes in bytes and times in milliseconds,
// and what the statistics tell about them.
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
	if rows, err = c.query(ctx, checkpoints); err == nil && len(rows) == 1 { // other engines have none
		s.Settings["checkpoints_timed"], s.Settings["checkpoints_requested"] = rows[0][0], rows[0][1]
	}
	return nil
}

// scaled turns pg_settings' units into bytes and milliseconds.
func scaled(setting, unit string) string {
	factors := map[string]int64{"B": 1, "kB": 1 << 10, "8kB": 8 << 10, "MB": 1 << 20, "GB": 1 << 30, "ms": 1, "s": 1000, "min": 60_000}
	n, err := strconv.ParseInt(setting, 10, 64)
	factor, ok := factors[unit]
	if err != nil || !ok || n < 0 {
		return setting
	}
	return digits(n * factor)
}

func checkPostgres(s *Server, f *Facts) []Finding {
	findings := []Finding{
		s.postgresSync(), s.postgresCommit(), s.postgresPages(), s.postgresBuffers(f),
		s.postgresWorkMem(f), s.postgresWAL(), s.postgresVacuum(), s.postgresStatements(),
		s.postgresPageCost(f), s.postgresTimeout(), s.postgresWALLevel(),
	}
	if n, ok := s.number("max_connections"); ok {
		findings = append(findings, s.pool(f, n))
	}
	return known(findings)
}

// known leaves out the checks of settings that the server does not have.
func known(findings []Finding) []Finding {
	var kept []Finding
	for _, f := range findings {
		if f.Observed != "" {
			kept = append(kept, f)
		}
	}
	return kept
}

// alter is the command that sets a PostgreSQL setting that a reload applies.
func alter(name, value string) string {
	return fmt.Sprintf("ALTER SYSTEM SET %s = %s; SELECT pg_reload_conf();", name, value)
}

func (s *Server) postgresSync() Finding {
	f := s.finding("fsync")
	f.Why = "commits reach the disk before they are confirmed"
	if f.Observed == "off" {
		f.Status, f.Fix = Fail, alter("fsync", "on")
		f.Why = "a crash of the operating system can lose the whole database, not just the last commits; for a test's data only"
	}
	return f
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
		f.Arithmetic = fmt.Sprintf("3 x wal_writer_delay %d ms = up to %d ms of confirmed commits are lost in a crash", delay, 3*delay)
		f.Why = "gains the wait for the disk in each commit, loses confirmed commits, corrupts nothing; committing many records at once gains nearly as much and loses none"
	}
	return f
}

func (s *Server) postgresPages() Finding {
	f := s.finding("full_page_writes")
	f.Why = "a page half written in a power failure can be restored"
	if f.Observed == "off" {
		f.Status, f.Fix = Fail, alter("full_page_writes", "on")
		f.Why = "a page half written in a power failure stays broken, unless the file system (ZFS, say) writes pages whole"
	}
	return f
}

func (s *Server) postgresBuffers(host *Facts) Finding {
	bytes, ok := s.number("shared_buffers")
	if !ok {
		return Finding{}
	}
	f := s.memory(host, s.finding("shared_buffers"), bytes, 0.25, 0.4)
	f.Why = "pages in it cost no system call; the rest of the memory caches files for it anyway"
	if f.Status.rank() >= Note.rank() {
		f.Fix = "ALTER SYSTEM SET shared_buffers = '…';, then restart"
		if s.Local && host != nil {
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
	f.Observed = size(bytes)
	f.Arithmetic = fmt.Sprintf("%s x %d connections = %s, times the sorts and hashes of each statement", size(bytes), connections, size(bytes*connections))
	f.Why = "each sort or hash of each statement may take that much before it goes to disk"
	if s.Local && host != nil && host.memory() > 0 && bytes*connections > host.memory() {
		f.Status, f.Fix = Warn, alter("work_mem", fmt.Sprintf("'%dMB'", max(4, host.memory()/4/connections>>20)))
		f.Why += fmt.Sprintf("; all of them together may take more than the %s of memory", size(host.memory()))
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
	f.Observed = size(bytes)
	f.Arithmetic = fmt.Sprintf("%d checkpoints by time, %d because the log was full or on demand", timed, requested)
	f.Why = "after a checkpoint the first change of each page is logged as the whole page, so rare checkpoints write less"
	if requested > timed && requested > 10 || bytes < gibibyte {
		f.Status, f.Fix = Note, alter("max_wal_size", "'4GB'")
		if requested > timed && requested > 10 {
			f.Status = Warn
		}
		f.Why += "; recovery after a crash takes longer in turn"
	}
	return f
}

func (s *Server) postgresVacuum() Finding {
	f := s.finding("autovacuum")
	f.Why = "dead rows are cleared away and statistics kept fresh"
	if f.Observed == "off" {
		f.Status, f.Fix = Fail, alter("autovacuum", "on")
		f.Why = "tables grow with every update, plans go stale, and in the end the server stops writes to keep transaction ids apart"
	}
	return f
}

func (s *Server) postgresStatements() Finding {
	f := s.finding("pg_stat_statements")
	f.Source = "pg_extension"
	f.Why = "it counts time, rows and buffers of each statement: the list to begin with"
	switch f.Observed {
	case "":
	case "0":
		f.Status, f.Observed = Note, "not created in this database"
		f.Fix = "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements';, restart, CREATE EXTENSION pg_stat_statements;"
	default:
		f.Observed = "there"
	}
	return f
}

func (s *Server) postgresPageCost(host *Facts) Finding {
	f := s.finding("random_page_cost")
	cost, err := strconv.ParseFloat(f.Observed, 64)
	if err != nil {
		return Finding{}
	}
	f.Why = "what a random page costs against one in sequence, in the planner's eyes"
	if cost >= 4 {
		f.Status, f.Fix = Note, alter("random_page_cost", "1.1")
		f.Arithmetic = fmt.Sprintf("%s is a spinning disk's; 1.1 is near for an SSD, or for data that fit in memory", figure(cost))
		f.Why += ": too high a cost keeps it from using an index"
		if s.Local && host != nil && host.RotationalDisks > 0 {
			f.Why += "; the kernel calls a disk of this host rotational, which virtual disks often are not"
		}
	}
	return f
}

func (s *Server) postgresTimeout() Finding {
	milliseconds, ok := s.number("statement_timeout")
	if !ok {
		return Finding{}
	}
	f := s.finding("statement_timeout")
	f.Observed = fmt.Sprintf("%d ms", milliseconds)
	f.Why = "a statement that takes longer is cancelled"
	if milliseconds == 0 {
		f.Status, f.Observed = Note, "none"
		f.Fix = "ALTER ROLE app SET statement_timeout = '5s';"
		f.Why = "a statement that has lost its client, or its index, keeps a connection for as long as it likes"
	}
	return f
}

func (s *Server) postgresWALLevel() Finding {
	f := s.finding("wal_level")
	f.Why = "a replica and point-in-time recovery are possible"
	if f.Observed == "minimal" {
		f.Status, f.Fix = Note, "ALTER SYSTEM SET wal_level = 'replica';, then restart"
		f.Why = "bulk loads write less, but no replica can follow and a backup restores only to the moment it was made"
	}
	return f
}
