package flow

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"spillway/internal/lab/target"
)

// Bounds of a data file. Its rows are held in memory.
const (
	rowsMax  = 5_000_000
	bytesMax = 1 << 30
)

// order says which row an iteration gets.
type order uint8

const (
	inOrder order = iota // one after the other, across all users, and again from the start
	atRandom
	once // like inOrder; the run ends when the rows are used up
)

// dataset is the rows of a file. An iteration uses one row.
type dataset struct {
	file    string
	order   order
	columns []string
	first   int // variable of the first column; the others follow
	rows    [][]text
	part    target.Part
	next    atomic.Int64
}

// text is the value of a variable.
type text struct {
	text string
	json bool // the text is a JSON number, object or list, true, false or null
}

// row returns the row of the next iteration.
func (d *dataset) row(random *rand.Rand) []text {
	if d.order == atRandom {
		return d.rows[random.IntN(len(d.rows))]
	}
	return d.rows[d.part.Nth(d.next.Add(1)-1)%int64(len(d.rows))]
}

// read reads the rows: a JSON list of objects if the name ends in .json, otherwise
// CSV with a header line.
func (d *dataset) read(r io.Reader) error {
	r = io.LimitReader(r, bytesMax)
	read := d.readCSV
	if strings.EqualFold(filepath.Ext(d.file), ".json") {
		read = d.readJSON
	}
	if err := read(r); err != nil {
		return err
	}
	switch {
	case len(d.rows) == 0:
		return errors.New("it has no rows")
	case len(d.rows) > rowsMax:
		return fmt.Errorf("it has more than %d rows", rowsMax)
	}
	return nil
}

func (d *dataset) readCSV(r io.Reader) error {
	reader := csv.NewReader(target.WithoutMark(r))
	var err error
	if d.columns, err = reader.Read(); err != nil {
		return fmt.Errorf("read the header line: %w", err)
	}
	for len(d.rows) <= rowsMax {
		record, err := reader.Read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		row := make([]text, len(record))
		for i, field := range record {
			row[i].text = field
		}
		d.rows = append(d.rows, row)
	}
	return nil
}

func (d *dataset) readJSON(r io.Reader) error {
	decoder := json.NewDecoder(target.WithoutMark(r))
	if t, err := decoder.Token(); err != nil || t != json.Delim('[') {
		return errors.New("it is not a JSON list of objects")
	}
	for decoder.More() && len(d.rows) <= rowsMax {
		var object map[string]json.RawMessage
		if err := decoder.Decode(&object); err != nil {
			return fmt.Errorf("row %d: %w", len(d.rows)+1, err)
		}
		if d.columns == nil {
			d.columns = slices.Sorted(maps.Keys(object))
		}
		row := make([]text, len(d.columns))
		for i, column := range d.columns {
			raw, found := object[column]
			if !found {
				return fmt.Errorf("row %d: the first row has a field %q, and this one does not", len(d.rows)+1, column)
			}
			row[i] = textOf(raw)
		}
		d.rows = append(d.rows, row)
	}
	return nil
}

// textOf returns a JSON value as the value of a variable.
func textOf(raw json.RawMessage) text {
	var s string
	if len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &s) == nil {
		return text{text: s}
	}
	return text{text: string(raw), json: true}
}
