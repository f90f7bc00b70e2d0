package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"spillway/internal/database"
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
	server := &Server{Address: url.String(), Driver: url.Driver, Settings: map[string]string{}, Local: url.Local()}
	read := server.readPostgres
	if url.Driver == database.MySQL {
		read = server.readMySQL
	}
	if err := read(ctx, s); err != nil {
		return nil, fmt.Errorf("read settings of %s: %w", url, err)
	}
	return server, nil
}

// source is where the server shows a setting.
func (s *Server) source(name string) string {
	if s.Driver == database.Postgres {
		return "pg_settings " + name
	}
	return "SHOW GLOBAL VARIABLES LIKE '" + name + "'"
}

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
