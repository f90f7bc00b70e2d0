package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"spillway/internal/serve/stream"
	"spillway/internal/serve/tables"
)

// Error numbers of the server that a stream distinguishes.
const (
	numDuplicate      = 1062
	numNotNull        = 1048
	numNoSuchTable    = 1146
	numWrongValue     = 1366
	numNoDefault      = 1364
	numTruncated      = 1265
	numCheckMySQL     = 3819
	numCheckMariaDB   = 4025
	numSignal         = 1644
	numRowTooLarge    = 1118
	numJSONFirst      = 3140
	numJSONLast       = 3158
	numUnknown        = 1105
	numPacketTooLarge = 1153
	numLockWait       = 1205
	numDeadlock       = 1213
	numLockTable      = 1206
	numChanged        = 1020
	numConnections    = 1040
	numAutoIncrement  = 1467
	numOutOfRange     = 1264
	numNoPartition    = 1526
	// numOutOfRangeEngine is MariaDB's for an AUTO_INCREMENT that has ended.
	numOutOfRangeEngine = 167
	numLoginDatabase    = 1044
	numLogin            = 1045
	numLoginPlugin      = 1698
	numOutOfResources   = 1041
	numUserConnections  = 1203
	numUserLimit        = 1226
	numNotReady         = 1047
	numReadOnlyOption   = 1290
	numReadOnly         = 1836
	numReadOnlyNow      = 1792
	numReadLock         = 1223
	numTableFull        = 1114
	numDiskFull         = 1021
	numTransactions     = 1637
	numReplicationHook  = 3100 // Group Replication cannot commit now
	numRolledBack       = 3101 // and this commit conflicted with another
)

// isReadOnly reports whether the server accepts no writes.
func isReadOnly(err error) bool {
	return isRefusal(err, numReadOnlyOption, numReadOnly, numReadOnlyNow)
}

// isRefusal reports whether an error is the server's with one of these numbers.
func isRefusal(err error, numbers ...uint16) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && slices.Contains(numbers, refused.Number)
}

// isData reports whether the server refuses the rows themselves.
func isData(err *mysql.MySQLError) bool {
	switch n := err.Number; n {
	case numDuplicate, numNotNull, numWrongValue, numNoDefault, numTruncated, numCheckMySQL, numCheckMariaDB, numSignal,
		numRowTooLarge, numCannotConvert, numInvalidCharacters, numNoPartition:
		return true
	default:
		class := string(err.SQLState[:2])
		return class == "22" || class == "23" || class == "45" || n >= numJSONFirst && n <= numJSONLast || isTooLarge(err)
	}
}

// isTooLarge reports whether a value is larger than max_allowed_packet.
func isTooLarge(err *mysql.MySQLError) bool {
	return err.Number == numPacketTooLarge || err.Number == numUnknown && strings.Contains(err.Message, "max_allowed_packet")
}

// isTemporary reports whether the server may accept the same statement later. Nothing of the transaction may be left.
func isTemporary(number uint16) bool {
	switch number {
	case numLockWait, numDeadlock, numLockTable, numChanged, numConnections, numOutOfResources, numUserConnections, numUserLimit, numNotReady,
		numReadOnlyOption, numReadOnly, numReadOnlyNow, numReadLock, numTableFull, numDiskFull, numTransactions, numReplicationHook,
		numRolledBack, numShutdown, numUnknownStatement, numInterrupted, numNeedsPreparing, numKilled, numStatementTimeout, numQueryTimeout,
		numDisconnectedIdle, numLogin, numLoginDatabase, numLoginPlugin:
		return true
	}
	return false
}

// refused returns the refusal if rows of a batch are refused, and any other error. Rows from a
// spool are also refused for what may be a condition of the server.
func (w *batchWriter) refused(ctx context.Context, err error) (*stream.RowRefusal, error) {
	var server *mysql.MySQLError
	if !errors.As(err, &server) {
		return nil, err
	}
	data, spooled := isData(server), w.b.Mark != nil
	fault, failure := w.faultOf(ctx, server)
	switch {
	case failure != nil:
		return nil, failure
	case fault == stream.ServersFault && !spooled:
		return nil, fmt.Errorf("%w: %w: %w", stream.ErrTransient, stream.ErrRefused, err)
	}
	// These errors name the rows, but come from the definition of the table and from a setting.
	servers := fault != stream.RecordsFault || server.Number == numNoDefault || isTooLarge(server)
	switch {
	case data && !(spooled && servers):
		return &stream.RowRefusal{Reason: server.Message}, nil
	case !spooled, !data && isTemporary(server.Number):
		return nil, err
	}
	if err := w.checkAlive(ctx); err != nil {
		return nil, err
	}
	return &stream.RowRefusal{Reason: server.Message, Unsure: true}, nil
}

// classify wraps the server's error about a transaction that was not committed.
func (st *Stream) classify(err error) error {
	if err == nil || errors.Is(err, stream.ErrUnconfirmed) || errors.Is(err, stream.ErrTransient) || errors.Is(err, stream.ErrHeld) ||
		errors.Is(err, errClosed) || errors.Is(err, tables.ErrUnusable) || errors.Is(err, mysql.ErrPktTooLarge) {
		return err
	}
	var refused *mysql.MySQLError
	if !errors.As(err, &refused) || isTemporary(refused.Number) {
		return fmt.Errorf("%w: %w", stream.ErrTransient, err)
	}
	if refused.Number == numNoSuchTable { // one of the stream's own tables may have been dropped
		st.checked.Store(nil)
	}
	return err
}
