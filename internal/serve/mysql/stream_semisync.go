package mysql

import (
	"context"
	"strconv"
	"strings"
)

// semiSync is the state of semi-synchronous replication on the source. MySQL's names have changed from master to source.
type semiSync struct {
	enabled bool // by the configuration
	on      bool // commits wait for a replica now
	// Commits since the server started that a replica has acknowledged, and those that the server did not wait for.
	acknowledged, alone uint64
	// The session's last transaction in the binary log; "" on MySQL, which does not tell.
	logged string
}

// semiSyncStatus selects the status variables of a source.
const semiSyncStatus = "SHOW GLOBAL STATUS WHERE Variable_name IN (" +
	"'Rpl_semi_sync_master_status', 'Rpl_semi_sync_master_yes_tx', 'Rpl_semi_sync_master_no_tx', " +
	"'Rpl_semi_sync_source_status', 'Rpl_semi_sync_source_yes_tx', 'Rpl_semi_sync_source_no_tx')"

// readSemiSync returns the zero value if the server has no semi-synchronous replication.
func readSemiSync(ctx context.Context, se *session) (semiSync, error) {
	var s semiSync
	settings, err := se.Query(ctx, "SHOW GLOBAL VARIABLES "+
		"WHERE Variable_name IN ('rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled')")
	if err != nil {
		return s, err
	}
	for _, row := range settings {
		s.enabled = s.enabled || row[1] == "ON" || row[1] == "1"
	}
	if !s.enabled {
		return s, nil
	}
	status, err := readSemiSyncStatus(ctx, se)
	status.enabled = true
	return status, err
}

// readSemiSyncStatus reads all but enabled.
func readSemiSyncStatus(ctx context.Context, se *session) (semiSync, error) {
	var s semiSync
	rows, err := se.Query(ctx, semiSyncStatus)
	if err != nil {
		return s, err
	}
	for _, row := range rows {
		switch name := strings.ToLower(row[0]); {
		case strings.HasSuffix(name, "_status"):
			s.on = row[1] == "ON"
		case strings.HasSuffix(name, "_yes_tx"):
			s.acknowledged, err = strconv.ParseUint(row[1], 10, 64)
		case strings.HasSuffix(name, "_no_tx"):
			s.alone, err = strconv.ParseUint(row[1], 10, 64)
		}
		if err != nil {
			return semiSync{}, err
		}
	}
	if !se.Server.MariaDB {
		return s, nil
	}
	rows, err = se.Query(ctx, "SELECT @@last_gtid")
	if err != nil {
		return semiSync{}, err
	}
	s.logged = "last " + rows[0][0]
	return s, nil
}

// covers reports whether every commit between the two states was acknowledged by a replica,
// and at least one was. On MariaDB, the session's own is one of them.
func (s semiSync) covers(after semiSync) bool {
	unlogged := after.logged == s.logged && after.logged != ""
	return !unlogged && s.on && after.on && after.alone == s.alone && after.acknowledged > s.acknowledged
}
