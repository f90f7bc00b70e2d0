package watch

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/database"
	"spillway/internal/plans"
)

// postgresReader reads PostgreSQL 12 and later with one statement per reading.
//
// connections counts client backends, including those that are starting. The wait_… figures are active client backends by
// wait_event_type. wait_cpu counts those without a wait event: they run, or are ready to. wait_wal counts those that wait for
// the WAL (WALWrite, WALSync, WALInsert, …); they are also in wait_io or wait_lwlock.
//
// Activity is that of the moment. Counters lag, because backends report late: from version 15 once a second while busy, within
// 10 s when idle, and at their end; before 15 every half second, but only after a statement. commits_total and
// statements_total exclude the sampler's own, before 15 to within two commits.
type postgresReader struct {
	config  *pgconn.Config
	conn    *pgconn.PgConn
	role    string
	denied  string  // quoted schema of pg_stat_statements, if the role may not use it
	version int     // server_version_num
	limit   float64 // max_connections
	commits netCounter
	calls   netCounter // as pg_stat_statements counts them
	schema  string     // quoted, of pg_stat_statements; "" without it
	running []statement
	ranked  []digest
	digests digests
}

// postgresReading is the name of the prepared statement.
const postgresReading = "reading"

// postgresStartup finds out which figures the server has. pg_stat_statements works only if its library is preloaded.
const postgresStartup = `
SELECT current_setting('server_version_num'), current_setting('max_connections'), quote_ident(current_user),
  CASE WHEN current_setting('pg_stat_statements.max', true) IS NOT NULL THEN
    (SELECT quote_ident(nspname) FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
     WHERE extname = 'pg_stat_statements')
  END,
  (SELECT has_schema_privilege(extnamespace, 'USAGE') FROM pg_extension WHERE extname = 'pg_stat_statements'),
  (SELECT current_setting('pg_stat_statements.track_planning', true) = 'on' AND string_to_array(extversion, '.')::int[] >= '{1,8}'
    FROM pg_extension WHERE extname = 'pg_stat_statements')`

//go:embed postgres.sql
var postgresSQL string

func newPostgres(url database.URL) (*postgresReader, error) {
	config, err := database.PostgresConfig(url, DatabaseName)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = DatabaseTimeout
	config.RuntimeParams["statement_timeout"] = strconv.FormatInt(DatabaseTimeout.Milliseconds(), 10)
	return &postgresReader{config: config}, nil
}

// postgresStatement is the statement of a reading for a version. schema is the quoted schema of pg_stat_statements, "" without it.
func postgresStatement(version int, schema string, planning bool) (string, error) {
	text, err := template.New("postgres.sql").Parse(postgresSQL)
	if err != nil {
		return "", fmt.Errorf("read the statement: %w", err)
	}
	var sql strings.Builder
	if err := text.Execute(&sql, map[string]any{"Version": version, "Schema": schema, "Planning": planning}); err != nil {
		return "", fmt.Errorf("write the statement: %w", err)
	}
	return sql.String(), nil
}

func (r *postgresReader) open(ctx context.Context) error {
	conn, err := pgconn.ConnectConfig(ctx, r.config)
	if err != nil {
		return postgresError(err)
	}
	r.conn = conn
	rows, err := database.PostgresTexts(ctx, conn, postgresStartup)
	if err != nil {
		return fmt.Errorf("read the version: %w", err)
	}
	row := rows[0]
	if r.version, err = strconv.Atoi(row[0]); err != nil {
		return fmt.Errorf("read server_version_num: %w", err)
	}
	if r.limit, err = strconv.ParseFloat(row[1], 64); err != nil {
		return fmt.Errorf("read max_connections: %w", err)
	}
	r.role = row[2]
	schema, planning := row[3], row[5] == "t"
	r.denied = ""
	if schema != "" && row[4] != "t" {
		r.denied, schema = schema, ""
	}
	r.schema, r.digests = schema, digests{}
	sql, err := postgresStatement(r.version, schema, planning)
	if err != nil {
		return err
	}
	if _, err := conn.Prepare(ctx, postgresReading, sql, nil); err != nil {
		return fmt.Errorf("prepare the reading: %w", err)
	}
	r.commits.reopened()
	r.calls.reopened()
	r.commits.own += postgresOwnStart
	r.calls.own++
	if r.version >= 150000 {
		_, _, err = r.read(ctx) // flushes what this session has done so far
	}
	return err
}

