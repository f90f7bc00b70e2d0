package freight

import (
	"iter"
	"time"
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
