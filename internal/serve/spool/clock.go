package spool

import (
	"context"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
)

// clock is how far the clock of the database of a name is ahead.
type clock struct {
	ahead   time.Duration
	changed bool // and not in the file yet
}

// SetClock notes how far the clock of the database that a name is drained to is ahead of
// this machine's clock. The file has it after the next entry, and after Close.
func (s *Spool) SetClock(name string, ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clocks[name] = &clock{ahead: ahead.Truncate(time.Microsecond), changed: true}
}

// Clock returns what SetClock was given last, also before a restart. It returns false if
// SetClock was never called for the name.
func (s *Spool) Clock(name string) (ahead time.Duration, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clocks[name]
	if c == nil {
		return 0, false
	}
	return c.ahead, true
}

// now returns the time of the database of a name.
func (s *Spool) now(name string) time.Time {
	ahead, _ := s.Clock(name)
	return time.Now().Add(ahead)
}

// changedClocks returns the clocks that are not in the file.
func (s *Spool) changedClocks() map[string]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var changed map[string]time.Duration
	for name, c := range s.clocks {
		if !c.changed {
			continue
		}
		if changed == nil {
			changed = make(map[string]time.Duration)
		}
		changed[name] = c.ahead
	}
	return changed
}

// savedClocks notes which clocks are in the file. The caller holds mu.
func (s *Spool) savedClocks(saved map[string]time.Duration) {
	for name, ahead := range saved {
		if c := s.clocks[name]; c.ahead == ahead {
			c.changed = false
		}
	}
}

// saveClocks writes the clocks that are not in the file before it is closed. If that fails,
// the next start has the earlier ones.
func (s *Spool) saveClocks() {
	changed := s.changedClocks()
	if len(changed) == 0 {
		return
	}
	if _, err := s.file.write(change{clocks: changed}); err != nil {
		s.cfg.Log.Warn("clock of the database not written to the spool", "error", err)
	}
}

// readClocks calls yield for each clock in the file.
func (f *file) readClocks(ctx context.Context, yield func(name string, ahead time.Duration)) error {
	err := f.query(ctx, func(conn *sqlite.Conn) error {
		return each(conn, "SELECT name, ahead FROM clocks", nil, func(stmt *sqlite.Stmt) {
			yield(stmt.ColumnText(0), time.Duration(stmt.ColumnInt64(1))*time.Microsecond)
		})
	})
	if err != nil {
		return fmt.Errorf("read the clocks of the spool: %w", damaged(err))
	}
	return nil
}
