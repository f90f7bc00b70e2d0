package freight

import (
	"encoding/binary"
	"iter"

	"zombiezen.com/go/sqlite"
)

// table holds the rows of one table, in the fastest format of each database.
type table struct {
	name    string
	columns []string
	total   int
	copied  func() iter.Seq[chunk]                // in PostgreSQL's binary COPY format
	lines   func() iter.Seq[chunk]                // tabs between values, a newline after each row
	bound   func(*sqlite.Stmt) iter.Seq[struct{}] // each row bound to an INSERT
}

const chunkSize = 64 << 10

// chunk is a run of encoded rows. Its bytes are valid until the next chunk.
type chunk struct {
	data []byte
	rows int
}

// chunks encodes rows into chunks.
func chunks[Row any](rows iter.Seq[Row], encode func([]byte, Row) []byte, header, trailer string) iter.Seq[chunk] {
	return func(yield func(chunk) bool) {
		c := chunk{data: append(make([]byte, 0, chunkSize+1024), header...)}
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
		c.data = append(c.data, trailer...)
		if len(c.data) > 0 {
			yield(c)
		}
	}
}

// bind turns rows into the rows of an INSERT.
func bind[Row any](rows iter.Seq[Row], set func(Row)) iter.Seq[struct{}] {
	return func(yield func(struct{}) bool) {
		for row := range rows {
			set(row)
			if !yield(struct{}{}) {
				return
			}
		}
	}
}

// tables returns the tables of the freight app.
func (g *Generator) tables() []table {
	return []table{
		{
			name: "users", columns: []string{"id", "nickname", "mobileno", "createtime"}, total: g.dataset.Users,
			copied: func() iter.Seq[chunk] { return chunks(g.Users(), copyUser, copyHeader, copyTrailer) },
			lines:  func() iter.Seq[chunk] { return chunks(g.Users(), lineOfUser, "", "") },
			bound:  g.bindUsers,
		},
		{
			name: "orders", columns: []string{"id", "createtime", "users_id", "goods_name"}, total: g.OrderCount(),
			copied: func() iter.Seq[chunk] { return chunks(g.Orders(), copyOrder, copyHeader, copyTrailer) },
			lines:  func() iter.Seq[chunk] { return chunks(g.Orders(), lineOfOrder, "", "") },
			bound:  g.bindOrders,
		},
	}
}

func copyUser(dst []byte, u User) []byte {
	dst = binary.BigEndian.AppendUint16(dst, 4)
	dst = appendInt4(dst, u.ID)
	for range 2 { // nickname and mobileno
		at := len(dst)
		dst = u.Mobile(append(dst, 0, 0, 0, 0))
		binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	}
	return appendTimestamp(dst, u.Created)
}

func copyOrder(dst []byte, o Order) []byte {
	dst = binary.BigEndian.AppendUint16(dst, 4)
	dst = appendInt4(dst, o.ID)
	dst = appendTimestamp(dst, o.Created)
	dst = appendInt4(dst, o.UserID)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(o.Goods)))
	return append(dst, o.Goods[:]...)
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

func (g *Generator) bindUsers(stmt *sqlite.Stmt) iter.Seq[struct{}] {
	var buffer []byte
	return bind(g.Users(), func(u User) {
		buffer = u.Mobile(buffer[:0])
		stmt.BindInt64(1, int64(u.ID))
		stmt.BindText(2, string(buffer))
		stmt.BindText(3, string(buffer))
		stmt.BindText(4, timeText(u.Created))
	})
}

func (g *Generator) bindOrders(stmt *sqlite.Stmt) iter.Seq[struct{}] {
	return bind(g.Orders(), func(o Order) {
		stmt.BindInt64(1, int64(o.ID))
		stmt.BindText(2, timeText(o.Created))
		stmt.BindInt64(3, int64(o.UserID))
		stmt.BindText(4, string(o.Goods[:]))
	})
}
