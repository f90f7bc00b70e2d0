package app

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"spillway/internal/database"
	"spillway/internal/exit"
	"spillway/internal/plans"
	"spillway/internal/serve/config"
	"spillway/internal/serve/freight"
	"spillway/internal/serve/stream"
	"spillway/internal/yaml"
)

// BuiltIn returns the configuration without a file: the freight app.
func BuiltIn() config.Config {
	cfg := config.Default()
	f, d := config.DefaultFeed(), freight.DefaultFeed()
	f.Path, f.Aliases, f.SQL, f.Key = d.Path, d.Aliases, d.SQL, config.Keys{{Name: d.Key}}
	cfg.Feeds = []config.Feed{f}
	for _, d := range freight.DefaultStreams() {
		cfg.Streams = append(cfg.Streams, builtInStream(d))
	}
	cfg.Popups.Path, cfg.Popups.UserType, cfg.Popups.AttributesSQL = "/popup", "integer", freight.CampaignSQL
	for _, attribute := range freight.CampaignAttributes() {
		cfg.Popups.Attributes = append(cfg.Popups.Attributes, config.Param(attribute))
	}
	return cfg
}

func builtInStream(d freight.Stream) config.Stream {
	s := config.DefaultStream()
	s.Path, s.Table, s.OrderBy = d.Path, d.Table, d.OrderBy
	literal := func(text string) config.Literal { return config.Literal{Text: text, Given: text != ""} }
	for _, c := range d.Columns {
		s.Columns = append(s.Columns, config.Column{
			Name: c.Name, Type: c.Type, Required: c.Required, MaxLength: c.MaxLength,
			Default: literal(c.Default), Min: literal(c.Min), Max: literal(c.Max),
		})
	}
	return s
}

// LoadConfig reads and checks a configuration file. It opens no database. The error is an
// exit.UsageError, which wraps yaml.Errors if there are mistakes in the file.
func LoadConfig(path string) (config.Config, error) {
	cfg, err := config.Load(path, checkDatabases, checkStatements, checkStreams, checkPopups, checkAuth)
	if err != nil {
		return cfg, exit.UsageError(err)
	}
	return cfg, nil
}

// CheckConfig prints the mistakes in a configuration file to stderr, or "ok" to stdout.
func CheckConfig(path string, stdout, stderr io.Writer) error {
	_, err := LoadConfig(path)
	var mistakes yaml.Errors
	if errors.As(err, &mistakes) {
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
	cfg := BuiltIn()
	if path != "" {
		var err error
		if cfg, err = LoadConfig(path); err != nil {
			return err
		}
	}
	return cfg.Print(stdout)
}

// checkDatabases rejects invalid database addresses.
func checkDatabases(c config.Config) []config.Mistake {
	var found []config.Mistake
	check := func(path string, address config.Secret) {
		if address == "" {
			return
		}
		if _, err := database.Parse(address.Reveal()); err != nil {
			found = append(found, config.Mistake{Path: path, Rule: cause(err)})
		}
	}
	check("database", c.Database)
	check("replica", c.Replica)
	for i, f := range c.Feeds {
		check(fmt.Sprintf("feeds[%d].database", i), f.Database)
	}
	for i, s := range c.Streams {
		check(fmt.Sprintf("streams[%d].database", i), s.Database)
	}
	return found
}

// checkStatements rejects feeds whose statements cannot be parsed or whose parameters differ
// from params.
func checkStatements(c config.Config) []config.Mistake {
	var found []config.Mistake
	for i, f := range c.Feeds {
		path := fmt.Sprintf("feeds[%d]", i)
		url, err := database.Parse(cmp.Or(f.Database.Reveal(), c.Database.Reveal()))
		if err != nil {
			url = database.URL{} // checkDatabases reports it
		}
		if f.SQL == "" {
			continue // Validate reports it
		}
		statement, err := plans.ParseStatement(f.SQL, url.Driver.Dialect())
		if err != nil {
			found = append(found, config.Mistake{Path: path + ".sql", Rule: "cannot be parsed at " + err.Error()})
			continue
		}
		names := statement.Names()
		for _, name := range names {
			if !slices.ContainsFunc(f.Params, func(p config.Param) bool { return p.Name == name }) {
				found = append(found, config.Mistake{Path: path + ".sql", Rule: fmt.Sprintf("uses :%s, which is not in params; add %s: TYPE", name, name)})
			}
		}
		for _, p := range f.Params {
			if !slices.Contains(names, p.Name) {
				found = append(found, config.Mistake{Path: path + ".params." + p.Name, Rule: "is not used: sql does not contain :" + p.Name})
			}
		}
	}
	return found
}

// checkStreams rejects streams whose columns contradict each other.
func checkStreams(c config.Config) []config.Mistake {
	var found []config.Mistake
	for i := range c.Streams {
		s := &c.Streams[i]
		if s.Incomplete() {
			continue // Validate reports it
		}
		if _, err := stream.NewSchema(streamDefinition(s)); err != nil {
			found = append(found, config.Mistake{Path: fmt.Sprintf("streams[%d].columns", i), Rule: cause(err)})
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
