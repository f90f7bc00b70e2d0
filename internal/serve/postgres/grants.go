package postgres

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"spillway/internal/database"
	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/streamtables"
	"spillway/internal/serve/tables"
)

// errRights is the error of a role without a privilege that the server needs.
var errRights = errors.New("the role lacks privileges")

// checkRights returns an error that names the privileges which the role of the session lacks
// on tables that exist.
func checkRights(ctx context.Context, conn *pgconn.PgConn, own []tables.Table) error {
	var needs []string
	for _, t := range own {
		for _, privilege := range t.Privileges {
			needs = append(needs, fmt.Sprintf("('%s', '%s')", t.Name, privilege))
		}
	}
	rows, err := texts(ctx, conn, "SELECT format('GRANT %s ON %s TO %I', privilege, name, current_user) FROM (VALUES "+strings.Join(needs,
		", ")+
		") AS need(name, privilege) WHERE NOT has_table_privilege(to_regclass(name), privilege)")
	if err != nil {
		return fmt.Errorf("look up privileges: %w", err)
	}
	return lacking(rows)
}

// lacking returns errRights with the statements that grant what is missing; nil without one.
func lacking(statements [][]string) error {
	if len(statements) == 0 {
		return nil
	}
	var all []string
	for _, row := range statements {
		all = append(all, row[0])
	}
	return fmt.Errorf("%w: run %s; spillway grants prints all that it needs", errRights, strings.Join(all, "; "))
}

// sequencesOf selects the sequences behind the defaults of a table: schema, name, column. An
// identity column needs no privilege.
//
//go:embed sql/sequences.sql
var sequencesOf string

// sequences returns the sequences that an INSERT of the stream uses, as SQL writes them.
func (st *Stream) sequences(ctx context.Context, conn *pgconn.PgConn) ([]string, error) {
	rows, err := texts(ctx, conn, sequencesOf, st.tableName())
	if err != nil {
		return nil, fmt.Errorf("look up the sequences of %s: %w", st.def.Table, err)
	}
	var names []string
	for _, row := range rows {
		written := false
		for _, c := range st.schema.Columns() {
			written = written || c.Name == row[2]
		}
		if !written {
			names = append(names, plans.TableName{Schema: row[0], Name: row[1]}.SQL(plans.Postgres))
		}
	}
	return names, nil
}

// checkRights returns an error if the role lacks a privilege that EXPLAIN does not check: on
// sequences, and on the stream's own tables.
func (st *Stream) checkRights(ctx context.Context, conn *pgconn.PgConn) error {
	sequences, err := st.sequences(ctx, conn)
	if err != nil {
		return err
	}
	for _, name := range sequences {
		rows, err := texts(ctx, conn, "SELECT format('GRANT USAGE ON SEQUENCE %s TO %I', $1::text, current_user) WHERE NOT "+
			"has_sequence_privilege($1::text, 'USAGE, UPDATE')", name)
		if err == nil {
			err = lacking(rows)
		}
		if err != nil {
			return err
		}
	}
	return checkRights(ctx, conn, streamtables.Own(dialect, st.def.Spooled))
}

// Role returns what has to be run first for a role: its creation, CONNECT if not everybody
// may, and the schema of the tables that the server creates.
func (db *DB) Role(ctx context.Context, name string) (database.Role, error) {
	role := plans.Postgres.Quote(name)
	r := database.Role{Name: role}
	err := db.ask(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		rows, err := texts(ctx, conn, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1::text), has_database_privilege('public', "+
			"current_database(), 'CONNECT'), current_database(), COALESCE(current_schema(), 'public')", name)
		if err != nil {
			return fmt.Errorf("look up the role: %w", err)
		}
		row := rows[0]
		if row[0] == "f" {
			r.First = append(r.First, "CREATE ROLE "+role+" LOGIN")
			r.Then = "ALTER ROLE " + role + " PASSWORD 'its password'"
		}
		if row[1] == "f" {
			r.First = append(r.First, "GRANT CONNECT ON DATABASE "+plans.Postgres.Quote(row[2])+" TO "+role)
		}
		r.First = append(r.First, "SET search_path = "+plans.Postgres.Quote(row[3]))
		return nil
	})
	return r, err
}

// Grants returns what measuring the lag of a replica needs: nothing.
func (*DB) Grants(context.Context) ([]database.Grant, error) { return nil, nil }

// dependencies selects what a view depends on: its kind, as GRANT names it, its schema, its
// name, and whether everybody may use it. Of views that run with the rights of the caller, it
// also selects what these depend on.
//
//go:embed sql/dependencies.sql
var dependencies string

