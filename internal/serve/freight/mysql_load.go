package freight

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/progress"
)

// rowsPerLoad bounds the rows of a statement. Each is a transaction; a long one would take long
// to undo.
const rowsPerLoad = 200_000

// load uses LOAD DATA LOCAL if the server allows it, otherwise INSERTs of many rows.
func (tx *mysqlTx) load(ctx context.Context, t table, meter *progress.Meter) error {
	if tx.local {
		return tx.loadLocal(ctx, t, meter)
	}
	return tx.insert(ctx, t, meter)
}

func (tx *mysqlTx) loadLocal(ctx context.Context, t table, meter *progress.Meter) (err error) {
	source := newLineReader(ctx, t, meter)
	defer func() { source.close(err) }()
	name := fmt.Sprintf("spillway-%p", tx) // of the readers in this process
	mysql.RegisterReaderHandler(name, func() io.Reader { return source })
	defer mysql.DeregisterReaderHandler(name)
	// A backslash is a character here: 0x09 is a tab, 0x0A a newline.
	sql := fmt.Sprintf("LOAD DATA LOCAL INFILE 'Reader::%s' INTO TABLE %s%s CHARACTER SET utf8mb4 FIELDS TERMINATED BY 0x09 ESCAPED BY '' "+
		"LINES TERMINATED BY 0x0A (%s)", name, newPrefix, t.name, strings.Join(t.columns, ", "))
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

// insert loads each chunk by an INSERT of its rows.
func (tx *mysqlTx) insert(ctx context.Context, t table, meter *progress.Meter) (err error) {
	task := meter.Start(t.name, "rows", int64(t.total))
	defer func() { task.End(err) }()
	into := fmt.Sprintf("INSERT INTO %s%s (%s) VALUES ('", newPrefix, t.name, strings.Join(t.columns, ", "))
	between := strings.NewReplacer("\t", "','", "\n", "'),('")
	for c := range t.lines() {
		if err := tx.exec(ctx, into+between.Replace(strings.TrimSuffix(string(c.data), "\n"))+"')"); err != nil {
			return err
		}
		task.Add(int64(c.rows))
	}
	return nil
}
