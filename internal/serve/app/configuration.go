package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/plans"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/serve/freight"
	"spillway/internal/serve/redis"
	"spillway/internal/yaml"
)

// BuiltIn returns the configuration without a file: the freight app.
func BuiltIn() config.Config {
	none := func(string) (string, bool) { return "", false }
	cfg, err := config.Read("the built-in configuration", freight.Configuration, none, nil)
	if err != nil {
		panic("bug: " + err.Error())
	}
	return cfg
}

// LoadConfig reads and checks a configuration file. It opens no database. The error is an
// exit.UsageError, which wraps yaml.Errors if there are mistakes in the file.
func LoadConfig(path string) (config.Config, error) { return load(path, config.Default(), false) }

// load is LoadConfig for a process that has started with these defaults. If partial, variables
// and files of secrets may be missing.
func load(path string, defaults config.Config, partial bool) (config.Config, error) {
	cfg, err := config.Load(path, defaults, partial, checks()...)
	return cfg, exit.UsageError(err)
}

// checks returns the rules that need more than the configuration.
func checks() []config.Check {
	return []config.Check{checkDatabases, checkStatements, checkStreams, checkPopups, checkAuth}
}

// configAt returns the configuration of a file, or another one if the path is empty.
func configAt(path string, other func() config.Config) (config.Config, error) {
	if path == "" {
		return other(), nil
	}
	return LoadConfig(path)
}

