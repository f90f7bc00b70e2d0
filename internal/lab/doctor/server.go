package doctor

import (
	"context"
	"fmt"
	"net"
	neturl "net/url"
	"strconv"
	"strings"

	"spillway/internal/database"
)

// Server is what the checks know about a database server.
type Server struct {
	Address  string            `json:"address"` // without its password
	Driver   database.Driver   `json:"driver"`
	Version  string            `json:"version"`
	Settings map[string]string `json:"settings"` // as the server writes them; PostgreSQL's in bytes and milliseconds
	Local    bool              `json:"local"`    // on this host: its memory and cores are those of Facts
}

// ReadServer connects, reads settings and statistics, and changes nothing.
func ReadServer(ctx context.Context, url database.URL) (*Server, error) {
	s, err := open(ctx, url)
	if err != nil {
		return nil, err
	}
	defer s.close() // it was read only
	server := &Server{Address: url.String(), Driver: url.Driver, Settings: map[string]string{}, Local: isLocal(url)}
	switch url.Driver {
	case database.Postgres:
		err = server.readPostgres(ctx, s)
	case database.MySQL:
		err = server.readMySQL(ctx, s)
	default:
		err = server.readSQLite(ctx, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read settings of %s: %w", url, err)
	}
	return server, nil
}

// CheckServer runs every check of the server's kind.
func CheckServer(s *Server, f *Facts) []Finding {
	switch s.Driver {
	case database.Postgres:
		return checkPostgres(s, f)
	case database.MySQL:
		return checkMySQL(s, f)
	}
	return checkSQLite(s)
}

// isLocal reports whether an address leads to this host by its look: a file, a
// Unix socket or a loopback address.
func isLocal(url database.URL) bool {
	if url.Driver == database.SQLite || strings.Contains(url.Raw(), "unix(") {
		return true
	}
	u, err := neturl.Parse(url.Raw())
	if err != nil {
		return false
	}
	host := u.Hostname()
	if host == "" {
		host = u.Query().Get("host")
	}
	ip := net.ParseIP(host)
	return host == "" || host == "localhost" || strings.HasPrefix(host, "/") || ip != nil && ip.IsLoopback()
}

// number reads a setting as a number; ok is false when it is none.
func (s *Server) number(name string) (int64, bool) {
	x, err := strconv.ParseFloat(s.Settings[name], 64)
	return int64(x), err == nil
}

// finding is the outcome of a check of one setting.
func (s *Server) finding(name string) Finding {
	return Finding{Group: "database", Name: name, Status: OK, Observed: s.Settings[name], Source: s.source(name)}
}

func (s *Server) source(name string) string {
	switch s.Driver {
	case database.Postgres:
		return "pg_settings " + name
	case database.MySQL:
		return "SHOW GLOBAL VARIABLES LIKE '" + name + "'"
	}
	return "PRAGMA " + name
}

// pool is the arithmetic that a pool's size begins with, and why it only begins there.
func (s *Server) pool(f *Facts, connections int64) Finding {
	finding := s.finding("max_connections")
	finding.Observed = fmt.Sprintf("%d connections", connections)
	cores, disks := 0, 1
	if s.Local && f != nil {
		cores, disks = f.Cores, max(1, f.RotationalDisks)
	}
	if cores > 0 {
		finding.Arithmetic = fmt.Sprintf("(%d cores x 2) + %s = %d connections at work, as the start of a pool's size", cores, plural(disks, "disk", "disks"), 2*cores+disks)
	} else {
		finding.Arithmetic = "(cores x 2) + disks = connections at work, as the start of a pool's size; this host cannot see the server's"
	}
	finding.Why = "measure from there: commits that wait for the disk gain from many more, statements that compute lose by them. Sum the pools of all app processes below this limit"
	finding.OldAdvice = "pools of 800 idle and 10,000 active connections: what the server cannot run at once waits inside it, at the price of memory and context switches for each"
	if connections > manyConnections {
		finding.Status = Warn
		finding.Why = "so many can be let in at once that the server spends its time switching between them; " + finding.Why
	}
	return finding
}

// manyConnections is where a limit on connections protects nothing any more.
const manyConnections = 1000

// memory compares a buffer with the memory of the host; finding keeps its
// status when the server's memory is unknown.
func (s *Server) memory(f *Facts, finding Finding, bytes int64, least, most float64) Finding {
	finding.Observed = size(bytes)
	if !s.Local || f == nil || f.memory() <= 0 {
		finding.Status = Note
		finding.Arithmetic = fmt.Sprintf("begin with %.0f to %.0f %% of the server's memory; this host cannot see how much it has", 100*least, 100*most)
		return finding
	}
	share := float64(bytes) / float64(f.memory())
	finding.Arithmetic = fmt.Sprintf("%s / %s of memory = %.1f %%; begin with %.0f to %.0f %%", size(bytes), size(f.memory()), 100*share, 100*least, 100*most)
	if share < least/2 || share > most+0.1 {
		finding.Status = Note
	}
	if share > 0.9 {
		finding.Status = Fail
	}
	return finding
}

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