// ReadGrants returns what reading a feed or a query needs. A temporary view, which is rolled
// back, makes the database resolve the statement's names.
func (db *DB) ReadGrants(ctx context.Context, def feed.Definition) ([]database.Grant, error) {
	parsed, err := plans.ParseStatement(def.SQL, plans.Postgres)
	if err == nil {
		err = param.Match(parsed, def.Params)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", &def, err)
	}
	body := parsed.Render(func(name string) string {
		return "NULL::" + castOf(def.Params[param.Index(def.Params, name)])
	})
	var grants []database.Grant
	err = db.ask(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		err := exec(ctx, conn, "BEGIN; CREATE TEMPORARY VIEW spillway_grants AS SELECT 1 AS one FROM ("+body+") AS statement")
		var rows [][]string
		if err == nil {
			rows, err = texts(ctx, conn, dependencies)
		}
		if err = errors.Join(err, exec(ctx, conn, "ROLLBACK")); err != nil {
			return fmt.Errorf("%s: find the tables of the statement: %w", &def, err)
		}
		for _, row := range rows {
			object := plans.TableName{Schema: row[1], Name: row[2]}.SQL(plans.Postgres)
			switch {
			case row[0] == "TABLE":
				grants = append(grants, database.Grant{Privileges: []string{"SELECT"}, Object: object})
			case row[4] == "f":
				grants = append(grants, database.Grant{Privileges: []string{"EXECUTE"}, Object: "FUNCTION " + object + "(" + row[3] + ")"})
			}
			if err := addSchema(ctx, conn, &grants, row[1]); err != nil {
				return err
			}
		}
		return nil
	})
	return grants, err
}

// addSchema adds USAGE of a schema, unless everybody has it.
func addSchema(ctx context.Context, conn *pgconn.PgConn, grants *[]database.Grant, schema string) error {
	rows, err := texts(ctx, conn, "SELECT has_schema_privilege('public', $1::text, 'USAGE')", schema)
	if err != nil {
		return fmt.Errorf("look up the schema %s: %w", schema, err)
	}
	if rows[0][0] == "f" {
		*grants = append(*grants, database.Grant{Privileges: []string{"USAGE"}, Object: "SCHEMA " + plans.Postgres.Quote(schema)})
	}
	return nil
}

// Grants returns what storing the stream's records needs.
func (st *Stream) Grants(ctx context.Context) ([]database.Grant, error) {
	var grants []database.Grant
	err := st.db.ask(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		rows, err := texts(ctx, conn, "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE "+
			"c.oid = to_regclass($1::text)", st.tableName())
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return fmt.Errorf("there is no table %s", st.def.Table)
		}
		if err := addSchema(ctx, conn, &grants, rows[0][0]); err != nil {
			return err
		}
		table := database.Grant{Privileges: []string{"INSERT"}, Object: plans.TableName{Schema: rows[0][0], Name: rows[0][1]}.SQL(plans.Postgres)}
		if len(st.def.Key) > 0 {
			var key []string
			for _, name := range st.def.Key {
				key = append(key, plans.Postgres.Quote(name))
			}
			table.Privileges = append(table.Privileges, "SELECT ("+strings.Join(key, ", ")+")")
		}
		grants = append(grants, table)
		sequences, err := st.sequences(ctx, conn)
		if err != nil {
			return err
		}
		for _, name := range sequences {
			grants = append(grants, database.Grant{Privileges: []string{"USAGE"}, Object: "SEQUENCE " + name})
		}
		return addOwn(ctx, conn, &grants, streamtables.Own(dialect, st.def.Spooled))
	})
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", st.def.Name, err)
	}
	return grants, nil
}

// addOwn adds the privileges on tables of the adapter, with the statements of those that are
// missing.
func addOwn(ctx context.Context, conn *pgconn.PgConn, grants *[]database.Grant, own []tables.Table) error {
	for _, t := range own {
		rows, err := texts(ctx, conn, "SELECT COALESCE((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "+
			"WHERE c.oid = to_regclass($1::text)), current_schema(), 'public'), "+
			"to_regclass($1::text) IS NULL", t.Name)
		if err != nil {
			return fmt.Errorf("look up %s: %w", t.Name, err)
		}
		create := ""
		if rows[0][1] == "t" {
			create = t.DDL(dialect)
		}
		if err := addSchema(ctx, conn, grants, rows[0][0]); err != nil {
			return err
		}
		object := plans.TableName{Schema: rows[0][0], Name: t.Name}.SQL(plans.Postgres)
		*grants = append(*grants, database.Grant{Privileges: t.Privileges, Object: object, Create: create})
	}
	return nil
}
