package target

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// rowsMax bounds the rows of a file of values; they are held in memory.
const rowsMax = 5_000_000

// source says where a value in a request comes from.
type source uint8

const (
	fromText source = iota
	fromRandom
	fromSequence
	fromFile
)

// Value is one value that changes from request to request:
//
//	random(LOW,HIGH)   a whole number, LOW and HIGH included
//	sequence           1, 2, 3, … over all connections
//	file:PATH:COLUMN   a column of a CSV file, its rows in turn; COLUMN is a
//	                   name of the first line, or a number from 1 when the
//	                   file has no line of names
//
// Columns of one file used in one request are of the same row.
type Value struct {
	source    source
	text      string
	low, high int64
	rows      []string
}

// ParseValue reads one of the forms above; other text is a constant. It reads
// the file that file: names.
func ParseValue(s string) (Value, error) {
	v, known, err := parseValue(s)
	if err != nil {
		return Value{}, err
	}
	if !known {
		return Value{text: s}, nil
	}
	return v, nil
}

// parseValue reports whether s has one of the forms of a changing value.
func parseValue(s string) (v Value, known bool, err error) {
	switch {
	case s == "sequence":
		return Value{source: fromSequence}, true, nil
	case strings.HasPrefix(s, "random(") && strings.HasSuffix(s, ")"):
		v, err = parseRandom(s[len("random(") : len(s)-1])
		return v, true, err
	case strings.HasPrefix(s, "file:"):
		v, err = readColumn(s[len("file:"):])
		return v, true, err
	}
	return Value{}, false, nil
}

func parseRandom(arguments string) (Value, error) {
	left, right, _ := strings.Cut(arguments, ",")
	low, errLow := strconv.ParseInt(strings.TrimSpace(left), 10, 64)
	high, errHigh := strconv.ParseInt(strings.TrimSpace(right), 10, 64)
	if errLow != nil || errHigh != nil || low > high || high-low < 0 {
		return Value{}, fmt.Errorf("random(%s): write random(LOW,HIGH) with two whole numbers, the smaller first", arguments)
	}
	return Value{source: fromRandom, low: low, high: high}, nil
}

func readColumn(argument string) (Value, error) {
	cut := strings.LastIndexByte(argument, ':')
	if cut <= 0 || cut == len(argument)-1 {
		return Value{}, fmt.Errorf("file:%s: write file:PATH:COLUMN, COLUMN being a name or a number from 1", argument)
	}
	path, column := argument[:cut], argument[cut+1:]
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

// parseColumn returns one column of a CSV text.
func parseColumn(r io.Reader, column string) ([]string, error) {
	reader := csv.NewReader(r)
	reader.FieldsPerRecord = -1
	index, err := strconv.Atoi(column)
	named := err != nil
	if !named && index < 1 {
		return nil, fmt.Errorf("column %s: columns are numbered from 1", column)
	}
	index--
	if named {
		if index, err = namedColumn(reader, column); err != nil {
			return nil, err
		}
	}
	var rows []string
	for {
		record, err := reader.Read()
		switch {
		case errors.Is(err, io.EOF) && len(rows) == 0:
			return nil, errors.New("it has no rows")
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return nil, err
		case index >= len(record):
			line, _ := reader.FieldPos(0)
			return nil, fmt.Errorf("line %d has %d columns, column %d is asked for", line, len(record), index+1)
		case len(rows) == rowsMax:
			return nil, fmt.Errorf("more than %d rows", rowsMax)
		}
		rows = append(rows, record[index])
	}
}

func namedColumn(reader *csv.Reader, name string) (int, error) {
	header, err := reader.Read()
	if err != nil {
		return 0, fmt.Errorf("read the line of names: %w", err)
	}
	for i, field := range header {
		if field == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no column %q; its first line names %s", name, strings.Join(header, ", "))
}

// Source gives the values of the requests of one worker: its own random
// numbers, and numbers in sequence that it shares with the other workers. It is
// for one goroutine.
type Source struct {
	random   *rand.Rand
	sequence *atomic.Int64
	number   int64 // of this request, 1, 2, …; 0 until it is asked for
}

// NewSource returns the source of worker. Sources with one seed and one
// sequence give a run the same values again, up to the order in which the
// workers take the sequence.
func NewSource(seed uint64, worker int, sequence *atomic.Int64) *Source {
	return &Source{random: rand.New(rand.NewPCG(seed, uint64(worker)+1)), sequence: sequence}
}

// next begins another request.
func (s *Source) next() { s.number = 0 }

// requestNumber returns the number of this request in the sequence.
func (s *Source) requestNumber() int64 {
	if s.number == 0 {
		s.number = s.sequence.Add(1)
	}
	return s.number
}

// integer returns v's next value when it is a number.
func (v *Value) integer(s *Source) (int64, bool) {
	switch v.source {
	case fromRandom:
		return v.low + int64(s.random.Uint64N(uint64(v.high-v.low)+1)), true
	case fromSequence:
		return s.requestNumber(), true
	}
	return 0, false
}

// string returns v's next value when it is text.
func (v *Value) string(s *Source) string {
	if v.source == fromFile {
		return v.rows[(s.requestNumber()-1)%int64(len(v.rows))]
	}
	return v.text
}

// append writes v's next value behind b.
func (v *Value) append(b []byte, s *Source) []byte {
	if n, ok := v.integer(s); ok {
		return strconv.AppendInt(b, n, 10)
	}
	return append(b, v.string(s)...)
}
