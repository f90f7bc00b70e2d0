// Package sheet is how the lab writes results for people: a sheet of facts, tables and notes that is printed as text, as Markdown or on
// a page, and the one spelling of numbers in all of them.
//
// A number has three significant digits without trailing zeros. From 100 on it is whole, with thousands separators. A blank stands
// between a number and its unit, and none before "/s". A quantity has one unit for each magnitude: times from ns to h, with minutes from
// 180 s and hours from 120 min on, and sizes from B to PiB in steps of 1,024. Shares are in percent, with "< 0.001 %" and "> 99.9 %" if
// they are nearly nothing or all. A lower bound begins with ">= " and is rounded down, an upper bound begins with "< " and is rounded up.
// Numbers that belong together, as a median and its range, share the unit of the first.
//
// A larger value never reads as a smaller one, and a text that is read as a number and written again is the same text.
//
// Names, addresses, limits and settings are written as they were typed: "p99<70ms", "local ports 32768-60999".
package sheet

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Sheet is one report. What is empty is left out, in a Section as well.
type Sheet struct {
	Title    string   // what was measured
	Verdict  string   // the answer in a sentence
	Caveat   string   // what limits it
	Findings []string // sentences that it rests on
	Facts    []Fact
	Sections []Section
}

// A Section is a part of a sheet.
type Section struct {
	Title  string
	Nested bool     // a part of the section before
	Text   []string // sentences above the table
	Facts  []Fact
	Table  *Table
	Lines  []string // remarks below the table
	Note   string   // explains the words of the section
	Folded bool     // collapsed on a page
}

// A Fact is a value with its name.
type Fact struct {
	Name, Value string
	More        []string // sentences about it
}

// A Table has rows of text.
type Table struct {
	Heads []string
	Rows  [][]string
	Left  []int    // columns that are aligned left; the others are aligned right
	Marks []string // of rows, for a page: "", "missed" or "doubtful"
}

// Add adds a row with its mark.
func (t *Table) Add(mark string, cells ...string) {
	t.Rows, t.Marks = append(t.Rows, cells), append(t.Marks, mark)
}

// Words reports whether the last column is text.
func (t *Table) Words() bool { return t.left(len(t.Heads) - 1) }

func (t *Table) left(column int) bool { return slices.Contains(t.Left, column) }

// Printable replaces control characters by spaces, because a result file may contain terminal escapes.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, text)
}

// WriteJSON writes a document with indentation.
func WriteJSON(w io.Writer, document any) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false) // keep "p99<70ms" readable
	if err := out.Encode(document); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}
