package doctor

import (
	"context"
	"fmt"
	"strings"
)

// mysqlSettings are read from the global variables.
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
	findings := []Finding{
		s.mysqlMode(), s.mysqlEngine(), s.mysqlFlush(), s.mysqlBinlog(), s.mysqlDoublewrite(),
		s.mysqlBuffers(f), s.mysqlCharset(), s.mysqlNames(),
	}
	if n, ok := s.number("max_connections"); ok {
		findings = append(findings, s.pool(f, n))
	}
	return known(findings)
}

func setGlobal(name, value string) string {
	return fmt.Sprintf("SET GLOBAL %s = %s; and the same in the [mysqld] section of my.cnf", name, value)
}

func (s *Server) mysqlMode() Finding {
	f := s.finding("sql_mode")
	if _, ok := s.Settings["sql_mode"]; !ok {
		return Finding{}
	}
	f.Why = "a value that does not fit is refused"
	if f.Observed == "" {
		f.Observed = "(empty)"
	}
	if !strings.Contains(f.Observed, "STRICT_TRANS_TABLES") && !strings.Contains(f.Observed, "STRICT_ALL_TABLES") {
		f.Status = Fail
		f.Fix = setGlobal("sql_mode", "CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')")
		f.Why = "without a strict mode, text that is too long is cut, a bad date becomes 0000-00-00, and the client hears of a warning at most"
	}
	return f
}

func (s *Server) mysqlEngine() Finding {
	f := s.finding("default_storage_engine")
	f.Why = "transactions, and rows locked one by one"
	if !strings.EqualFold(f.Observed, "InnoDB") {
		f.Status, f.Fix = Fail, setGlobal("default_storage_engine", "InnoDB")
		f.Why = "tables made without ENGINE= have no transactions and lock as a whole; a crash can break them"
	}
	return f
}

func (s *Server) mysqlFlush() Finding {
	f := s.finding("innodb_flush_log_at_trx_commit")
	f.Why = "each commit is on disk before it is confirmed; many sessions share one flush, and a batch of records needs one"
	switch f.Observed {
	case "0", "2", "3":
		f.Status, f.Fix = Warn, setGlobal("innodb_flush_log_at_trx_commit", "1")
	}
	switch f.Observed {
	case "0":
		f.Arithmetic = "the log is written and flushed once a second: up to 1 s of confirmed commits is lost when mysqld crashes"
		f.Why = "gains the write and the flush of each commit; batches gain nearly as much and lose nothing"
	case "2":
		f.Arithmetic = "the log is flushed once a second: up to 1 s of confirmed commits is lost when the operating system crashes, none when only mysqld does"
		f.Why = "gains the flush of each commit; batches gain nearly as much and lose nothing"
	case "3":
		f.Status, f.Fix = Note, ""
		f.Why = "MariaDB's 3 flushes twice a commit, as 5.5 did with a binary log: safe, and slower than 1"
	}
	return f
}

func (s *Server) mysqlBinlog() Finding {
	if s.Settings["log_bin"] != "ON" && s.Settings["log_bin"] != "1" {
		return Finding{} // no binary log, nothing to flush
	}
	f := s.finding("sync_binlog")
	f.Why = "the binary log is on disk with each commit, so a replica and the server agree after a crash"
	if f.Observed != "1" {
		f.Status, f.Fix = Warn, setGlobal("sync_binlog", "1")
		f.Why = "a crash of the operating system loses commits from the binary log that the tables have, or the reverse: replicas then differ"
	}
	return f
}

func (s *Server) mysqlDoublewrite() Finding {
	f := s.finding("innodb_doublewrite")
	f.Why = "a page half written in a power failure can be restored"
	if f.Observed == "OFF" || f.Observed == "0" {
		f.Status, f.Fix = Fail, "innodb_doublewrite = ON in my.cnf, then restart"
		f.Why = "a page half written in a power failure stays broken, unless the file system or the disk writes pages whole"
	}
	return f
}

func (s *Server) mysqlBuffers(host *Facts) Finding {
	bytes, ok := s.number("innodb_buffer_pool_size")
	if !ok {
		return Finding{}
	}
	f := s.memory(host, s.finding("innodb_buffer_pool_size"), bytes, 0.5, 0.75)
	f.Why = "InnoDB caches its own pages here; on a host that also runs the app, leave the app its share"
	if f.Status.rank() >= Note.rank() && s.Local && host != nil {
		f.Fix = setGlobal("innodb_buffer_pool_size", fmt.Sprint(host.memory()/2>>20<<20))
	}
	return f
}

func (s *Server) mysqlCharset() Finding {
	f := s.finding("character_set_server")
	f.Why = "every character has its place"
	if f.Observed != "" && f.Observed != "utf8mb4" {
		f.Status, f.Fix = Warn, setGlobal("character_set_server", "utf8mb4")
		f.Why = "new tables cannot hold all of Unicode (utf8 and utf8mb3 end before emoji): a strict mode refuses such text, a lax one cuts it"
	}
	return f
}

func (s *Server) mysqlNames() Finding {
	f := s.finding("skip_name_resolve")
	f.Why = "no DNS lookup when a client connects"
	if f.Observed == "OFF" || f.Observed == "0" {
		f.Status, f.Fix = Note, "skip_name_resolve = ON in my.cnf, accounts by address, then restart"
		f.Why = "each new client address is looked up in DNS: a slow resolver makes connecting slow"
	}
	return f
}
