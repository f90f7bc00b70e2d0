package doctor

import (
	"cmp"
	"context"
	"fmt"
	"strings"
)

// mysqlSettings are the global variables to read.
const mysqlSettings = `'sql_mode','default_storage_engine','innodb_flush_log_at_trx_commit','log_bin','sync_binlog',
'innodb_buffer_pool_size','max_connections','innodb_doublewrite','character_set_server','skip_name_resolve','version'`

func (s *Server) readMySQL(ctx context.Context, c session) error {
	rows, err := c.query(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ("+mysqlSettings+")")
	if err != nil {
		return err
	}
	for _, row := range rows {
		s.Settings[row[0]] = row[1]
	}
	s.Version = s.Settings["version"]
	return nil
}

func checkMySQL(s *Server, f *Facts) []Finding {
	off := []string{"OFF", "0"}
	findings := []Finding{
		s.mysqlMode(), s.mysqlEngine(), s.mysqlFlush(), s.mysqlBinlog(),
		s.judge("innodb_doublewrite", off, "a page half written in a power failure can be restored", Finding{
			Status: Fail, Fix: "innodb_doublewrite = ON in my.cnf, then restart",
			Why: "a page half written in a power failure stays broken, unless the file system or the disk writes whole pages",
		}),
		s.mysqlBuffers(f), s.mysqlCharset(),
		s.judge("skip_name_resolve", off, "the server makes no DNS lookup when a client connects", Finding{
			Status: Note, Fix: "skip_name_resolve = ON in my.cnf, accounts by address, then restart",
			Why: "the server looks up each new client address in DNS, so a slow resolver delays connections",
		}),
	}
	if n, ok := s.number("max_connections"); ok {
		findings = append(findings, s.pool(f, n))
	}
	return findings
}

func setGlobal(name, value string) string {
	return fmt.Sprintf("SET GLOBAL %s = %s; and the same in the [mysqld] section of my.cnf", name, value)
}

func (s *Server) mysqlMode() Finding {
	f := s.finding("sql_mode")
	if _, ok := s.Settings["sql_mode"]; !ok {
		return Finding{}
	}
	f.Why = "a value that does not fit is rejected"
	f.Observed = cmp.Or(f.Observed, "(empty)")
	if !strings.Contains(f.Observed, "STRICT_TRANS_TABLES") && !strings.Contains(f.Observed, "STRICT_ALL_TABLES") {
		f.Status = Fail
		f.Fix = setGlobal("sql_mode", "CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')")
		f.Why = "without a strict mode, long text is truncated, an invalid date becomes 0000-00-00, and the client gets at most a warning"
	}
	return f
}

func (s *Server) mysqlEngine() Finding {
	f := s.finding("default_storage_engine")
	f.Why = "it has transactions and row locks"
	if !strings.EqualFold(f.Observed, "InnoDB") {
		f.Status, f.Fix = Fail, setGlobal("default_storage_engine", "InnoDB")
		f.Why = "tables created without ENGINE= have no transactions and only table locks, and a crash can corrupt them"
	}
	return f
}

func (s *Server) mysqlFlush() Finding {
	f := s.finding("innodb_flush_log_at_trx_commit")
	f.Why = "each commit is on disk before it is confirmed; sessions share a flush, and a batch of records needs one"
	switch f.Observed {
	case "0", "2", "3":
		f.Status, f.Fix = Warn, setGlobal("innodb_flush_log_at_trx_commit", "1")
	}
	switch f.Observed {
	case "0":
		f.Arithmetic = "the log is written and flushed once a second: up to 1 s of confirmed commits are lost when mysqld crashes"
		f.Why = "saves a write and a flush per commit; batches save nearly as much and lose nothing"
	case "2":
		f.Arithmetic = "the log is flushed once a second: up to 1 s of confirmed commits are lost when the operating system crashes, none " +
			"when only mysqld crashes"
		f.Why = "saves a flush per commit; batches save nearly as much and lose nothing"
	case "3":
		f.Status, f.Fix = Note, ""
		f.Why = "3 (MariaDB) flushes twice per commit, as version 5.5 did with a binary log: safe, but slower than 1"
	}
	return f
}

func (s *Server) mysqlBinlog() Finding {
	if s.Settings["log_bin"] != "ON" && s.Settings["log_bin"] != "1" {
		return Finding{} // no binary log, nothing to flush
	}
	f := s.finding("sync_binlog")
	f.Why = "the binary log is flushed with each commit, so a replica and the server agree after a crash"
	if f.Observed != "1" {
		f.Status, f.Fix = Warn, setGlobal("sync_binlog", "1")
		f.Why = "when the operating system crashes, the binary log and the tables can have different commits: replicas then differ"
	}
	return f
}

func (s *Server) mysqlBuffers(host *Facts) Finding {
	bytes, ok := s.number("innodb_buffer_pool_size")
	if !ok {
		return Finding{}
	}
	f := s.memory(host, s.finding("innodb_buffer_pool_size"), bytes, 0.5, 0.75)
	f.Why = "InnoDB caches its pages here; leave memory for other programs on the host"
	if f.Status.rank() >= Note.rank() && host.memory() > 0 {
		f.Fix = setGlobal("innodb_buffer_pool_size", fmt.Sprint(host.memory()/2>>20<<20))
	}
	return f
}

func (s *Server) mysqlCharset() Finding {
	f := s.finding("character_set_server")
	f.Why = "new tables can store all of Unicode"
	if f.Observed != "" && f.Observed != "utf8mb4" {
		f.Status, f.Fix = Warn, setGlobal("character_set_server", "utf8mb4")
		f.Why = "new tables cannot store all of Unicode (utf8 and utf8mb3 have no emoji): a strict mode rejects such text, others truncate it"
	}
	return f
}
