package freight

import (
	"context"
	"io"
	"iter"
	"time"

	"spillway/internal/progress"
)

// table holds the rows of one table.
type table struct {
	name    string
	columns []string
	total   int
	lines   func() iter.Seq[chunk] // tabs between values, a newline after each row; no value has one, a quote or a backslash
}

const chunkSize = 64 << 10

// chunk is a run of encoded rows. Its bytes are valid until the next chunk.
type chunk struct {
	data []byte
	rows int
}

// chunks encodes rows into chunks.
func chunks[Row any](rows iter.Seq[Row], encode func([]byte, Row) []byte) iter.Seq[chunk] {
	return func(yield func(chunk) bool) {
		c := chunk{data: make([]byte, 0, chunkSize+1024)}
		for row := range rows {
			c.data = encode(c.data, row)
			c.rows++
			if len(c.data) < chunkSize {
				continue
			}
			if !yield(c) {
				return
			}
			c = chunk{data: c.data[:0]}
		}
		if c.rows > 0 {
			yield(c)
		}
	}
}

// tables returns the tables of the freight app that have rows.
func (g *Generator) tables() []table {
	return []table{
		{
			name: "users", columns: []string{"id", "nickname", "mobileno", "createtime"}, total: g.dataset.Users,
			lines: func() iter.Seq[chunk] { return chunks(g.Users(), lineOfUser) },
		},
		{
			name: "orders", columns: []string{"id", "createtime", "users_id", "goods_name"}, total: g.OrderCount(),
			lines: func() iter.Seq[chunk] { return chunks(g.Orders(), lineOfOrder) },
		},
	}
}

func lineOfUser(dst []byte, u User) []byte {
	dst = append(appendInt(dst, int64(u.ID)), '\t')
	dst = append(u.Mobile(dst), '\t')
	dst = append(u.Mobile(dst), '\t')
	return append(appendTime(dst, u.Created), '\n')
}

func lineOfOrder(dst []byte, o Order) []byte {
	dst = append(appendInt(dst, int64(o.ID)), '\t')
	dst = append(appendTime(dst, o.Created), '\t')
	dst = append(appendInt(dst, int64(o.UserID)), '\t')
	return append(append(dst, o.Goods[:]...), '\n')
}

func appendTime(dst []byte, unix int64) []byte {
	return time.Unix(unix, 0).UTC().AppendFormat(dst, time.DateTime)
}

// lineReader reads the lines of a table, up to a number of rows at a time. Use newLineReader.
type lineReader struct {
	ctx  context.Context
	next func() (chunk, bool)
	stop func()
	task *progress.Task
	rest []byte
	held int   // rows not yet read
	rows int64 // read so far
	most int64 // after which Read returns EOF
	end  bool
}

// newLineReader returns a reader that shows its progress. The caller must close it.
func newLineReader(ctx context.Context, t table, meter *progress.Meter) *lineReader {
	next, stop := iter.Pull(t.lines())
	return &lineReader{ctx: ctx, next: next, stop: stop, task: meter.Start(t.name, "rows", int64(t.total))}
}

// close ends the reader, with the error of the load.
func (r *lineReader) close(err error) {
	r.stop()
	r.task.End(err)
}

// done reports whether no row is left.
func (r *lineReader) done() bool {
	r.fetch()
	return r.end && len(r.rest) == 0
}

func (r *lineReader) fetch() {
	if len(r.rest) > 0 || r.end {
		return
	}
	c, ok := r.next()
	if !ok {
		r.end = true
		return
	}
	r.rest, r.held = c.data, c.rows
}

// Read fails once the context is done, so that no rows follow a cancel request.
func (r *lineReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if len(r.rest) == 0 && r.rows >= r.most {
		return 0, io.EOF
	}
	r.fetch()
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	r.rows += int64(r.held)
	r.task.Add(int64(r.held))
	r.held = 0
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