// postgresOwnStart is how many transactions a session is counted for before its first reading:
// its own start, postgresStartup and the preparation.
const postgresOwnStart = 3

func (r *postgresReader) read(ctx context.Context) (map[string]float64, string, error) {
	answer := r.conn.ExecPrepared(ctx, postgresReading, nil, nil, nil).Read()
	if answer.Err != nil {
		return nil, "", fmt.Errorf("read statistics: %w", answer.Err)
	}
	values := make(map[string]float64, len(answer.FieldDescriptions)+1)
	for i, field := range answer.FieldDescriptions {
		text := answer.Rows[0][i]
		if isList, err := r.readList(field.Name, text); isList || text == nil {
			if err != nil {
				return nil, "", err
			}
			continue
		}
		value, err := strconv.ParseFloat(string(text), 64)
		if err != nil {
			return nil, "", fmt.Errorf("read %s: %w", field.Name, err)
		}
		values[field.Name] = value
	}
	values["connections_limit"] = r.limit
	values["commits_total"] = r.commits.next(values["commits_total"])
	if calls, ok := values["statements_total"]; ok {
		values["statements_total"] = r.calls.next(calls)
	}
	r.commits.own++
	r.calls.own++
	hidden := values["hidden"]
	delete(values, "hidden")
	return values, r.missing(hidden > 0), nil
}

// readList reads a column with a JSON list of statements, nil if it is empty.
func (r *postgresReader) readList(column string, text []byte) (isList bool, err error) {
	switch column {
	case "running":
		r.running = r.running[:0]
		var list []struct {
			Text            string
			Active, Waiting float64
		}
		if text != nil {
			err = json.Unmarshal(text, &list)
		}
		for _, one := range list {
			if shown := withoutLiterals(one.Text, plans.Postgres); shown != "" && !strings.HasPrefix(one.Text, "<insufficient") {
				r.running = append(r.running, statement{shown, map[string]float64{"active": one.Active, "waiting_lock": one.Waiting}})
			}
		}
	case "ranked":
		r.ranked = r.ranked[:0]
		if text != nil {
			err = json.Unmarshal(text, &r.ranked)
		}
	default:
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("read the %s statements: %w", column, err)
	}
	return true, nil
}

// statements implements databaseReader. Texts come from pg_stat_statements once per statement. It has replaced the
// literals of most, but not the password of an ALTER ROLE.
func (r *postgresReader) statements(ctx context.Context) ([]statement, error) {
	ranked, err := r.digests.next(r.ranked, func(id string) (string, error) {
		r.commits.own++
		r.calls.own++
		rows, err := database.PostgresTexts(ctx, r.conn, "SELECT left(query, 1000) FROM "+r.schema+
			".pg_stat_statements(true) WHERE queryid = $1::bigint LIMIT 1", id)
		if err != nil {
			return "", fmt.Errorf("read a statement's text: %w", err)
		}
		if len(rows) == 0 || ownStatement(rows[0][0]) || strings.HasPrefix(rows[0][0], "<insufficient") {
			return "", nil
		}
		return withoutLiterals(rows[0][0], plans.Postgres), nil
	})
	return append(slices.Clone(r.running), ranked...), err
}

// missing says which privileges the role lacks, and how to grant them.
func (r *postgresReader) missing(hidden bool) string {
	var missing []string
	if hidden {
		missing = append(missing, fmt.Sprintf("%s may not see the sessions of other users, so their states and waits are missing: "+
			"run GRANT pg_monitor TO %s", r.role, r.role))
	}
	if r.denied != "" {
		missing = append(missing, fmt.Sprintf("%s may not read pg_stat_statements, so statements_total is missing: "+
			"run GRANT USAGE ON SCHEMA %s TO %s", r.role, r.denied, r.role))
	}
	return strings.Join(missing, "; ")
}

func (r *postgresReader) close() {
	if r.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), DatabaseTimeout)
	defer cancel()
	r.conn.Close(ctx) // the session ends even if this fails
	r.conn = nil
}

// postgresError explains an error from a pooler, which rejects session settings and hides the server's own.
func postgresError(err error) error {
	answered, ok := errors.AsType[*pgconn.PgError](err)
	if ok && answered.Code == "08P01" && strings.Contains(answered.Message, "statement_timeout") {
		return fmt.Errorf("%w: this is a pooler: watch the database behind it", err)
	}
	return err
}
