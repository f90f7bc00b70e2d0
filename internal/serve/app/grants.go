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
	"spillway/internal/serve/stream"
)

// grantor is a part that knows what it needs in its database.
type grantor interface {
	Grants(context.Context) ([]database.Grant, error)
}

// grantDatabase is a database with roles: PostgreSQL or MySQL.
type grantDatabase interface {
	grantor // for the lag of a replica
	Role(ctx context.Context, name string) (database.Role, error)
	ReadGrants(context.Context, feed.Definition) ([]database.Grant, error)
}

// grantPart is a part of the configuration that needs a database.
type grantPart struct {
	name     string
	database config.Address // empty: the default one
	grants   func(context.Context, grantDatabase, tables) ([]database.Grant, error)
}

// readingPart is the part of a statement that reads.
func readingPart(name string, address config.Address, d feed.Definition) grantPart {
	return grantPart{name, address, func(ctx context.Context, db grantDatabase, _ tables) ([]database.Grant, error) {
		return db.ReadGrants(ctx, d)
	}}
}

// PrintGrants prints the statements that create a role and give it what the configuration file at
// path needs in each of its databases. It asks the databases, which must answer, and changes
// nothing. Without a role it is the user of a database's URL, or spillway. asAdmin is a URL to ask
// the default database as another user; empty: the configured one.
func PrintGrants(ctx context.Context, path, role, asAdmin string, stdout io.Writer) error {
	cfg, err := load(path, config.Default(), true)
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
			asked = cmp.Or(config.Address(asAdmin), address)
		}
		name := cmp.Or(role, userOf(address), "spillway")
		err := printGrants(ctx, &cfg, asked, name, own, stdout)
		if database.IsLoginRefused(err) && asked == address {
			return exit.UsageError(fmt.Errorf("%w; if %s does not exist yet or has no password, name an administrator who is asked instead: "+
				"--role %s --database URL", err, name, name))
		}
		if err != nil {
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
		parts = append(parts, readingPart("feed "+c.Path, c.Database, feedDefinition(c)))
	}
	for i := range cfg.Queries {
		c := &cfg.Queries[i]
		parts = append(parts, readingPart("query "+c.Path, c.Database, queryDefinition(c)))
	}
	for i := range cfg.Streams {
		c := &cfg.Streams[i]
		name := "stream " + c.Path
		grants := func(ctx context.Context, _ grantDatabase, in tables) ([]database.Grant, error) {
			schema, err := stream.NewSchema(streamDefinition(c))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			return in.stream(schema).(grantor).Grants(ctx) // only SQLite's has none
		}
		parts = append(parts, grantPart{name, c.Database, grants})
	}
	if c := &cfg.Popups; c.Path != "" {
		grants := func(ctx context.Context, _ grantDatabase, in tables) ([]database.Grant, error) {
			return in.popups().(grantor).Grants(ctx) // only SQLite's have none
		}
		parts = append(parts, grantPart{"popups", c.Database, grants})
		if c.AttributesSQL != "" {
			parts = append(parts, readingPart("attributes_sql", c.Database, attributesDefinition(c)))
		}
		for _, list := range c.Lists {
			parts = append(parts, readingPart("lists."+list.Name, c.Database, listDefinition(list)))
		}
	}
	if cfg.Replica != "" { // roles are replicated
		parts = append(parts, grantPart{"replica", "", func(ctx context.Context, db grantDatabase, _ tables) ([]database.Grant, error) {
			return db.Grants(ctx)
		}})
	}
	return parts
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
	url, err := database.ParseAgain(address.Read)
	if err != nil {
		return exit.UsageError(err)
	}
	opened, in, err := openDatabase(ctx, url, cfg.Pool, slog.New(slog.DiscardHandler)) // errors are returned
	if err != nil {
		return err
	}
	db := opened.(grantDatabase) // all are, except SQLite's
	role, err := db.Role(ctx, name)
	var grants []database.Grant
	if err == nil {
		grants, err = collectGrants(ctx, db, in, parts)
	}
	if err = errors.Join(err, opened.Close()); err != nil {
		return fmt.Errorf("database %s: %w", url, err)
	}
	return writeGrants(w, role, database.MergeGrants(grants))
}

// collectGrants returns what the parts need.
func collectGrants(ctx context.Context, db grantDatabase, in tables, parts []grantPart) ([]database.Grant, error) {
	var grants []database.Grant
	for _, p := range parts {
		some, err := p.grants(ctx, db, in)
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