// CheckConfig prints the mistakes in a configuration file to stderr, or "ok" to stdout. With
// noEnv, variables and files of secrets may be missing.
func CheckConfig(path string, noEnv bool, stdout, stderr io.Writer) error {
	_, err := load(path, config.Default(), noEnv)
	if mistakes, ok := errors.AsType[yaml.Errors](err); ok {
		fmt.Fprintln(stderr, mistakes.Error())
		noun := "mistakes"
		if len(mistakes) == 1 {
			noun = "mistake"
		}
		return exit.UsageError(fmt.Errorf("%s: %d %s", path, len(mistakes), noun))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: ok\n", path)
	return err
}

// PrintConfig prints the effective configuration of a file, or the built-in one if path is
// empty.
func PrintConfig(path string, stdout io.Writer) error {
	cfg, err := configAt(path, BuiltIn)
	if err != nil {
		return err
	}
	return cfg.Print(stdout)
}

// ReloadConfig has the process at an admin listener reload its configuration file, and prints
// what came of it. The address and the token are those in the file at path, if it is not
// empty, unless address is given. If the process has changed nothing, the error is an
// exit.FailedError.
func ReloadConfig(ctx context.Context, path, address string, stdout io.Writer) error {
	cfg, err := configAt(path, config.Default)
	if err != nil {
		return err
	}
	refused, err := admin.Reload(ctx, cmp.Or(address, cfg.Admin.Listen), adminToken(cfg.Admin))
	if err != nil {
		return err
	}
	if refused != "" {
		return exit.FailedError(fmt.Errorf("nothing has changed: %s", refused))
	}
	_, err = fmt.Fprintln(stdout, "reloaded")
	return err
}

// CheckReady prints "ready" if the process at an admin listener is. The address is the one in the file at path, if it is not empty,
// unless address is given. Otherwise the error is an exit.FailedError with what is wrong.
func CheckReady(ctx context.Context, path, address string, stdout io.Writer) error {
	if address == "" {
		cfg, err := configAt(path, config.Default)
		if err != nil {
			return err
		}
		address = cfg.Admin.Listen
	}
	if err := admin.CheckReady(ctx, address); err != nil {
		return exit.FailedError(err)
	}
	_, err := fmt.Fprintln(stdout, "ready")
	return err
}

// checkDatabases rejects invalid addresses of databases and of Redis.
func checkDatabases(c config.Config) []config.Mistake {
	var found []config.Mistake
	check := func(path string, address config.Address) {
		if address == "" {
			return
		}
		url, err := database.ParseAgain(address.Read)
		if err == nil {
			err = url.Check()
		}
		if err != nil {
			found = append(found, config.Mistake{Path: path, Rule: cause(err)})
		}
	}
	check("database", c.Database)
	check("replica", c.Replica)
	check("popups.database", c.Popups.Database)
	for i, f := range c.Feeds {
		check(fmt.Sprintf("feeds[%d].database", i), f.Database)
	}
	for i, q := range c.Queries {
		check(fmt.Sprintf("queries[%d].database", i), q.Database)
	}
	for i, s := range c.Streams {
		check(fmt.Sprintf("streams[%d].database", i), s.Database)
	}
	if c.Redis != "" {
		if err := redis.Check(c.Redis.Read); err != nil {
			found = append(found, config.Mistake{Path: "redis", Rule: cause(err)})
		}
	}
	return found
}

// checkStatements rejects feeds and queries whose statements cannot be parsed or whose
// parameters differ from params, and feeds whose statements are ordered or limited.
func checkStatements(c config.Config) []config.Mistake {
	var found []config.Mistake
	check := func(path, sql string, params []string, address config.Address, isFeed bool) {
		statement, dialect, err := parseStatement(sql, params, address)
		if err != nil {
			found = append(found, config.Mistake{Path: path + ".sql", Rule: "cannot be parsed at " + err.Error()})
			return
		}
		if isFeed {
			if err := plans.CheckUnordered(sql, dialect); err != nil {
				found = append(found, config.Mistake{Path: path + ".sql", Rule: "is refused at " + err.Error()})
			}
		}
		found = append(found, checkParams(path, statement.Names(), params)...)
	}
	for i, f := range c.Feeds {
		check(fmt.Sprintf("feeds[%d]", i), f.SQL, f.Params.Names(), cmp.Or(f.Database, c.Database), true)
	}
	for i, q := range c.Queries {
		check(fmt.Sprintf("queries[%d]", i), q.SQL, q.Params.Names(), cmp.Or(q.Database, c.Database), false)
	}
	return found
}

// parseStatement parses a statement of the database at an address. It also returns the dialect
// in which it was read. If the address is missing, as it may come from a flag, or cannot be
// read, which checkDatabases reports, any dialect will do, but rather one in which the statement
// has these parameters.
func parseStatement(sql string, params []string, address config.Address) (statement plans.Statement, dialect plans.Dialect, err error) {
	dialects := []plans.Dialect{plans.Postgres, plans.MySQL, plans.SQLite}
	if url, err := database.Parse(address.Reveal()); err == nil {
		dialects = []plans.Dialect{url.Driver.Dialect()}
	}
	parsed := false
	for _, d := range dialects {
		s, failure := plans.ParseStatement(sql, d)
		if fits := failure == nil && len(checkParams("", s.Names(), params)) == 0; fits || !parsed {
			statement, dialect, err = s, d, failure
			if fits {
				break
			}
		}
		parsed = parsed || failure == nil
	}
	return statement, dialect, err
}

// checkParams compares the parameters of a statement with those that are declared.
func checkParams(path string, names, params []string) []config.Mistake {
	var found []config.Mistake
	for _, name := range names {
		if !slices.Contains(params, name) {
			found = append(found, config.Mistake{
				Path: path + ".sql",
				Rule: fmt.Sprintf("uses :%s, which is not in params; add %s: TYPE", name, name),
			})
		}
	}
	for _, name := range params {
		if !slices.Contains(names, name) {
			found = append(found, config.Mistake{Path: path + ".params." + name, Rule: "is not used: sql does not contain :" + name})
		}
	}
	return found
}

// checkStreams rejects columns of streams whose defaults or bounds are wrong.
func checkStreams(c config.Config) []config.Mistake {
	var found []config.Mistake
	for i := range c.Streams {
		for _, column := range streamDefinition(&c.Streams[i]).Columns {
			if err := column.Check(); err != nil {
				found = append(found, config.Mistake{
					Path: fmt.Sprintf("streams[%d].columns.%s", i, column.Name),
					Rule: fmt.Sprintf("column %s: %v", column.Name, err),
				})
			}
		}
	}
	return found
}

// cause returns the text of an error without the prefix that its outermost wrapping added.
func cause(err error) string {
	if inner := errors.Unwrap(err); inner != nil {
		return inner.Error()
	}
	return err.Error()
}
