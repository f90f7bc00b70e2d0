package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"spillway/internal/database"
	"spillway/internal/plans"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/streamtables"
	"spillway/internal/serve/tables"
)

// errRights is the error of a user without a privilege that the server needs.
var errRights = errors.New("the user lacks privileges")

// Error numbers of a missing privilege.
const (
	numTableDenied    = 1142
	numColumnDenied   = 1143
	numDatabaseDenied = 1044
)

// checkRights returns an error that names the privileges which the user lacks on tables that
// exist. Preparing a statement checks them, whatever role or schema they come from.
func checkRights(ctx context.Context, se *session, own []tables.Table) error {
	var missing []string
	for _, t := range own {
		column, _, _ := strings.Cut(t.Columns, " ")
		for _, privilege := range t.Privileges {
			sql := map[string]string{
				"SELECT": "SELECT " + column + " FROM " + t.Name,
				"INSERT": "INSERT INTO " + t.Name + " (" + column + ") VALUES (?)",
				"UPDATE": "UPDATE " + t.Name + " SET " + column + " = ?",
				"DELETE": "DELETE FROM " + t.Name,
			}[privilege]
			stmt, err := se.PrepareContext(ctx, sql)
			switch {
			case isRefusal(err, numTableDenied, numColumnDenied):
				missing = append(missing, privilege+" on "+t.Name)
			case err != nil:
				return fmt.Errorf("check %s on %s: %w", privilege, t.Name, err)
			default:
				_ = stmt.Close() // the server does not answer
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; spillway grants prints all that it needs", errRights, strings.Join(missing, ", "))
}

// Role returns what has to be run first for a user, USER or USER@HOST: its creation, locked
// because it has no password yet, and the database of the server's own tables.
func (db *DB) Role(ctx context.Context, name string) (database.Role, error) {
	user, host, found := strings.Cut(name, "@")
	if !found {
		host = "%"
	}
	if user == "" || strings.ContainsAny(name, "'\"`\\") {
		return database.Role{}, fmt.Errorf("%q is no user; write USER or USER@HOST without quotes", name)
	}
	r := database.Role{Name: "'" + user + "'@'" + host + "'"}
	r.Then = "ALTER USER " + r.Name + " IDENTIFIED BY 'its password' ACCOUNT UNLOCK"
	err := db.withSession(ctx, func(ctx context.Context, se *session) error {
		rows, err := se.Query(ctx, "SELECT DATABASE()")
		if err != nil {
			return fmt.Errorf("look up the database: %w", err)
		}
		r.First = []string{
			"CREATE USER IF NOT EXISTS " + r.Name + " ACCOUNT LOCK",
			"USE " + plans.MySQL.QuoteAlways(rows[0][0]),
		}
		return nil
	})
	return r, err
}

// Grants returns what measuring the lag of a replica needs: with GTIDs nothing.
func (db *DB) Grants(ctx context.Context) ([]database.Grant, error) {
	var grants []database.Grant
	err := db.withSession(ctx, func(ctx context.Context, se *session) error {
		if se.Server.MariaDB {
			return nil
		}
		rows, err := se.Query(ctx, "SELECT @@GLOBAL.gtid_mode")
		if err != nil {
			return fmt.Errorf("look up gtid_mode: %w", err)
		}
		if !strings.HasPrefix(rows[0][0], "ON") {
			grants = []database.Grant{{Privileges: []string{"REPLICATION CLIENT"}, Object: "*.*"}}
		}
		return nil
	})
	return grants, err
}

// ReadGrants returns what reading a feed or a query needs.
func (db *DB) ReadGrants(ctx context.Context, def feed.Definition) ([]database.Grant, error) {
	if _, err := db.Source(def); err != nil {
		return nil, err
	}
	var grants []database.Grant
	err := db.withSession(ctx, func(ctx context.Context, se *session) error {
		return se.addReads(ctx, &grants, def.SQL, "")
	})
	if err != nil {
		return nil, fmt.Errorf("%s: find the tables of the statement: %w", &def, err)
	}
	return grants, nil
}

// addReads adds what reading with a statement needs. EXPLAIN, which checks statements at startup, also needs the definitions of views and
// the tables behind them. Names without a schema are in schema; "": in the session's database.
func (se *session) addReads(ctx context.Context, grants *[]database.Grant, sql, schema string) error {
	names, err := plans.Tables(sql, plans.MySQL)
	if err != nil {
		return err
	}
	for _, name := range names {
		rows, err := se.texts(ctx, "SELECT t.TABLE_SCHEMA, t.TABLE_NAME, COALESCE(v.VIEW_DEFINITION, '') FROM information_schema.TABLES t "+
			"LEFT JOIN information_schema.VIEWS v ON v.TABLE_SCHEMA = t.TABLE_SCHEMA AND v.TABLE_NAME = t.TABLE_NAME "+
			"WHERE t.TABLE_SCHEMA = COALESCE(NULLIF(?, ''), NULLIF(?, ''), DATABASE()) AND t.TABLE_NAME = ?", name.Schema, schema, name.Name)
		if err != nil {
			return err
		}
		for _, row := range rows {
			object := plans.TableName{Schema: row[0], Name: row[1]}.SQL(plans.MySQL)
			if slices.ContainsFunc(*grants, func(g database.Grant) bool { return g.Object == object }) {
				continue
			}
			g := database.Grant{Privileges: []string{"SELECT"}, Object: object}
			if row[2] != "" {
				g.Privileges = append(g.Privileges, "SHOW VIEW")
			}
			*grants = append(*grants, g)
			if err := se.addReads(ctx, grants, row[2], row[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Grants returns what storing the stream's records needs.
func (st *Stream) Grants(ctx context.Context) ([]database.Grant, error) {
	name := plans.ParseTableName(st.def.Table)
	var grants []database.Grant
	err := st.db.withSession(ctx, func(ctx context.Context, se *session) error {
		rows, err := se.texts(ctx, "SELECT table_schema, table_name FROM information_schema.tables WHERE "+inDatabase, name.Schema, name.Name)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return fmt.Errorf("there is no table %s", st.def.Table)
		}
		table := database.Grant{Privileges: []string{"INSERT"}, Object: plans.TableName{Schema: rows[0][0], Name: rows[0][1]}.SQL(plans.MySQL)}
		if len(st.def.Key) > 0 {
			table.Privileges = append(table.Privileges, "SELECT")
			if !se.Server.MariaDB { // MySQL 8 lets nobody lock rows who may not change them
				table.Privileges = append(table.Privileges, "UPDATE")
			}
		}
		grants = append(grants, table)
		return se.addOwn(ctx, &grants, streamtables.Own(dialect, st.def.Spooled))
	})
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", st.def.Name, err)
	}
	return grants, nil
}

// addOwn adds the privileges on tables of the adapter, with the statements of those that are missing.
func (se *session) addOwn(ctx context.Context, grants *[]database.Grant, own []tables.Table) error {
	for _, t := range own {
		rows, err := se.texts(ctx, "SELECT DATABASE(), (SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND "+
			"TABLE_NAME = ?)", t.Name)
		if err != nil {
			return fmt.Errorf("look up %s: %w", t.Name, err)
		}
		g := database.Grant{Privileges: t.Privileges, Object: plans.TableName{Schema: rows[0][0], Name: t.Name}.SQL(plans.MySQL)}
		if rows[0][1] == "0" {
			g.Create = t.DDL(dialect)
		}
		*grants = append(*grants, g)
	}
	return nil
}
