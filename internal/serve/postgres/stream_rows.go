package postgres

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/serve/stream"
)

const (
	rowsMax   = 1000 // per statement of a stepwise batch
	singlyMax = 128  // rows inserted one by one in one round trip
)

// insertRange inserts all of the rows, or none.
func (s batchSession) insertRange(ctx context.Context, rows []stream.Row) (*stream.RowRefusal, error) {
	defer s.b.Progress()
	st := s.st
	for _, r := range rows {
		if reason := s.table.refuses(r); reason != "" {
			return &stream.RowRefusal{Reason: reason}, nil
		}
	}
	steps := []step{
		{st.savepoint, nil, nil},
		{s.table.rows, s.table.encode(rows), st.countSkipped(s.b, rows)},
		{st.release, nil, nil},
	}
	descriptions, err := st.describe(ctx, s.conn, steps)
	if err != nil {
		return nil, err
	}
	if _, err = pipeline(ctx, s.conn, steps, descriptions); err == nil {
		return nil, nil
	}
	refused := st.refusalOf(err, s.b.Mark != nil)
	if refused != nil {
		err = exec(ctx, s.conn, "ROLLBACK TO SAVEPOINT part")
	}
	return refused, err
}

// countSkipped returns what reads the result of an INSERT of rows, and notes those that were not
// inserted.
func (st *Stream) countSkipped(b *stream.Batch, rows []stream.Row) func(*pgconn.Result) {
	accept := st.def.SkippedRows == stream.SkippedAccept
	if !accept && (b.Mark == nil || len(st.def.Key) == 0) {
		return nil
	}
	return func(r *pgconn.Result) {
		missing := len(rows) - int(insertedBy(r))
		if missing > 0 && b.Mark != nil {
			stream.NoteFound(rows)
		}
		if accept {
			b.Skipped += missing
		}
	}
}

// insertSingly inserts the rows one by one in one round trip. A new savepoint follows each
// stored row, and the transaction returns to the savepoint before each row, which undoes a
// failed one.
func (s batchSession) insertSingly(ctx context.Context, rows []stream.Row) error {
	st, conn := s.st, s.conn
	reasons := make([]string, len(rows)) // why a row is not sent
	statements := []step{{statement: s.table.rows}, {statement: st.release}, {statement: st.savepoint}, {statement: st.back}}
	descriptions, err := st.describe(ctx, conn, statements)
	if err != nil {
		return err
	}
	rowOf, release, savepoint, back := descriptions[0], descriptions[1], descriptions[2], descriptions[3]
	p := conn.StartPipeline(ctx)
	sendNamed(p, step{st.savepoint, nil, nil}, savepoint)
	p.SendPipelineSync()
	for i := range rows {
		if reasons[i] = s.table.refuses(rows[i]); reasons[i] != "" {
			continue
		}
		sendNamed(p, step{st.back, nil, nil}, back)
		sendNamed(p, step{s.table.rows, s.table.encode(rows[i : i+1]), nil}, rowOf)
		sendNamed(p, step{st.release, nil, nil}, release)
		sendNamed(p, step{st.savepoint, nil, nil}, savepoint)
		p.SendPipelineSync()
	}
	sendNamed(p, step{st.back, nil, nil}, back)
	sendNamed(p, step{st.release, nil, nil}, release)
	p.SendPipelineSync()
	err = p.Flush()
	if err == nil {
		err = st.takeSingly(p, s.b, rows, reasons)
	}
	closed := p.Close()
	if _, ok := errors.AsType[*pgconn.PgError](closed); ok { // Close returns a refusal again
		closed = nil
	}
	return errors.Join(err, closed)
}

// takeSingly reads the outcome of each row, unless there is a reason why it was not sent.
func (st *Stream) takeSingly(p *pgconn.Pipeline, b *stream.Batch, rows []stream.Row, reasons []string) error {
	if err := untilSync(p, nil); err != nil {
		return err
	}
	for i, r := range rows {
		if reasons[i] != "" {
			r.Refuse(stream.RowRefusal{Reason: reasons[i]})
			continue
		}
		err := untilSync(p, st.countSkipped(b, rows[i:i+1]))
		b.Progress()
		if err != nil {
			refused := st.refusalOf(err, b.Mark != nil)
			if refused == nil {
				return err
			}
			r.Refuse(*refused)
		}
	}
	return untilSync(p, nil)
}

