package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"spillway/internal/database"
)

// stateTooManyConnections is the SQLSTATE of a server, role, database or pooler that grants no further connection.
const stateTooManyConnections = "53300"

type pooled = pgxpool.Conn

// lease is a connection of the pool with its slot.
type lease struct {
	*pooled
	slots *database.Slots
}

// Release returns both.
func (l lease) Release() {
	l.pooled.Release()
	l.slots.Release()
}

// Hijack takes the connection out of the pool, which may open another in its place. The caller closes it.
func (l lease) Hijack() *pgx.Conn {
	l.slots.Release()
	return l.pooled.Hijack()
}

// isTooMany reports whether the server grants no further connection.
func isTooMany(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == stateTooManyConnections
}
