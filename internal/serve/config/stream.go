package config

import (
	"reflect"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Stream is one stream.
type Stream struct {
	Path          string        `yaml:"path" doc:"path that records are posted to, starts with /"`
	Aliases       []string      `yaml:"aliases" doc:"further paths of the same stream"`
	Database      Secret        `yaml:"database" doc:"the stream's own database; empty: the top-level one"`
	Table         string        `yaml:"table" doc:"table that takes the records, NAME or SCHEMA.NAME"`
	Columns       Columns       `yaml:"columns" doc:"columns that records fill, NAME: TYPE or NAME: {type, required, default, min, max, max_length}; the types are integer, real, text, boolean, timestamp, json and uuid"`
	Extra         string        `yaml:"extra" doc:"json column that keeps a record's other fields as one object; empty: a record with other fields is refused"`
	Key           []string      `yaml:"key" doc:"columns with a unique index: a record whose values are there already counts as stored; none: each is stored"`
	OrderBy       string        `yaml:"order_by" doc:"column: records with equal values in it are stored in the order of their requests; empty: in any order"`
	Ack           string        `yaml:"ack" enum:"database,spool,memory" doc:"when a request is answered; database: committed there; spool: fsynced to a local queue; memory: queued, lost with the process"`
	Fsync         string        `yaml:"fsync" enum:"on,server,off" doc:"what a commit waits for; on: the disk, where a session can ask for it; server: as the server is set; off: nothing"`
	RecordsMax    int           `yaml:"records_max" range:"1..1000000" doc:"records of one request"`
	BodyBytes     int           `yaml:"body_bytes" range:"2..1073741824" doc:"body of one request, before and after decompression; at most http.body_bytes"`
	Timeout       time.Duration `yaml:"timeout" range:"10ms..10m" doc:"a request waits at most so long for its answer; its records stay queued"`
	Committers    int           `yaml:"committers" range:"1..64" doc:"transactions under way at once, each on a connection of the pool; the streams of a database share half of pool.max, and on SQLite it is 1"`
	BatchRows     int           `yaml:"batch_rows" range:"1..1000000" doc:"records of one transaction, unless one request has more"`
	BatchBytes    int           `yaml:"batch_bytes" range:"1024..1073741824" doc:"and their bytes in memory"`
	QueueRows     int           `yaml:"queue_rows" range:"1..100000000" doc:"records that wait for a transaction"`
	QueueBytes    int           `yaml:"queue_bytes" range:"1024..68719476736" doc:"and their bytes in memory"`
	WaitMax       time.Duration `yaml:"wait_max" range:"1ms..10m" doc:"a request that would wait longer than this is refused at once"`
	CommitTimeout time.Duration `yaml:"commit_timeout" range:"10ms..10m" doc:"the database answers a statement of a batch within it"`
	RetryFor      time.Duration `yaml:"retry_for" range:"0s..1h" doc:"a transaction that the database breaks off is tried again for so long"`
	KeyTTL        time.Duration `yaml:"key_ttl" range:"1s..8760h" doc:"an Idempotency-Key is remembered for so long"`
}

// Spool bounds the local queue.
type Spool struct {
	Bytes      int `yaml:"bytes" range:"1048576..1099511627776" doc:"of the file, with what the database has refused"`
	QueueBytes int `yaml:"queue_bytes" range:"1024..68719476736" doc:"of the records that wait for the next fsync, in memory"`
	GroupBytes int `yaml:"group_bytes" range:"1024..1073741824" doc:"of the records that become one row of the file"`
}

// DefaultStream returns what a stream's block leaves out. Path, Table and Columns
// have no default.
func DefaultStream() Stream {
	return Stream{
		Ack:           "database",
		Fsync:         "on",
		RecordsMax:    10_000,
		BodyBytes:     1 << 20,
		Timeout:       30 * time.Second,
		Committers:    2,
		BatchRows:     1000,
		BatchBytes:    1 << 20,
		QueueRows:     100_000,
		QueueBytes:    64 << 20,
		WaitMax:       time.Second,
		CommitTimeout: 5 * time.Second,
		RetryFor:      10 * time.Second,
		KeyTTL:        24 * time.Hour,
	}
}

// Columns are a stream's columns in the order of the file.
type Columns []Column

// Column is one column of a stream's table, and the field of that name in a record.
type Column struct {
	Name      string
	Type      string  `yaml:"type"`       // integer, real, text, boolean, timestamp, json or uuid
	Required  bool    `yaml:"required"`   // a record without it, or with null, is refused
	Default   Literal `yaml:"default"`    // of a record without it; "now" for a timestamp: the request's time
	Min       Literal `yaml:"min"`        // least value of an integer, a real or a timestamp
	Max       Literal `yaml:"max"`        // and the largest
	MaxLength int     `yaml:"max_length"` // of a text, in characters; of json, in bytes; 0: none
}

// Literal is a value as the file writes it: a number, a text, true or false.
type Literal struct {
	Text  string
	Given bool
}

// columns sets a stream's columns from a mapping of names to types or blocks.
func (d *decoder) columns(path string, node ast.Node, v reflect.Value) {
	var columns Columns
	for _, pair := range d.pairs(path, node) {
		at := join(path, printable(pair.key))
		column := Column{Name: pair.key}
		if _, isScalar := scalarText(pair.value); isScalar {
			column.Type, _ = d.string(at, pair.value)
		} else if d.readable(at, pair.value) {
			d.note(at, pair.value)
			d.column(at, pair.value, &column)
		}
		columns = append(columns, column)
	}
	v.Set(reflect.ValueOf(columns))
}

// column sets one column from its block.
func (d *decoder) column(path string, node ast.Node, column *Column) {
	v := reflect.ValueOf(column).Elem()
	for _, pair := range d.pairs(path, node) {
		at := join(path, printable(pair.key))
		i := fieldByKey(v.Type(), pair.key)
		if pair.key == "" || i < 0 {
			d.fail(pair.node, at, "unknown key; the keys here are type, required, default, min, max, max_length")
			continue
		}
		literal, ok := v.Field(i).Addr().Interface().(*Literal)
		if !ok {
			d.decode(at, pair.value, v.Field(i))
			continue
		}
		if d.readable(at, pair.value) {
			d.note(at, pair.value)
			literal.Text, _, literal.Given = d.text(at, pair.value)
		}
	}
}
