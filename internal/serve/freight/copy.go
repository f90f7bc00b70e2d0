package freight

import (
	"context"
	"encoding/binary"
	"io"
	"iter"

	"spillway/internal/progress"
)

// PostgreSQL's binary COPY format: a header; for each row the number of fields and for
// each field its length and value in network byte order; a trailer.
const (
	copyHeader  = "PGCOPY\n\xff\r\n\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"
	copyTrailer = "\xff\xff"

	copyEpoch = 946_684_800 // 2000-01-01, where timestamps start, in Unix seconds
)

func appendInt4(dst []byte, i int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, 4)
	return binary.BigEndian.AppendUint32(dst, uint32(i))
}

func appendTimestamp(dst []byte, unix int64) []byte {
	dst = binary.BigEndian.AppendUint32(dst, 8)
	return binary.BigEndian.AppendUint64(dst, uint64((unix-copyEpoch)*1_000_000))
}

func appendInt8(dst []byte, i int64) []byte {
	dst = binary.BigEndian.AppendUint32(dst, 8)
	return binary.BigEndian.AppendUint64(dst, uint64(i))
}

func appendText(dst []byte, text string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(text)))
	return append(dst, text...)
}

// copyRows sends the chunks as they are generated. The server processes one chunk while
// the next is generated.
func (tx postgresTx) copyRows(ctx context.Context, sql string, rows func() iter.Seq[chunk], task *progress.Task) (err error) {
	defer func() { task.End(err) }()
	next, stop := iter.Pull(rows())
	defer stop()
	_, err = tx.conn.CopyFrom(ctx, &copyReader{ctx: ctx, next: next, task: task}, sql)
	return err
}

// copyReader reads chunks.
type copyReader struct {
	ctx  context.Context
	next func() (chunk, bool)
	task *progress.Task
	rest []byte
}

// Read fails once the context is done, so that no rows follow a cancel request.
func (r *copyReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if len(r.rest) == 0 {
		c, ok := r.next()
		if !ok {
			return 0, io.EOF
		}
		r.rest = c.data
		r.task.Add(int64(c.rows))
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
