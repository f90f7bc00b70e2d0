package target

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// rowsMax is the largest number of rows in a file of values. They are held in memory.
const rowsMax = 5_000_000

// source is the origin of a value.
type source uint8

const (
	fromText source = iota
	fromRandom
	fromSequence
	fromFile
	fromVariable
)

// Value is a value that changes with each request:
//
//	random(LOW,HIGH)   an integer between LOW and HIGH, inclusive
//	sequence           1, 2, 3, … across all connections
//	file:PATH:COLUMN   a column of a CSV file, row by row; COLUMN is a name in
//	                   the first line, or a number from 1 if the file has no
//	                   header line
//
// All columns of one file in one request come from the same row.
type Value struct {
	source    source
	text      string
	low, high int64
	rows      []string
	reserved  bool // in a path: keep reserved characters
	variable  int  // index in Source.Variables
	encode    bool // the variable is in a path
}

// ParseValue parses one of the forms of Value and reads its file. Other text is a
// constant.
func ParseValue(s string) (Value, error) {
	v, known, err := Scope{}.parseValue(s)
	if err != nil {
		return Value{}, err
	}
	if !known {
		return Value{text: s}, nil
	}
	return v, nil
}

// parseValue also reports whether text is a variable or has one of the forms of
// Value.
func (s Scope) parseValue(text string) (v Value, known bool, err error) {
	if index, found := s.Names[text]; found {
		return Value{source: fromVariable, variable: index}, true, nil
	}
	switch {
	case text == "sequence":
		return Value{source: fromSequence}, true, nil
	case strings.HasPrefix(text, "random(") && strings.HasSuffix(text, ")"):
		v, err = parseRandom(text[len("random(") : len(text)-1])
		return v, true, err
	case strings.HasPrefix(text, "file:"):
		v, err = s.readColumn(text[len("file:"):])
		return v, true, err
	}
	return Value{}, false, nil
}

func parseRandom(arguments string) (Value, error) {
	left, right, _ := strings.Cut(arguments, ",")
	low, errLow := strconv.ParseInt(strings.TrimSpace(left), 10, 64)
	high, errHigh := strconv.ParseInt(strings.TrimSpace(right), 10, 64)
	if errLow != nil || errHigh != nil || low > high || high-low < 0 {
		return Value{}, fmt.Errorf("random(%s): write random(LOW,HIGH) with two integers, the smaller first", arguments)
	}
	return Value{source: fromRandom, low: low, high: high}, nil
}

func (s Scope) readColumn(argument string) (Value, error) {
	cut := strings.LastIndexByte(argument, ':')
	if cut <= 0 || cut == len(argument)-1 {
		return Value{}, fmt.Errorf("file:%s: write file:PATH:COLUMN; COLUMN is a name or a number from 1", argument)
	}
	path, column := Within(s.Dir, argument[:cut]), argument[cut+1:]
	file, err := os.Open(path)
	if err != nil {
		return Value{}, fmt.Errorf("open file of values: %w", err)
	}
	defer file.Close()
	rows, err := parseColumn(file, column)
	if err != nil {
		return Value{}, fmt.Errorf("read %s: %w", path, err)
	}
	return Value{source: fromFile, rows: rows}, nil
}

// WithoutMark returns r without the byte order mark that spreadsheets write before a text in UTF-8. It would be a part of
// the first value or column.
func WithoutMark(r io.Reader) io.Reader {
	const mark = "\ufeff"
	buffered := bufio.NewReader(r)
	if start, err := buffered.Peek(len(mark)); err == nil && string(start) == mark {
		_, _ = buffered.Discard(len(mark)) // what was peeked is there
	}
	return buffered
}

// parseColumn returns one column of a CSV text.
func parseColumn(r io.Reader, column string) ([]string, error) {
	reader := csv.NewReader(WithoutMark(r))
	reader.FieldsPerRecord = -1
	index, err := strconv.Atoi(column)
	named := err != nil
	if !named && index < 1 {
		return nil, fmt.Errorf("column %s: columns are numbered from 1", column)
	}
	index--
	if named {
		header, err := reader.Read()
		if err != nil {
			return nil, fmt.Errorf("read the header line: %w", err)
		}
		if index = slices.Index(header, column); index < 0 {
			return nil, fmt.Errorf("no column %q; the header line has %s", column, strings.Join(header, ", "))
		}
	}
	var rows []string
	for {
		record, err := reader.Read()
		switch {
		case errors.Is(err, io.EOF) && len(rows) == 0:
			return nil, errors.New("the file has no rows")
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return nil, err
		case index >= len(record):
			line, _ := reader.FieldPos(0)
			return nil, fmt.Errorf("line %d has %d columns; column %d does not exist", line, len(record), index+1)
		case len(rows) == rowsMax:
			return nil, fmt.Errorf("more than %d rows", rowsMax)
		}
		rows = append(rows, record[index])
	}
}

// Source produces the values for the requests of one worker: its own random
// numbers, and a sequence shared with the other workers. It belongs to one
// goroutine.
type Source struct {
	Variables []string // values of the variables in a Scope

	random   *rand.Rand
	sequence *atomic.Int64
	part     Part
	number   int64 // of this request from 1; 0: not yet taken
}

// Part is one of several parts of a load, each made by a process of its own. The zero
// value is the whole load.
type Part struct {
	Number int // from 0
	Of     int
}

// Whole reports whether p is the whole load.
func (p Part) Whole() bool { return p.Of == 0 }

// Count is the number of parts, at least 1.
func (p Part) Count() int { return max(p.Of, 1) }

// Nth returns the number in the whole load of the n-th thing of this part, which takes
// every Count-th. Both count from 0.
func (p Part) Nth(n int64) int64 { return n*int64(p.Count()) + int64(p.Number) }

// Portion is this part's share of a whole number. The portions of all parts add up to
// it; those of the first parts are larger by one if it cannot be divided.
func (p Part) Portion(whole int64) int64 {
	n := int64(p.Count())
	if int64(p.Number) < whole%n {
		return whole/n + 1
	}
	return whole / n
}

// NewSource returns the source of worker number worker. The same seed repeats the
// values of a run, except for the order in which workers take the sequence.
func NewSource(seed uint64, worker int, sequence *atomic.Int64) *Source {
	return &Source{random: rand.New(rand.NewPCG(seed, uint64(worker)+1)), sequence: sequence}
}

// Next starts the next request: it takes the next number of the sequence.
func (s *Source) Next() { s.number = 0 }

// requestNumber returns this request's number in the sequence of the whole load.
func (s *Source) requestNumber() int64 {
	if s.number == 0 {
		s.number = s.part.Nth(s.sequence.Add(1)-1) + 1
	}
	return s.number
}

// integer returns v's next value if it is a number.
func (v *Value) integer(s *Source) (int64, bool) {
	switch v.source {
	case fromRandom:
		return v.low + int64(s.random.Uint64N(uint64(v.high-v.low)+1)), true
	case fromSequence:
		return s.requestNumber(), true
	}
	return 0, false
}

// string returns v's next value if it is text.
func (v *Value) string(s *Source) string {
	switch {
	case v.source == fromFile:
		return v.rows[(s.requestNumber()-1)%int64(len(v.rows))]
	case v.source == fromVariable && v.encode:
		return percentEncode(s.Variables[v.variable], v.reserved)
	case v.source == fromVariable:
		return s.Variables[v.variable]
	}
	return v.text
}

// append appends v's next value to b.
func (v *Value) append(b []byte, s *Source) []byte {
	if n, ok := v.integer(s); ok {
		return strconv.AppendInt(b, n, 10)
	}
	return append(b, v.string(s)...)
}
