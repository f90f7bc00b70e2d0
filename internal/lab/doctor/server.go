package doctor

import (
	"cmp"
	"context"
	"fmt"
	neturl "net/url"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/database"
	"spillway/internal/lab/sheet"
	"spillway/internal/netstat"
)

// Server is what the checks know about a database server.
type Server struct {
	Address  string            `json:"address"` // without its password
	Driver   database.Driver   `json:"driver"`
	Version  string            `json:"version"`
	Settings map[string]string `json:"settings"` // as the server shows them; PostgreSQL's in bytes and milliseconds
	Local    bool              `json:"local"`    // on this host, so its memory and cores are those of Facts
}

// ReadServer reads settings and statistics in a read-only session.
func ReadServer(ctx context.Context, url database.URL) (*Server, error) {
	s, err := open(ctx, url)
	if err != nil {
		return nil, err
	}
	defer s.close() // the session was read-only, so its error does not matter
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

// CheckServer runs all checks for the kind of server. It omits those of settings that the server does not have. f is used
// for a server on this host only, and may be nil.
func CheckServer(s *Server, f *Facts) []Finding {
	if f == nil || !s.Local {
		f = &Facts{}
	}
	var findings []Finding
	switch s.Driver {
	case database.Postgres:
		findings = checkPostgres(s, f)
	case database.MySQL:
		findings = checkMySQL(s, f)
	default:
		findings = checkSQLite(s)
	}
	return slices.DeleteFunc(findings, func(f Finding) bool { return f.Observed == "" })
}

// isLocal reports whether an address names this host: a file, a Unix socket or
// a loopback address.
func isLocal(url database.URL) bool {
	if url.Driver == database.SQLite || strings.Contains(url.Raw(), "unix(") {
		return true
	}
	u, err := neturl.Parse(url.Raw())
	if err != nil {
		return false
	}
	host := cmp.Or(u.Hostname(), u.Query().Get("host"))
	return host == "" || strings.HasPrefix(host, "/") || netstat.IsLoopback(host)
}

// number reads a setting as a number; ok is false if it is none.
func (s *Server) number(name string) (int64, bool) {
	x, err := strconv.ParseFloat(s.Settings[name], 64)
	return int64(x), err == nil
}

// finding returns the finding of a setting with status OK.
func (s *Server) finding(name string) Finding {
	return Finding{Group: "database", Name: name, Status: OK, Observed: s.Settings[name], Source: s.source(name)}
}

// judge returns the finding of a setting with status OK and a reason, or the status, fix and reason of wrong if the setting
// has one of these values.
func (s *Server) judge(name string, values []string, why string, wrong Finding) Finding {
	f := s.finding(name)
	f.Why = why
	if slices.Contains(values, f.Observed) {
		f.Status, f.Fix, f.Why = wrong.Status, wrong.Fix, wrong.Why
	}
	return f
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

// pool returns the arithmetic for a first pool size.
func (s *Server) pool(f *Facts, connections int64) Finding {
	finding := s.finding("max_connections")
	finding.Observed = sheet.Plural(connections, "connection")
	if cores, disks := f.Cores, max(1, f.RotationalDisks); cores > 0 {
		finding.Arithmetic = fmt.Sprintf("(%s x 2) + %s = %s, as a first pool size", sheet.Plural(cores, "core"), sheet.Plural(disks, "disk"),
			sheet.Plural(2*cores+disks, "connection"))
	} else {
		finding.Arithmetic = "(cores x 2) + disks = a first pool size; those of a remote server are unknown"
	}
	finding.Why = "measure from there: commits that wait for the disk benefit from many more connections, statements that compute do " +
		"not. Keep the sum of all pools below this limit"
	finding.OldAdvice = "pools of 800 idle and 10,000 active connections: statements that the server cannot run at once wait inside it, " +
		"and cost memory and context switches"
	if connections > manyConnections {
		finding.Status = Warn
		finding.Why = "with so many connections the server spends its time switching between them; " + finding.Why
	}
	return finding
}

// manyConnections is a limit on connections that protects nothing.
const manyConnections = 1000

// memory compares a buffer with the host's memory, of which it should take
// between the shares least and most.
func (s *Server) memory(f *Facts, finding Finding, bytes int64, least, most float64) Finding {
	finding.Observed = sheet.Size(bytes)
	if f.memory() <= 0 {
		finding.Status = Note
		finding.Arithmetic = fmt.Sprintf("start with %s to %s of the server's memory; that of a remote server is unknown",
			sheet.Share(least), sheet.Share(most))
		return finding
	}
	share := float64(bytes) / float64(f.memory())
	finding.Arithmetic = fmt.Sprintf("%s / %s of memory = %s; start with %s to %s", sheet.Size(bytes), sheet.Size(f.memory()),
		sheet.Share(share),
		sheet.Share(least), sheet.Share(most))
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
	journal.Why = "readers and the writer do not block each other"
	if journal.Observed != "wal" {
		journal.Status, journal.Fix = Warn, "PRAGMA journal_mode = WAL; once, because the file keeps it"
		journal.Why = "a writer waits for readers, and blocks them while it commits"
	}
	if journal.Observed == "off" || journal.Observed == "memory" {
		journal.Status = Fail
		journal.Why = "a crash during a transaction corrupts the file"
	}
	sync := s.finding("synchronous")
	levels := map[string]string{"0": "OFF", "1": "NORMAL", "2": "FULL", "3": "EXTRA"}
	sync.Observed = levels[sync.Observed] + " for a connection that does not set it"
	sync.Why = "each connection sets it, not the file: FULL keeps every commit; NORMAL with WAL can lose the last commits in a power " +
		"failure, but corrupts nothing; OFF can corrupt the file"
	sync.Status = Note
	return []Finding{journal, sync}
}
