package database

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// Grant is what a role needs on one object of a database.
type Grant struct {
	Privileges []string // each as GRANT takes it: SELECT, SELECT (id)
	Object     string   // as GRANT names it: app.orders, SCHEMA app
	Create     string   // the statement that creates the object; "" if it exists
	For        string   // what needs it, for a comment; set by the caller of Grants
}

// Role is a role of a database server.
type Role struct {
	Name  string   // as SQL writes it
	First []string // statements to run before the grants, such as the creation of the role
	Then  string   // what to run by hand after them; "": nothing
}

// IsLoginRefused reports whether a server refused the user or the password of a connection.
func IsLoginRefused(err error) bool {
	var said *pgconn.PgError
	var refused *mysql.MySQLError
	switch {
	case errors.As(err, &said):
		return strings.HasPrefix(said.Code, "28")
	case errors.As(err, &refused):
		return refused.Number == 1044 || refused.Number == 1045 || refused.Number == 1698
	}
	return false
}

// MergeGrants joins the grants on the same object, in the order of the first of each.
func MergeGrants(all []Grant) []Grant {
	var merged []Grant
	for _, g := range all {
		i := slices.IndexFunc(merged, func(m Grant) bool { return m.Object == g.Object })
		if i < 0 {
			g.Privileges = slices.Clone(g.Privileges)
			merged = append(merged, g)
			continue
		}
		m := &merged[i]
		for _, privilege := range g.Privileges {
			if !slices.Contains(m.Privileges, privilege) {
				m.Privileges = append(m.Privileges, privilege)
			}
		}
		m.Create = cmp.Or(m.Create, g.Create)
		if !slices.Contains(strings.Split(m.For, ", "), g.For) {
			m.For += ", " + g.For
		}
	}
	return merged
}

// SQL writes the GRANT for a role, which is written as SQL.
func (g Grant) SQL(role string) string {
	return "GRANT " + strings.Join(g.Privileges, ", ") + " ON " + g.Object + " TO " + role
}
