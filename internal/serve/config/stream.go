package config

import "time"

// Stream is one stream.
type Stream struct {
	Path          string        `yaml:"path" required:"true" doc:"starts with /; records are posted here"`
	Aliases       []string      `yaml:"aliases" doc:"further paths of the same stream"`
	Database      Address       `yaml:"database" doc:"empty: the top-level one"`
	Table         string        `yaml:"table" required:"true" doc:"NAME or SCHEMA.NAME; may have hyphens and blanks, as columns may"`
	Columns       Columns       `yaml:"columns" required:"true" doc:"NAME: TYPE or NAME: {type, required, default, min, max, max_length, claim, format, round}; integer, real, decimal, text, boolean, timestamp, json, uuid, date, time, bytes, or an array such as text[]"`
	Auth          string        `yaml:"auth" default:"key" enum:"key,jwt,any" doc:"what requests need: one of the top-level keys, if any (key), a JWT, or either (any)"`
	Unknown       string        `yaml:"unknown_params" default:"default" enum:"default,ignore,refuse" doc:"as in feeds"`
	Extra         string        `yaml:"extra" doc:"JSON column for other fields; empty: they are rejected"`
	Key           []string      `yaml:"key" doc:"columns with a unique index: a record whose values exist counts as stored; none: each record is stored"`
	KeyCollation  string        `yaml:"key_collation" default:"exact" enum:"exact,accept" doc:"whether a text column of key that takes ab, AB or äb as equal stops the start (exact), or only the first such record is stored (accept)"`
	SkippedRows   string        `yaml:"skipped_rows" default:"refuse" enum:"refuse,accept" doc:"whether a record that a trigger or a rule of the table drops is rejected (refuse), or counts as stored (accept)"`
	OrderBy       string        `yaml:"order_by" doc:"column; records with equal values in it are stored in the order of their requests"`
	Ack           string        `yaml:"ack" default:"database" enum:"database,spool,memory" doc:"answered when records are committed (database), fsynced to a local queue (spool) or queued in memory (memory)"`
	Fsync         string        `yaml:"fsync" default:"on" enum:"on,server,off" doc:"a commit waits for the disk if a session can ask for it (on), as the server is set (server), or for nothing (off)"`
	RecordsMax    int           `yaml:"records_max" default:"10000" range:"1..1000000" doc:"records per request" over:"413 'body-too-large'"`
	BodyBytes     int           `yaml:"body_bytes" default:"1048576" range:"2..1073741824" doc:"body before and after decompression; at most http.body_bytes" over:"413"`
	Timeout       time.Duration `yaml:"timeout" default:"30s" range:"10ms..10m" doc:"wait of a request for its answer" over:"504 'unknown-outcome'; the records stay queued"`
	Committers    int           `yaml:"committers" default:"2" range:"1..64" doc:"concurrent transactions; a database's streams share half of pool.max; 1 on SQLite" over:"records wait and share the next transaction"`
	BatchRows     int           `yaml:"batch_rows" default:"1000" range:"1..1000000" doc:"records per transaction, unless one request, or one group of the spool, has more" over:"split into several transactions; 'spillway_stream_batch_rows'"`
	BatchBytes    int           `yaml:"batch_bytes" default:"1048576" range:"1024..1073741824" doc:"bytes per transaction, in memory" over:"as batch_rows"`
	QueueRows     int           `yaml:"queue_rows" default:"100000" range:"1..100000000" doc:"records waiting for a transaction" over:"503, or 413 if one request is larger; 'spillway_stream_overloads_total'"`
	QueueBytes    int           `yaml:"queue_bytes" default:"67108864" range:"1024..68719476736" doc:"bytes waiting for a transaction, in memory" over:"as queue_rows"`
	WaitMax       time.Duration `yaml:"wait_max" default:"1s" range:"1ms..10m" doc:"predicted wait of a request" over:"503; 'spillway_stream_predicted_wait_seconds'"`
	CommitTimeout time.Duration `yaml:"commit_timeout" default:"5s" range:"10ms..10m" doc:"wait for the database to answer a statement" over:"retried; 'spillway_stream_retries_total'"`
	RetryFor      time.Duration `yaml:"retry_for" default:"10s" range:"0s..1h" doc:"time during which a failed transaction is retried" over:"503 'database-down', or 504 'unknown-outcome' after an unanswered COMMIT; 'spillway_stream_records_total{result=\"failed\"}'"`
	KeyTTL        time.Duration `yaml:"key_ttl" default:"24h" range:"1s..8760h" doc:"time that an Idempotency-Key is remembered" over:"the request is a new one"`
}

// Spool limits the local queue of streams.
type Spool struct {
	Bytes      int `yaml:"bytes" default:"1073741824" range:"1048576..1099511627776" doc:"size of the file, dead letters included" over:"503, nothing is dropped; 'spillway_spool_used_bytes'"`
	QueueBytes int `yaml:"queue_bytes" default:"67108864" range:"1024..68719476736" doc:"bytes waiting for the next fsync, in memory" over:"503"`
	GroupBytes int `yaml:"group_bytes" default:"1048576" range:"1024..1073741824" doc:"bytes per row of the file" over:"split into several rows"`

	MaxAge time.Duration `yaml:"max_age" default:"168h" range:"1s..8760h" doc:"time that a request with an Idempotency-Key may wait" over:"the records become dead letters in doubt"`
}

// Columns are a stream's columns in the file's order.
type Columns []Column

// Column is a column of a stream's table, and a record's field of the same name.
type Column struct {
	Name      string  `yaml:",key"`
	Type      string  `yaml:"type" short:"true"` // integer, real, decimal, text, boolean, timestamp, json, uuid, date, time, bytes, or text[] and so on
	Required  bool    `yaml:"required"`          // records without it, or with null, are rejected
	Default   Literal `yaml:"default"`           // for records without it; "now" is the time of the request
	Min       Literal `yaml:"min"`               // smallest value of an integer, a real, a decimal, a timestamp, a date or a time
	Max       Literal `yaml:"max"`               // largest value
	MaxLength int     `yaml:"max_length"`        // of a text, in characters; of json, in bytes; 0: none
	Claim     string  `yaml:"claim"`             // of the request's JWT, which the column gets; empty: records have the value
	Format    string  `yaml:"format"`            // of a timestamp, unix_ms: also numbers, milliseconds since 1970; empty: texts only
	Round     bool    `yaml:"round"`             // values that the table's column does not hold exactly are rounded, not rejected
}

// Literal is a number, a text, true or false, as written in the file.
type Literal struct {
	Text  string
	Given bool
}