// untilSync reads the results up to the next sync, and gives that of an INSERT to read. It returns
// the first refusal among them.
func untilSync(p *pgconn.Pipeline, read func(*pgconn.Result)) (refused error) {
	for {
		results, err := p.GetResults()
		if reader, ok := results.(*pgconn.ResultReader); err == nil && ok {
			result := reader.Read()
			if err = result.Err; err == nil && read != nil && (len(result.Rows) > 0 || result.CommandTag.Insert()) {
				read(result)
			}
		}
		var pgErr *pgconn.PgError
		switch {
		case err != nil && !errors.As(err, &pgErr):
			return err
		case err != nil && refused == nil:
			refused = err
		case err != nil:
		case results == nil:
			return errors.New("the pipeline ended early")
		}
		if _, ok := results.(*pgconn.PipelineSync); ok {
			return refused
		}
	}
}

// arrayType is the type of the array that carries a column's values.
type arrayType struct {
	name string // of the element, in SQL
	oid  uint32 // of the element
}

var arrayTypes = map[stream.Type]arrayType{
	stream.Integer:   {"bigint", pgtype.Int8OID},
	stream.Real:      {"double precision", pgtype.Float8OID},
	stream.Boolean:   {"boolean", pgtype.BoolOID},
	stream.Timestamp: {"timestamptz", pgtype.TimestamptzOID},
	stream.UUID:      {"uuid", pgtype.UUIDOID},
	stream.Date:      {"date", pgtype.DateOID},
	stream.Time:      {"time", pgtype.TimeOID},
	stream.Bytes:     {"bytea", pgtype.ByteaOID},
}

// carrier returns the type that carries the values of a column. Texts carry those that have no
// type of their own. A column without a time zone gets UTC, whatever the session's zone is.
func (t *target) carrier() arrayType {
	switch own, ok := arrayTypes[t.column.Type]; {
	case t.base == "jsonb" && !t.array:
		return arrayType{"jsonb", pgtype.JSONBOID}
	case t.base == "timestamp" && !t.array:
		return arrayType{"timestamp", pgtype.TimestampOID}
	case ok && (t.base != "numeric" || t.column.Type != stream.Real):
		return own
	}
	return arrayType{"text", pgtype.TextOID}
}

// postgresEpoch is 2000-01-01 in microseconds since 1970.
const postgresEpoch = 946684800 * 1000000

// binaryFormat declares all parameters as binary.
var binaryFormat = []int16{1}

// appendArrayHeader starts an array of n elements in PostgreSQL's binary format.
func appendArrayHeader(dst []byte, oid uint32, n int) []byte {
	if n == 0 {
		dst = binary.BigEndian.AppendUint32(dst, 0) // dimensions
		dst = binary.BigEndian.AppendUint32(dst, 0)
		return binary.BigEndian.AppendUint32(dst, oid)
	}
	dst = binary.BigEndian.AppendUint32(dst, 1) // dimensions
	dst = binary.BigEndian.AppendUint32(dst, 1) // there may be NULLs
	dst = binary.BigEndian.AppendUint32(dst, oid)
	dst = binary.BigEndian.AppendUint32(dst, uint32(n))
	return binary.BigEndian.AppendUint32(dst, 1) // the first index
}

// appendElement appends an element of an array, as the functions behind it do.
func appendElement(dst, element []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(element)))
	return append(dst, element...)
}

func appendNull(dst []byte) []byte { return binary.BigEndian.AppendUint32(dst, math.MaxUint32) }

func appendInt16(dst []byte, n int16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(dst, 2), uint16(n))
}

func appendInt32(dst []byte, n int32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(dst, 4), uint32(n))
}

func appendInt64(dst []byte, n int64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(dst, 8), uint64(n))
}

// appendMoment appends a time; NULL for the zero time.
func appendMoment(dst []byte, t time.Time) []byte {
	if t.IsZero() {
		return appendNull(dst)
	}
	return appendInt64(dst, t.UnixMicro()-postgresEpoch)
}

// sinceEpoch returns a time since 2000, or what stands for the infinities.
func sinceEpoch(n, epoch, minus, plus int64) int64 {
	switch n {
	case stream.Infinity:
		return plus
	case stream.MinusInfinity:
		return minus
	}
	return n - epoch
}

// encode returns one array per column.
func (l layout) encode(rows []stream.Row) [][]byte {
	arrays := make([][]byte, len(l))
	size := 0
	for _, r := range rows {
		if r.Row == 0 {
			size += r.Size()
		}
	}
	buffer := make([]byte, 0, size+len(l)*(20+12*len(rows)))
	for i := range l {
		start := len(buffer)
		buffer = l[i].appendColumn(buffer, rows)
		arrays[i] = buffer[start:len(buffer):len(buffer)]
	}
	return arrays
}

