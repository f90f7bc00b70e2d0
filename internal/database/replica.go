package database

import (
	"context"
	"errors"
	"os"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// Errors that the adapters add to those of a driver.
var (
	// ErrBusy means that all connections of the pool stayed in use.
	ErrBusy = errors.New("every connection is in use")
	// ErrEnded means that this side gave the statement up and the server has confirmed its
	// end.
	ErrEnded = errors.New("the server has ended the statement")
)

// JudgeReplica interprets an error of a read replica. down means that the replica cannot
// be reached, is starting or stopping, or does not answer, not even to a cancel request.
// elsewhere means that the primary may succeed: the replay of changes ended the statement,
// the statement writes, or the pool is full. Any other error, such as a timeout, belongs
// to the statement.
func JudgeReplica(err error) (down, elsewhere bool) {
	var connect *pgconn.ConnectError
	var said *pgconn.PgError
	var refused *mysql.MySQLError
	switch {
	case errors.Is(err, ErrBusy):
		return false, true
	case errors.As(err, &connect):
		return !errors.Is(err, context.Canceled), false // the caller left; nothing is known
	case errors.As(err, &said):
		return judgeState(said.Code)
	case errors.As(err, &refused):
		return judgeNumber(refused.Number)
	case errors.Is(err, ErrEnded):
		return false, false
	case errors.Is(err, context.Canceled):
		// The caller left. A server that does not confirm the cancel request hangs.
		return errors.Is(err, os.ErrDeadlineExceeded), false
	}
	return true, false
}

// judgeState judges a SQLSTATE of PostgreSQL.
func judgeState(state string) (down, elsewhere bool) {
	switch {
	case state == "40001", state == "40P01": // also: canceling statement due to conflict with recovery
		return false, true
	case state == "25006": // cannot be executed during recovery
		return false, true
	case strings.HasPrefix(state, "57P0") && state != "57P05": // shutdown, crash, start; not the idle timeout
		return true, false
	case strings.HasPrefix(state, "08"), strings.HasPrefix(state, "53") && state != "53400": // connection; resources
		return true, false
	}
	return false, false
}

// judgeNumber judges an error number of MySQL or MariaDB.
func judgeNumber(number uint16) (down, elsewhere bool) {
	switch number {
	case 1040, 1053, 1129, 1130, 1203: // too many connections, shutdown, host blocked or refused, too many of the user
		return true, false
	case 1205, 1213, 1290, 1836: // lock wait, deadlock, read only
		return false, true
	}
	return false, false
}
