package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	neturl "net/url"
	"slices"
	"strings"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/serve/config"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/mysql"
	"spillway/internal/serve/param"
	"spillway/internal/serve/postgres"
	"spillway/internal/serve/stream"
)

// GrantOptions are the flags of spillway grants.
type GrantOptions struct {
	File     string // configuration file
	Role     string // empty: the user of the database's URL, or spillway
	Database string // URL to ask the default database as another user; empty: the configured one

	Stdout io.Writer
}

// grantor is a part that knows what it needs in its database.
type grantor interface {
	Grants(context.Context) ([]database.Grant, error)
}

// roles is a database with roles.
type roles interface {
	Role(ctx context.Context, name string) (database.Role, error)
}

// grantDatabase is an open database with roles.
type grantDatabase interface {
	roles
	grantor // for the lag of a replica
	ReadGrants(context.Context, feed.Definition) ([]database.Grant, error)
	Close() error
}

// reading is a feed or a query.
type reading struct {
	db         grantDatabase
	definition feed.Definition
}

// Grants implements grantor.
func (r reading) Grants(ctx context.Context) ([]database.Grant, error) {
	return r.db.ReadGrants(ctx, r.definition)
}

// grantPart is a part of the configuration that needs a database.
type grantPart struct {
	name     string
	database config.Address // empty: the default one
	open     func(grantDatabase, tables) (any, error)
}

