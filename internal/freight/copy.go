package freight

import (
	"context"
	"encoding/binary"
	"io"
	"iter"

	"spillway/internal/progress"
)

// PostgreSQL's binary COPY format: a header, then for each row the number of
// fields and for each field its length and its value in network byte order,
// then a trailer.
const (
	copyHeader    = "PGCOPY\n\xff\r\n\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"
	copyTrailer   = "\xff\xff"
	copyChunkSize = 64 << 10

	copyEpoch = 946_684_800 // 2000-01-01, where timestamps start, in Unix seconds
)

// chunk is a run of encoded rows. Its bytes are good until the next one.
type chunk struct {
	data []byte
	rows int
}

// chunks cuts what encode appends for each row into chunks.
func chunks[Row any](rows iter.Seq[Row], encode func([]byte, Row) []byte) iter.Seq[chunk] {
	return func(yield func(chunk) bool) {
		c := chunk{data: append(make([]byte, 0, copyChunkSize+1024), copyHeader...)}
		for row := range rows {
			c.data = encode(c.data, row)
			c.rows++
			if len(c.data) < copyChunkSize {
				continue
			}
			if !yield(c) {
				return
			}
			c = chunk{data: c.data[:0]}
		}
		c.data = append(c.data, copyTrailer...)
		yield(c)
	}
}

func (g *Generator) copyUsers() iter.Seq[chunk] {
	return chunks(g.Users(), func(dst []byte, u User) []byte {
		dst = binary.BigEndian.AppendUint16(dst, 4)
		dst = appendInt4(dst, u.ID)
		for range 2 { // nickname and mobileno
			at := len(dst)
			dst = u.Mobile(append(dst, 0, 0, 0, 0))
			binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
		}
		return appendTimestamp(dst, u.Created)
	})
}

func (g *Generator) copyOrders() iter.Seq[chunk] {
	return chunks(g.Orders(), func(dst []byte, o Order) []byte {
		dst = binary.BigEndian.AppendUint16(dst, 4)
		dst = appendInt4(dst, o.ID)
		dst = appendTimestamp(dst, o.Created)
		dst = appendInt4(dst, o.UserID)
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(o.Goods)))
		return append(dst, o.Goods[:]...)
	})
}

func appendInt4(dst []byte, i int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, 4)
	return binary.BigEndian.AppendUint32(dst, uint32(i))
}

func appendTimestamp(dst []byte, unix int64) []byte {
	dst = binary.BigEndian.AppendUint32(dst, 8)
	return binary.BigEndian.AppendUint64(dst, uint64((unix-copyEpoch)*1_000_000))
}

// copyRows sends the chunks as they are made. The server works on one chunk
// while the next is generated: the socket's buffers lie between them.
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

// Read fails as soon as the context is done, so that no more rows are sent
// behind a request to cancel.
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
