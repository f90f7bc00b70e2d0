package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// ownTable is a table of the adapter. Without the right to run its statement, an
// administrator does.
type ownTable struct {
	name   string
	create string
}

// createMissing runs the statements of tables that are missing, one by one as dialect.Create
// says.
func createMissing(ctx context.Context, conn *pgconn.PgConn, own []ownTable) error {
	for _, t := range own {
		rows, err := texts(ctx, conn, "SELECT to_regclass($1::text) IS NOT NULL", t.name)
		if err != nil {
			return err
		}
		if rows[0][0] == "t" {
			continue
		}
		if err := exec(ctx, conn, fmt.Sprintf(dialect.Create, strings.TrimSuffix(t.create, ";"))); err != nil {
			_ = exec(ctx, conn, "ROLLBACK") // the first error is returned
			var pgErr *pgconn.PgError
			if errors.As(err, &pgErr) && !isTemporary(pgErr) {
				return fmt.Errorf("prepare the table %s: %w; have an administrator run: %s", t.name, err, strings.Join(strings.Fields(t.create), " "))
			}
			return fmt.Errorf("prepare the table %s: %w", t.name, err)
		}
	}
	return nil
}
