package sqlite

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"zombiezen.com/go/sqlite"

	"spillway/internal/serve/stream"
)

// pair is a stream.Pair, the columns that it is about, and how its values are bound.
type pair struct {
	stream.Pair
	affinities []affinity
	bind       binder
}

// binder binds a value, and returns false if the column does not hold it exactly.
type binder func(c *heldColumn, stmt *sqlite.Stmt, param int, v stream.Value) bool

// Affinities, as the documents name them.
const (
	wholes   = "INTEGER, BLOB, NUMERIC"
	likeText = "TEXT, BLOB"
	moments  = "TEXT, BLOB, NUMERIC"
)

// pairs are all pairs of types that are exact. A column's declared type matters only by its affinity.
var pairs = []pair{
	of(stream.Integer, wholes, "below 2^63", bindInteger, asInteger, asBound, asNumber),
	of(stream.Integer, "REAL", "up to 2^53", bindWhole, asReal),
	of(stream.Integer, "TEXT", "", bindText, asText),
	of(stream.Real, "INTEGER, REAL, BLOB, NUMERIC", "", bindReal, asReal, asInteger, asBound, asNumber),
	of(stream.Decimal, likeText, "", bindDigits, asText, asBound),
	of(stream.Decimal, "NUMERIC", "whole numbers of 64 bits, and those that a double holds", bindDecimal, asNumber),
	of(stream.Boolean, wholes, "", bindInteger, asInteger, asBound, asNumber),
	of(stream.Text, likeText, "", bindText, asText, asBound),
	of(stream.JSON, likeText, "", bindText, asText, asBound),
	{
		stream.Pair{Type: stream.JSON, Column: "JSON, JSONB", When: "other than numbers that neither an integer of 64 bits nor a double holds"},
		[]affinity{asNumber},
		bindJSON,
	},
	of(stream.Timestamp, moments, "", bindText, asText, asBound, asNumber),
	of(stream.Date, moments, "", bindText, asText, asBound, asNumber),
	of(stream.Time, moments, "", bindText, asText, asBound, asNumber),
	of(stream.UUID, moments, "", bindText, asText, asBound, asNumber),
	of(stream.Bytes, "BLOB", "", bindBytes, asBound),
}

// of returns a pair that can be in a key.
func of(t stream.Type, column, when string, bind binder, affinities ...affinity) pair {
	return pair{stream.Pair{Type: t, Column: column, When: when, Key: true}, affinities, bind}
}

// heldColumn is a column of the stream with that of its table.
type heldColumn struct {
	stream.Column
	declared  string // the column's type in the table
	affinity  affinity
	blobsOnly bool // it is a BLOB of a STRICT table
	isKey     bool
	bind      binder
}

// pair finds how values are bound. It returns an error if the column does not hold them exactly.
func (c *heldColumn) pair() error {
	var fits []stream.Pair
	wide := c.affinity == asNumber && kindOf(c.declared) == decimals && digitsOf(c.declared) > stream.RealDigits
	for _, p := range pairs {
		if !slices.Contains(p.affinities, c.affinity) || c.blobsOnly && p.Type != stream.Bytes || wide && p.Type == stream.Real ||
			p.Type == stream.JSON && c.affinity == asNumber && kindOf(c.declared) != document ||
			kindOf(c.declared) == boolean && (p.Type == stream.Real || p.Type == stream.Decimal) {
			continue
		}
		fits = append(fits, p.Pair)
		switch {
		case p.Type != c.Type:
			continue
		case c.isKey && !p.Key:
			return fmt.Errorf("key column %s is %s, where different values can be equal: make it TEXT", c.Name, c.declared)
		}
		c.bind = p.bind
		return nil
	}
	return errors.New(stream.Unfit(c.Column, c.declared, fits))
}

// accepts reports whether a column may have a value that few columns have. Feeds write true and false for
// columns declared as BOOLEAN only.
func (c *heldColumn) accepts(v stream.Value) bool {
	isFlag := kindOf(c.declared) == boolean
	infinite := c.Type == stream.Real && math.IsInf(v.Real(), 0)
	return (infinite || !c.Type.Special(v)) && (!v.Loose || isFlag == (c.Type == stream.Integer))
}

func bindInteger(_ *heldColumn, stmt *sqlite.Stmt, param int, v stream.Value) bool {
	stmt.BindInt64(param, v.N)
	return !v.Big
}

func bindWhole(_ *heldColumn, stmt *sqlite.Stmt, param int, v stream.Value) bool {
	stmt.BindInt64(param, v.N)
	return !v.Big && v.N >= -stream.WholeMax && v.N <= stream.WholeMax
}

func bindReal(_ *heldColumn, stmt *sqlite.Stmt, param int, v stream.Value) bool {
	stmt.BindFloat(param, v.Real())
	return true
}

func bindText(c *heldColumn, stmt *sqlite.Stmt, param int, v stream.Value) bool {
	if v.Bytes != nil && c.Type != stream.UUID {
		stmt.BindText(param, string(v.Bytes))
		return true
	}
	stmt.BindText(param, string(c.Type.AppendText(nil, v)))
	return true
}

func bindBytes(_ *heldColumn, stmt *sqlite.Stmt, param int, v stream.Value) bool {
	stmt.BindBytes(param, v.Bytes)
	return true
}

// bindDigits binds a decimal as text. In a key, equal numbers have equal texts.
func bindDigits(c *heldColumn, stmt *sqlite.Stmt, param int, v stream.Value) bool {
	digits := v.Bytes
	if c.isKey {
		digits = stream.TrimDecimal(digits)
	}
	stmt.BindText(param, string(digits))
	return true
}

// bindDecimal binds a decimal as an integer of 64 bits or as a double. A double holds a decimal if the
// shortest text that stands for the double is the decimal.
func bindDecimal(_ *heldColumn, stmt *sqlite.Stmt, param int, v stream.Value) bool {
	short := string(stream.TrimDecimal(v.Bytes))
	if n, err := strconv.ParseInt(short, 10, 64); err == nil {
		stmt.BindInt64(param, n)
		return true
	}
	x, err := strconv.ParseFloat(short, 64)
	stmt.BindFloat(param, x)
	return err == nil && strconv.FormatFloat(x, 'f', -1, 64) == short
}

// bindJSON binds JSON where SQLite stores text that looks like a number as that number.
func bindJSON(c *heldColumn, stmt *sqlite.Stmt, param int, v stream.Value) bool {
	if first := v.Bytes[0]; first != '-' && (first < '0' || first > '9') {
		return bindText(c, stmt, param, v)
	}
	number, ok := stream.Decimal.ParseValue(v.Bytes)
	return ok && bindDecimal(c, stmt, param, number)
}
