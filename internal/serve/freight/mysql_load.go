package freight

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/progress"
)

// Rows per statement. Each statement is a transaction; a long one would take long to undo.
const (
	rowsPerLoad   = 200_000
	rowsPerInsert = 2_000
)

// load uses LOAD DATA LOCAL if the server allows it, otherwise INSERTs of many rows.
func (tx *mysqlTx) load(ctx context.Context, t table, meter *progress.Meter) (err error) {
	task := meter.Start(t.name, "rows", int64(t.total))
	defer func() { task.End(err) }()
	next, stop := iter.Pull(t.lines())
	defer stop()
	source := &lineReader{ctx: ctx, next: next, task: task}
	into := fmt.Sprintf("%s%s (%s)", newPrefix, t.name, strings.Join(t.columns, ", "))
	if tx.local {
		return tx.loadLocal(ctx, into, source)
	}
	return tx.insert(ctx, into, source)
}

func (tx *mysqlTx) loadLocal(ctx context.Context, into string, source *lineReader) error {
	name := fmt.Sprintf("spillway-%p", tx) // of the readers in this process
	mysql.RegisterReaderHandler(name, func() io.Reader { return source })
	defer mysql.DeregisterReaderHandler(name)
	columns := strings.Index(into, " (")
	sql := fmt.Sprintf("LOAD DATA LOCAL INFILE 'Reader::%s' INTO TABLE %s CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\\t' ESCAPED BY '' "+
		"LINES TERMINATED BY '\\n'%s", name, into[:columns], into[columns:])
	sql = strings.NewReplacer(`'\t'`, "0x09", `'\n'`, "0x0A").Replace(sql) // a backslash is a character
	for !source.done() {
		sent := source.rows
		source.most = sent + rowsPerLoad
		loaded, err := tx.execCount(ctx, sql)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		// With LOCAL the server reports errors as warnings.
		if sent = source.rows - sent; loaded != sent {
			return fmt.Errorf("the server stored %d of %d rows", loaded, sent)
		}
	}
	return nil
}

// execCount runs a statement and returns how many rows it wrote.
func (tx *mysqlTx) execCount(ctx context.Context, sql string) (int64, error) {
	execer, ok := tx.session.Conn.(driver.ExecerContext)
	if !ok {
		return 0, errors.New("the driver's connections cannot run statements")
	}
	result, err := execer.ExecContext(ctx, sql, nil)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// insert loads lines by INSERTs. The values contain neither quotes nor backslashes.
func (tx *mysqlTx) insert(ctx context.Context, into string, source *lineReader) error {
	for !source.done() {
		source.most = source.rows + rowsPerInsert
		text, err := io.ReadAll(source)
		if err != nil {
			return err
		}
		for lines := strings.TrimSuffix(string(text), "\n"); lines != ""; {
			var some string
			some, lines = cutLines(lines, rowsPerInsert)
			values := strings.NewReplacer("\t", "','", "\n", "'),('").Replace(some)
			if err := tx.exec(ctx, "INSERT INTO "+into+" VALUES ('"+values+"')"); err != nil {
				return err
			}
		}
	}
	return nil
}

// cutLines returns the first n lines and the rest.
func cutLines(text string, n int) (first, rest string) {
	end := 0
	for range n {
		i := strings.IndexByte(text[end:], '\n')
		if i < 0 {
			return text, ""
		}
		end += i + 1
	}
	return text[:end-1], text[end:]
}

// lineReader reads chunks of lines, up to a number of rows at a time.
type lineReader struct {
	ctx  context.Context
	next func() (chunk, bool)
	task *progress.Task
	rest []byte
	held int   // rows not yet read
	rows int64 // read so far
	most int64 // after which Read returns EOF
	end  bool
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

// Read fails once the context is done.
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
