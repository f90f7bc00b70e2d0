package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/serve/stream"
)

const (
	rowsMax   = 1000 // per statement of a stepwise batch
	singlyMax = 128  // rows inserted one by one in one round trip
)

// insertRows inserts rows of a batch, or of its Trial. It halves a part that the server
// refuses until one round trip can insert its rows one by one.
func (st *Stream) insertRows(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, rows []stream.Row) error {
	insert := func(rows []stream.Row) (*stream.RowRefusal, error) { return st.insertRange(ctx, conn, b, rows) }
	singly := func(rows []stream.Row) error { return st.insertSingly(ctx, conn, b, rows) }
	for part := range slices.Chunk(rows, rowsMax) {
		if err := b.Bisect(part, singlyMax, insert, singly); err != nil {
			return err
		}
	}
	return nil
}

// insertRange inserts all of the rows, or none.
func (st *Stream) insertRange(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, rows []stream.Row) (*stream.RowRefusal, error) {
	defer b.Progress()
	steps := []step{{st.savepoint, nil, nil}, {st.rows, encodeRows(st.schema.Columns(), rows), nil}, {st.release, nil, nil}}
	if st.notesFound(b) {
		steps[1].read = func(r *pgconn.Result) {
			if r.CommandTag.RowsAffected() != int64(len(rows)) {
				stream.NoteFound(rows)
			}
		}
	}
	descriptions, err := st.describe(ctx, conn, steps)
	if err != nil {
		return nil, err
	}
	if _, err = pipeline(ctx, conn, steps, descriptions); err == nil {
		return nil, nil
	}
	refused := refusalOf(err, b.Mark != nil)
	if refused != nil {
		err = exec(ctx, conn, "ROLLBACK TO SAVEPOINT part")
	}
	return refused, err
}

// notesFound reports whether rows that are not inserted must be noted.
func (st *Stream) notesFound(b *stream.Batch) bool { return b.Mark != nil && len(st.def.Key) > 0 }

// insertSingly inserts the rows one by one in one round trip. A new savepoint follows each
// stored row, and the transaction returns to the savepoint before each row, which undoes a
// failed one.
func (st *Stream) insertSingly(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, rows []stream.Row) error {
	statements := []step{{statement: st.rows}, {statement: st.release}, {statement: st.savepoint}, {statement: st.back}}
	descriptions, err := st.describe(ctx, conn, statements)
	if err != nil {
		return err
	}
	rowOf, release, savepoint, back := descriptions[0], descriptions[1], descriptions[2], descriptions[3]
	p := conn.StartPipeline(ctx)
	send(p, step{st.savepoint, nil, nil}, savepoint)
	p.SendPipelineSync()
	for i := range rows {
		send(p, step{st.back, nil, nil}, back)
		send(p, step{st.rows, encodeRows(st.schema.Columns(), rows[i:i+1]), nil}, rowOf)
		send(p, step{st.release, nil, nil}, release)
		send(p, step{st.savepoint, nil, nil}, savepoint)
		p.SendPipelineSync()
	}
	send(p, step{st.back, nil, nil}, back)
	send(p, step{st.release, nil, nil}, release)
	p.SendPipelineSync()
	err = p.Flush()
	if err == nil {
		err = st.takeSingly(p, b, rows)
	}
	closed := p.Close()
	var pgErr *pgconn.PgError
	if errors.As(closed, &pgErr) { // Close returns a refusal again
		closed = nil
	}
	return errors.Join(err, closed)
}

// takeSingly reads the outcome of each row.
func (st *Stream) takeSingly(p *pgconn.Pipeline, b *stream.Batch, rows []stream.Row) error {
	if _, err := untilSync(p); err != nil {
		return err
	}
	for i, r := range rows {
		inserted, err := untilSync(p)
		b.Progress()
		if err == nil && inserted == 0 && st.notesFound(b) {
			stream.NoteFound(rows[i : i+1])
		}
		if err != nil {
			refused := refusalOf(err, b.Mark != nil)
			if refused == nil {
				return err
			}
			refused.Row = r.Row
			r.Entry.Result.Refused = append(r.Entry.Result.Refused, *refused)
		}
	}
	_, err := untilSync(p)
	return err
}

// untilSync reads the results up to the next sync. It returns how many rows they have
// inserted, and the first refusal among them.
func untilSync(p *pgconn.Pipeline) (inserted int64, refused error) {
	for {
		results, err := p.GetResults()
		if reader, ok := results.(*pgconn.ResultReader); err == nil && ok {
			var tag pgconn.CommandTag
			tag, err = reader.Close()
			inserted += tag.RowsAffected()
		}
		var pgErr *pgconn.PgError
		switch {
		case err != nil && !errors.As(err, &pgErr):
			return 0, err
		case err != nil && refused == nil:
			refused = err
		case err != nil:
		case results == nil:
			return 0, errors.New("the pipeline ended early")
		}
		if _, ok := results.(*pgconn.PipelineSync); ok {
			return inserted, refused
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
	stream.Text:      {"text", pgtype.TextOID},
	stream.Boolean:   {"boolean", pgtype.BoolOID},
	stream.Timestamp: {"timestamptz", pgtype.TimestamptzOID},
	stream.JSON:      {"jsonb", pgtype.JSONBOID},
	stream.UUID:      {"uuid", pgtype.UUIDOID},
	stream.Decimal:   {"text[]::numeric", pgtype.TextOID}, // sent as text, and cast
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

// encodeRows returns one array per column.
func encodeRows(columns []stream.Column, rows []stream.Row) [][]byte {
	arrays := make([][]byte, len(columns))
	size := 0
	for _, r := range rows {
		if r.Row == 0 {
			size += r.Size()
		}
	}
	buffer := make([]byte, 0, size+len(columns)*(20+12*len(rows)))
	for i, c := range columns {
		start := len(buffer)
		buffer = appendColumn(buffer, i, c.Type, rows)
		arrays[i] = buffer[start:len(buffer):len(buffer)]
	}
	return arrays
}

func appendColumn(dst []byte, column int, t stream.Type, rows []stream.Row) []byte {
	dst = appendArrayHeader(dst, arrayTypes[t].oid, len(rows))
	for _, r := range rows {
		if r.Null(r.Row, column) {
			dst = appendNull(dst)
			continue
		}
		switch t {
		case stream.Integer:
			dst = appendInt64(dst, r.Integer(r.Row, column))
		case stream.Real:
			dst = appendInt64(dst, int64(math.Float64bits(r.Real(r.Row, column))))
		case stream.Timestamp:
			dst = appendInt64(dst, r.Microseconds(r.Row, column)-postgresEpoch)
		case stream.Boolean:
			dst = binary.BigEndian.AppendUint32(dst, 1)
			dst = append(dst, 0)
			if r.Boolean(r.Row, column) {
				dst[len(dst)-1] = 1
			}
		case stream.JSON:
			text := r.Bytes(r.Row, column)
			dst = binary.BigEndian.AppendUint32(dst, uint32(1+len(text)))
			dst = append(dst, 1) // jsonb's version
			dst = append(dst, text...)
		default:
			dst = appendElement(dst, r.Bytes(r.Row, column))
		}
	}
	return dst
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
