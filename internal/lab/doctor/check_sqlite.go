package doctor

import "context"

func (s *Server) readSQLite(ctx context.Context, c session) error {
	rows, err := c.query(ctx, "SELECT sqlite_version()")
	if err != nil {
		return err
	}
	s.Version = rows[0][0]
	for _, name := range []string{"journal_mode", "synchronous", "page_size"} {
		rows, err := c.query(ctx, "PRAGMA "+name)
		if err != nil {
			return err
		}
		s.Settings[name] = rows[0][0]
	}
	return nil
}

func checkSQLite(s *Server) []Finding {
	journal := s.finding("journal_mode")
	journal.Why = "readers and the one writer do not stop one another"
	if journal.Observed != "wal" {
		journal.Status, journal.Fix = Warn, "PRAGMA journal_mode = WAL;, once: the file keeps it"
		journal.Why = "a writer shuts readers out while it commits, and waits for them before"
	}
	if journal.Observed == "off" || journal.Observed == "memory" {
		journal.Status = Fail
		journal.Why = "a crash in the middle of a transaction breaks the file"
	}
	sync := s.finding("synchronous")
	levels := map[string]string{"0": "OFF", "1": "NORMAL", "2": "FULL", "3": "EXTRA"}
	sync.Observed = levels[sync.Observed] + " for a connection that does not set it"
	sync.Why = "a setting of each connection, not of the file: FULL keeps every commit; NORMAL with WAL can lose the last ones in a power failure and breaks nothing; OFF can break the file"
	sync.Status = Note
	return []Finding{journal, sync}
}
