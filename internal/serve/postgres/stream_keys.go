package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"spillway/internal/serve/stream"
)

// The statements that write idempotency keys. All times are the server's, except that of the
// acceptance of a spooled request.
const (
	insertKeys = "INSERT INTO spillway_requests (stream, key, fingerprint, outcome, accepted_at, expires_at) " +
		"SELECT $1::text, k.key, k.fingerprint, k.outcome, COALESCE(k.accepted, now()), now() + $2::bigint * interval '1 microsecond' " +
		"FROM unnest($3::text[], $4::bytea[], $5::bytea[], $6::timestamptz[]) AS k(key, fingerprint, outcome, accepted)"

	updateKey = "UPDATE spillway_requests SET fingerprint = $3::bytea, outcome = $4::bytea, accepted_at = $5::timestamptz, earlier = $6::text, " +
		"expires_at = greatest(expires_at, now() + $7::bigint * interval '1 microsecond') WHERE stream = $1::text AND key = $2::text"

	selectKeys = "SELECT key, fingerprint, outcome, accepted_at, earlier, now() FROM spillway_requests WHERE stream = $1::text AND key = ANY($2::text[])"

	// lockKeys also waits for other transactions that change the rows, and returns what they
	// have committed.
	lockKeys = selectKeys + " ORDER BY key FOR UPDATE"
)

// keyRow is the row of a key under which requests were stored, but none that is the same.
type keyRow struct {
	requests []stream.StoredKey // the newest first
	now      time.Time          // of the database
}

// storedKey returns what spillway_requests has for a key. A database that is not UTF-8 may be
// unable to hold the key itself.
func (st *Stream) storedKey(key string) string {
	if !st.tables.hashed.Load() {
		return key
	}
	for i := range len(key) {
		if key[i] >= 0x80 {
			sum := sha256.Sum256([]byte(key))
			return "sha256:" + hex.EncodeToString(sum[:])
		}
	}
	return key
}

// encodeKeys returns the arguments of insertKeys.
func (st *Stream) encodeKeys(b *stream.Batch, requests []*stream.Entry) ([][]byte, error) {
	n := len(requests)
	keys := appendArrayHeader(nil, pgtype.TextOID, n)
	fingerprints := appendArrayHeader(nil, pgtype.ByteaOID, n)
	outcomes := appendArrayHeader(nil, pgtype.ByteaOID, n)
	accepted := appendArrayHeader(nil, pgtype.TimestamptzOID, n)
	for _, e := range requests {
		outcome, err := e.OutcomeNow()
		if err != nil {
			return nil, err
		}
		keys = appendElement(keys, []byte(st.storedKey(e.Key)))
		fingerprints = appendElement(fingerprints, e.Fingerprint[:])
		outcomes = appendElement(outcomes, outcome)
		if e.Accepted.IsZero() {
			accepted = binary.BigEndian.AppendUint32(accepted, math.MaxUint32) // NULL
			continue
		}
		accepted = appendElement(accepted, encodeTime(e.Accepted))
	}
	return [][]byte{[]byte(st.def.Name), encodeMicroseconds(b.KeyTTL), keys, fingerprints, outcomes, accepted}, nil
}

func encodeMicroseconds(d time.Duration) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(d.Microseconds()))
}

// encodeTime returns a timestamptz in binary form.
func encodeTime(t time.Time) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(t.UnixMicro()-postgresEpoch))
}

func decodeTime(data []byte) (time.Time, error) {
	if len(data) != 8 {
		return time.Time{}, fmt.Errorf("read a timestamp of %d bytes", len(data))
	}
	return time.UnixMicro(int64(binary.BigEndian.Uint64(data)) + postgresEpoch), nil
}

// findKeys sets the results of the requests that were stored before. It returns the rows of
// the keys under which only other requests were, and locks them until the transaction ends.
func (st *Stream) findKeys(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch) (map[*stream.Entry]*keyRow, error) {
	others, err := st.readKeys(ctx, conn, b, selectKeys)
	if err != nil || len(others) == 0 {
		return nil, err
	}
	return st.readKeys(ctx, conn, b, lockKeys)
}

// readKeys does what findKeys does with one statement.
func (st *Stream) readKeys(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, sql string) (map[*stream.Entry]*keyRow, error) {
	keyed := b.Keyed(nil)
	if len(keyed) == 0 {
		return nil, nil
	}
	byKey := make(map[string]*stream.Entry, len(keyed))
	keys := appendArrayHeader(nil, pgtype.TextOID, len(keyed))
	for _, e := range keyed {
		key := st.storedKey(e.Key)
		byKey[key] = e
		keys = appendElement(keys, []byte(key))
	}
	found := conn.ExecParams(ctx, sql, [][]byte{[]byte(st.def.Name), keys}, nil, binaryFormat, binaryFormat).Read()
	if found.Err != nil {
		return nil, found.Err
	}
	others := make(map[*stream.Entry]*keyRow)
	for _, row := range found.Rows {
		k, err := readKey(row)
		if err != nil {
			return nil, fmt.Errorf("read spillway_requests: %w", err)
		}
		if e := byKey[string(row[0])]; !b.Judge(e, k.requests, k.now) {
			others[e] = k
		}
	}
	return others, nil
}

// readKey reads a row of selectKeys.
func readKey(row [][]byte) (*keyRow, error) {
	accepted, err := decodeTime(row[3])
	if err != nil {
		return nil, err
	}
	k := &keyRow{requests: []stream.StoredKey{{Accepted: accepted, Fingerprint: row[1], Outcome: row[2]}}}
	if k.now, err = decodeTime(row[5]); err != nil || row[4] == nil {
		return k, err
	}
	var earlier []stream.StoredKey
	if err := json.Unmarshal(row[4], &earlier); err != nil {
		return nil, err
	}
	k.requests = append(k.requests, earlier...)
	return k, nil
}

// storeKeys stores the requests that have a key. Rows are those that findKeys returned.
func (st *Stream) storeKeys(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, rows map[*stream.Entry]*keyRow) error {
	var fresh []*stream.Entry
	for _, e := range b.Keyed(nil) {
		row := rows[e]
		if row == nil {
			fresh = append(fresh, e)
			continue
		}
		if err := st.moveEarlier(ctx, conn, b, e, row); err != nil {
			return err
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	args, err := st.encodeKeys(b, fresh)
	if err != nil {
		return err
	}
	return st.run(ctx, conn, step{st.keys, args, nil})
}

// moveEarlier stores a request under a key that has a row: the request that was accepted
// last is in the row's columns, the others are in its column earlier.
func (st *Stream) moveEarlier(ctx context.Context, conn *pgconn.PgConn, b *stream.Batch, e *stream.Entry, row *keyRow) error {
	newest, earlier, err := b.AddKey(e, row.requests, row.now)
	if err != nil {
		return err
	}
	text, err := json.Marshal(earlier)
	if err != nil {
		return fmt.Errorf("encode earlier requests of a key: %w", err)
	}
	return st.run(ctx, conn, step{st.moveKey, [][]byte{
		[]byte(st.def.Name), []byte(st.storedKey(e.Key)), newest.Fingerprint, newest.Outcome, encodeTime(newest.Accepted), text, encodeMicroseconds(b.KeyTTL),
	}, nil})
}
