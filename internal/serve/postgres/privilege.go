package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// CheckPrivileges has the database look at whether it would run the stream's
// statements: preparing them looks at no privilege, EXPLAIN at all of them. It writes
// nothing.
func (st *Stream) CheckPrivileges(ctx context.Context) error {
	err := st.withConn(ctx, func(ctx context.Context, conn *pgconn.PgConn) error {
		for _, s := range []*statement{st.batch, st.keys, st.rows} {
			d, err := conn.Prepare(ctx, "", s.sql, nil)
			if err != nil {
				return err
			}
			nulls := make([][]byte, len(d.ParamOIDs))
			if err := conn.ExecParams(ctx, "EXPLAIN "+s.sql, nulls, d.ParamOIDs, nil, nil).Read().Err; err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", st.def.Name, err)
	}
	return nil
}