// PrintGrants prints the statements that create a role and give it what a configuration needs
// in each of its databases. It asks the databases, which must answer, and changes nothing.
func PrintGrants(ctx context.Context, o GrantOptions) error {
	cfg, err := loadPartial(o.File)
	if err != nil {
		return err
	}
	parts := grantParts(&cfg)
	var addresses []config.Address
	for _, p := range parts {
		if address := cmp.Or(p.database, cfg.Database); !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	for _, address := range addresses {
		own := slices.DeleteFunc(slices.Clone(parts), func(p grantPart) bool { return cmp.Or(p.database, cfg.Database) != address })
		asked := address
		if address == cfg.Database {
			asked = cmp.Or(config.Address(o.Database), address)
		}
		role := cmp.Or(o.Role, userOf(address), "spillway")
		if err := printGrants(ctx, &cfg, asked, role, own, o.Stdout); err != nil {
			return err
		}
	}
	return nil
}

// userOf returns the user of an address, "" without one.
func userOf(address config.Address) string {
	_, rest, _ := strings.Cut(address.Reveal(), "://")
	authority, _, _ := strings.Cut(rest, "/")
	userinfo, _, found := strings.Cut(authority, "@")
	escaped, _, _ := strings.Cut(userinfo, ":")
	user, err := neturl.PathUnescape(escaped)
	if !found || err != nil || strings.Contains(user, "${") {
		return ""
	}
	return user
}

// grantParts lists the parts of a configuration.
func grantParts(cfg *config.Config) []grantPart {
	var parts []grantPart
	for i := range cfg.Feeds {
		c := &cfg.Feeds[i]
		parts = append(parts, grantPart{"feed " + c.Path, c.Database, func(db grantDatabase, _ tables) (any, error) {
			d, err := feedDefinition(c)
			if err != nil {
				return nil, err
			}
			return reading{db, d}, nil
		}})
	}
	for i := range cfg.Queries {
		c := &cfg.Queries[i]
		parts = append(parts, grantPart{"query " + c.Path, c.Database, func(db grantDatabase, _ tables) (any, error) {
			d, err := queryDefinition(c)
			if err != nil {
				return nil, err
			}
			return reading{db, d}, nil
		}})
	}
	for i := range cfg.Streams {
		c := &cfg.Streams[i]
		parts = append(parts, grantPart{"stream " + c.Path, c.Database, func(_ grantDatabase, in tables) (any, error) {
			schema, err := stream.NewSchema(streamDefinition(c))
			if err != nil {
				return nil, err
			}
			return in.stream(schema), nil
		}})
	}
	if c := &cfg.Popups; c.Path != "" {
		parts = append(parts, grantPart{"popups", c.Database, func(_ grantDatabase, in tables) (any, error) { return in.popups(), nil }})
		if c.AttributesSQL != "" {
			d := feed.Definition{Name: "attributes_sql", SQL: c.AttributesSQL, Params: []param.Param{{Name: "user", Type: param.Type(c.UserType)}}}
			parts = append(parts, grantPart{
				"attributes_sql", c.Database,
				func(db grantDatabase, _ tables) (any, error) { return reading{db, d}, nil },
			})
		}
	}
	if cfg.Popups.Path != "" {
		for _, list := range cfg.Popups.Lists {
			parts = append(parts, grantPart{
				"lists." + list.Name, cfg.Popups.Database,
				func(db grantDatabase, _ tables) (any, error) { return reading{db, listDefinition(list)}, nil },
			})
		}
	}
	if cfg.Replica != "" { // roles are replicated
		parts = append(parts, grantPart{"replica", "", func(db grantDatabase, _ tables) (any, error) { return db, nil }})
	}
	return parts
}

// openGrants opens a database that has roles.
func openGrants(ctx context.Context, url database.URL, pool database.Pool) (grantDatabase, tables, error) {
	log := slog.New(slog.DiscardHandler) // errors are returned
	if url.Driver == database.MySQL {
		db, err := mysql.Open(ctx, url, pool, log)
		if err != nil {
			return nil, tables{}, exit.UsageError(err)
		}
		return db, mysqlTables(db), nil
	}
	db, err := postgres.Open(ctx, url, pool, log)
	if err != nil {
		return nil, tables{}, err
	}
	return db, postgresTables(db), nil
}

// printGrants prints the statements for one database.
func printGrants(ctx context.Context, cfg *config.Config, address config.Address, name string, parts []grantPart, w io.Writer) error {
	if address.IsUnknown() {
		return exit.UsageError(errors.New("database: a variable or a file that it names is missing; set it, or give --database URL"))
	}
	if address == "" || strings.HasPrefix(address.Reveal(), "sqlite:") {
		_, err := fmt.Fprintln(w, "-- SQLite has no roles: the process needs to read and write the file and its directory.")
		return err
	}
	url, err := database.Parse(address.Reveal())
	if err != nil {
		return exit.UsageError(err)
	}
	db, in, err := openGrants(ctx, url, database.Pool(cfg.Pool))
	if err != nil {
		return err
	}
	role, err := db.Role(ctx, name)
	var grants []database.Grant
	if err == nil {
		grants, err = collectGrants(ctx, db, in, parts)
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("database %s: %w", url, err)
	}
	return writeGrants(w, role, database.MergeGrants(grants))
}

// collectGrants returns what the parts need.
func collectGrants(ctx context.Context, db grantDatabase, in tables, parts []grantPart) ([]database.Grant, error) {
	var grants []database.Grant
	for _, p := range parts {
		source, err := p.open(db, in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		some, err := source.(grantor).Grants(ctx) // of an adapter that has them all
		if err != nil {
			return nil, err
		}
		for _, g := range some {
			g.For = p.name
			grants = append(grants, g)
		}
	}
	return grants, nil
}

// writeGrants prints statements, each with a semicolon: what creates the role and the tables,
// then what is granted.
func writeGrants(w io.Writer, role database.Role, grants []database.Grant) error {
	statements := slices.Clone(role.First)
	for _, g := range grants {
		if g.Create != "" && !slices.Contains(statements, g.Create) {
			statements = append(statements, g.Create)
		}
	}
	var b strings.Builder
	for _, s := range statements {
		b.WriteString(s + ";\n")
	}
	for _, g := range grants {
		b.WriteString(g.SQL(role.Name) + ";  -- " + g.For + "\n")
	}
	if role.Then != "" {
		b.WriteString("-- If the role is new, also run: " + role.Then + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