func (t *target) appendColumn(dst []byte, rows []stream.Row) []byte {
	carrier := t.carrier()
	dst = appendArrayHeader(dst, carrier.oid, len(rows))
	for _, r := range rows {
		if r.Null(r.Row, t.index) {
			dst = appendNull(dst)
			continue
		}
		v := r.Value(r.Row, t.index)
		switch carrier.oid {
		case pgtype.Int8OID, pgtype.Float8OID, pgtype.TimeOID:
			dst = appendInt64(dst, v.N)
		case pgtype.TimestamptzOID, pgtype.TimestampOID:
			dst = appendInt64(dst, sinceEpoch(v.N, postgresEpoch, math.MinInt64, math.MaxInt64))
		case pgtype.DateOID:
			dst = appendInt32(dst, int32(sinceEpoch(v.N, postgresEpoch/(24*3600*1e6), math.MinInt32, math.MaxInt32)))
		case pgtype.BoolOID:
			dst = append(binary.BigEndian.AppendUint32(dst, 1), byte(v.N))
		case pgtype.JSONBOID:
			dst = binary.BigEndian.AppendUint32(dst, uint32(1+len(v.Bytes)))
			dst = append(dst, 1) // jsonb's version
			dst = append(dst, v.Bytes...)
		case pgtype.TextOID:
			dst = appendElement(dst, t.carried(v))
		default:
			dst = appendElement(dst, v.Bytes)
		}
	}
	return dst
}

// carried returns the text that carries a value.
func (t *target) carried(v stream.Value) []byte {
	switch {
	case t.array:
		a, _ := stream.ParseArray(t.element, v.Bytes) // refuses has checked it
		text, _ := t.appendLiteral(nil, a.Dimensions, a.Values)
		return text
	case t.column.Type == stream.Real:
		return t.text(v)
	case t.key && t.column.Type == stream.Decimal: // in a text, equal numbers have equal digits
		return stream.TrimDecimal(v.Bytes)
	}
	return v.Bytes
}

// appendLiteral appends a part of an array of these dimensions as the server reads it, and returns
// the values behind the part.
func (t *target) appendLiteral(dst []byte, dimensions []int, values []*stream.Value) ([]byte, []*stream.Value) {
	if len(dimensions) == 0 && len(values) > 0 {
		if values[0] == nil {
			return append(dst, "NULL"...), values[1:]
		}
		text := string(t.text(*values[0]))
		switch t.element {
		case stream.Bytes:
			text = `\x` + hex.EncodeToString(values[0].Bytes)
		case stream.Timestamp:
			if !t.isInfinite(*values[0]) {
				text = strings.Replace(text+"+00", " BC+00", "+00 BC", 1) // ignored without a time zone
			}
		}
		return append(dst, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text)+`"`...), values[1:]
	}
	dst = append(dst, '{')
	for i := 0; len(dimensions) > 0 && i < dimensions[0]; i++ {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst, values = t.appendLiteral(dst, dimensions[1:], values)
	}
	return append(dst, '}'), values
}

// encodeIDs returns an array of batch ids.
func encodeIDs(ids [][16]byte) []byte {
	dst := appendArrayHeader(nil, pgtype.UUIDOID, len(ids))
	for _, id := range ids {
		dst = appendElement(dst, id[:])
	}
	return dst
}

// insertKeys stores idempotency keys that have no row. All times are the server's, except that
// of the acceptance of a spooled request.
const insertKeys = "INSERT INTO spillway_requests (stream, request_key, fingerprint, outcome, accepted_at, expires_at) " +
	"SELECT $1::text, k.key, k.fingerprint, k.outcome, COALESCE(k.accepted, now()), now() + $2::bigint * interval '1 microsecond' " +
	"FROM unnest($3::bytea[], $4::bytea[], $5::bytea[], $6::timestamptz[]) AS k(key, fingerprint, outcome, accepted)"

// encodeKeys returns the arguments of insertKeys.
func (st *Stream) encodeKeys(b *stream.Batch, requests []*stream.Entry) ([][]byte, error) {
	n := len(requests)
	keys := appendArrayHeader(nil, pgtype.ByteaOID, n)
	fingerprints := appendArrayHeader(nil, pgtype.ByteaOID, n)
	outcomes := appendArrayHeader(nil, pgtype.ByteaOID, n)
	accepted := appendArrayHeader(nil, pgtype.TimestamptzOID, n)
	for _, e := range requests {
		outcome, err := e.OutcomeNow()
		if err != nil {
			return nil, err
		}
		keys = appendElement(keys, []byte(e.Key))
		fingerprints = appendElement(fingerprints, e.Fingerprint[:])
		outcomes = appendElement(outcomes, outcome)
		accepted = appendMoment(accepted, e.Accepted)
	}
	ttl := binary.BigEndian.AppendUint64(nil, uint64(b.KeyTTL.Microseconds()))
	return [][]byte{[]byte(*st.resolved.Load()), ttl, keys, fingerprints, outcomes, accepted}, nil
}
