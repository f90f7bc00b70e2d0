package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/yaml"
)

// columnTypes are the column types of the stream engine.
const columnTypes = "integer,real,decimal,text,boolean,timestamp,json,uuid,date,time,bytes," +
	"integer[],real[],decimal[],text[],boolean[],timestamp[],uuid[],date[],time[],bytes[]"

// columnsMax is the maximum number of columns of a stream, without extra.
const columnsMax = 500

// minKey is the minimum length of a write key.
const minKey = 16

// OpenToOthers reports whether other hosts can reach the write paths without a key.
func (c Config) OpenToOthers() bool {
	return openToOthers(c.Listen) && len(c.Keys) == 0
}

// streams checks the streams and the write keys. A stream may share its path with a feed or a
// query: records are posted to it, pages are read from it.
func (v *validator) streams(c Config) {
	paths := c.ownPaths()
	for _, path := range []string{"/click", "/dismiss", "/convert"} {
		if c.Popups.Path != "" {
			paths[c.Popups.Path+path] = "popups.path"
		}
	}
	for i, s := range c.Streams {
		v.stream(yaml.Index("streams", i), s, c.HTTP, paths)
	}
	v.shares(c)
	v.bearerKeys("keys", c.Keys)
	if c.OpenToOthers() && slices.ContainsFunc(c.Streams, func(s Stream) bool { return s.Auth == "key" }) {
		v.add("keys", "must be given if other hosts can reach streams, as keys: [${NAME}]; "+
			"or listen on a loopback address such as 127.0.0.1:8080", "")
	}
}

// minShare is the minimum of a stream's share of the spool.
const minShare = 1 << 20

// SpoolShares returns the bytes of the spool that each stream with ack: spool may use, by its
// path: equal parts of spool.bytes.
func (c Config) SpoolShares() map[string]int64 {
	shares := make(map[string]int64)
	for _, s := range c.Streams {
		if s.Ack == "spool" {
			shares[s.Path] = 0
		}
	}
	for path := range shares {
		shares[path] = int64(c.Spool.Bytes / len(shares))
	}
	return shares
}

// shares checks that each stream has a share of the spool.
func (v *validator) shares(c Config) {
	if n := len(c.SpoolShares()); c.Spool.Bytes < n*minShare {
		v.add("spool.bytes", fmt.Sprintf("must be at least %d for each of the %d streams with ack: spool", minShare, n),
			strconv.Itoa(c.Spool.Bytes))
	}
}

// stream checks one stream. paths maps each path to the key that has it.
func (v *validator) stream(at string, s Stream, h HTTP, paths map[string]string) {
	v.paths(at, s.Path, s.Aliases, nil, paths)
	if schema, table, qualified := strings.Cut(s.Table, "."); !isQuoted(schema) || qualified && !isQuoted(table) {
		v.add(yaml.Join(at, "table"), "must be NAME or SCHEMA.NAME of a table: letters, digits, _, $, hyphens and blanks", s.Table)
	}
	v.columns(at, s)
	v.atLeast(yaml.Join(at, "queue_rows"), s.QueueRows, "batch_rows", s.BatchRows)
	v.atLeast(yaml.Join(at, "queue_rows"), s.QueueRows, "records_max", s.RecordsMax)
	v.atLeast(yaml.Join(at, "queue_bytes"), s.QueueBytes, "batch_bytes", s.BatchBytes)
	if s.BodyBytes > h.BodyBytes {
		v.add(yaml.Join(at, "body_bytes"), fmt.Sprintf("must not be larger than http.body_bytes, which is %d", h.BodyBytes),
			strconv.Itoa(s.BodyBytes))
	}
	if s.Timeout < s.CommitTimeout {
		v.add(yaml.Join(at, "timeout"), "must not be shorter than commit_timeout, which is "+s.CommitTimeout.String(), s.Timeout.String())
	}
}

func (v *validator) atLeast(path string, n int, other string, least int) {
	if n < least {
		v.add(path, fmt.Sprintf("must not be less than %s, which is %d", other, least), strconv.Itoa(n))
	}
}

// columns checks a stream's columns and the keys that name one. The stream engine checks
// defaults and bounds.
func (v *validator) columns(at string, s Stream) {
	path := yaml.Join(at, "columns")
	switch n := len(s.Columns); {
	case n == 0:
		v.add(path, "must name at least one column", "")
	case n > columnsMax:
		v.add(path, fmt.Sprintf("must name at most %d columns", columnsMax), strconv.Itoa(n))
	}
	var names []string
	for _, c := range s.Columns {
		names = append(names, c.Name)
		if !isQuoted(c.Name) {
			v.add(yaml.Join(path, yaml.Printable(c.Name)), "must be a name of letters, digits, _, $, hyphens and blanks", "")
		}
		if !slices.Contains(strings.Split(columnTypes, ","), c.Type) {
			v.add(yaml.Join(yaml.Join(path, yaml.Printable(c.Name)), "type"), "must be "+orList(columnTypes), c.Type)
		}
		if c.MaxLength < 0 {
			v.add(yaml.Join(yaml.Join(path, yaml.Printable(c.Name)), "max_length"), "must be at least 1", strconv.Itoa(c.MaxLength))
		}
	}
	if s.Extra != "" && (slices.Contains(names, s.Extra) || !isQuoted(s.Extra)) {
		v.add(yaml.Join(at, "extra"), "must name a column that is not in columns", s.Extra)
	}
	for i, name := range s.Key {
		at, column := yaml.Index(yaml.Join(at, "key"), i), slices.Index(names, name)
		if column < 0 || slices.Contains(s.Key[:i], name) {
			v.add(at, "must be one of columns, without repetition", name)
		} else if c := s.Columns[column]; !c.Required && !c.Default.Given && c.Claim == "" {
			v.add(at, "must be a column that is required or has a default or a claim", name)
		}
	}
	if s.OrderBy != "" && !slices.Contains(names, s.OrderBy) {
		v.add(yaml.Join(at, "order_by"), "must be one of columns", s.OrderBy)
	}
}
