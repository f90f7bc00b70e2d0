package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/database"
	"spillway/internal/serve/standby"
)

// spansMax bounds the intervals of a GTID set. A server that replicates without gaps has one per server that ever wrote.
const spansMax = 1000

// errPosition is the error of a position that cannot be read.
var errPosition = errors.New("unknown format")

// Written implements standby.Primary. It reads gtid_binlog_pos (MariaDB) or gtid_executed (MySQL), which need no privilege. MySQL without
// GTIDs has SHOW BINARY LOG STATUS, which needs REPLICATION CLIENT.
func (db *DB) Written(ctx context.Context) (standby.Position, error) {
	return db.position(ctx, "SELECT @@GLOBAL.log_bin, @@GLOBAL.gtid_binlog_pos", binlogEnd)
}

// Replayed implements standby.Replica. It reads gtid_slave_pos (MariaDB) or gtid_executed (MySQL), which need no privilege. MySQL without
// GTIDs has SHOW REPLICA STATUS, which needs REPLICATION CLIENT.
func (db *DB) Replayed(ctx context.Context) (standby.Position, error) {
	return db.position(ctx, "SELECT 1, @@GLOBAL.gtid_slave_pos", replayedEnd)
}

// position reads a position of MariaDB with sql, of MySQL with GTIDs, or of MySQL without them with end.
func (db *DB) position(ctx context.Context, sql string, end func(context.Context, *session) (standby.Position, error)) (p standby.Position,
	err error,
) {
	err = db.withSession(ctx, func(ctx context.Context, se *session) (err error) {
		switch {
		case se.Server.MariaDB:
			p, err = domainPosition(ctx, se, sql)
		case db.withoutGTIDs.Load():
			p, err = end(ctx, se)
		default:
			var on bool
			if p, on, err = setPosition(ctx, se); err == nil && !on {
				db.withoutGTIDs.Store(true)
				p, err = end(ctx, se)
			}
		}
		return err
	})
	if err != nil {
		return standby.Position{}, fmt.Errorf("read the position in the binary log: %w", err)
	}
	return p, nil
}

// domainPosition reads a GTID position of MariaDB.
func domainPosition(ctx context.Context, se *session, sql string) (standby.Position, error) {
	rows, err := se.Query(ctx, sql)
	if err != nil {
		return standby.Position{}, err
	}
	if len(rows) != 1 || rows[0][0] != "1" {
		return standby.Position{}, errors.New("the server writes no binary log (log_bin)")
	}
	return parseDomains(rows[0][1])
}

// setPosition reads the GTID set of MySQL, unless the server writes transactions without GTIDs.
func setPosition(ctx context.Context, se *session) (p standby.Position, on bool, err error) {
	rows, err := se.Query(ctx, "SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_executed")
	if err != nil {
		return p, false, err
	}
	if len(rows) != 1 || !strings.HasPrefix(rows[0][0], "ON") { // ON, ON_PERMISSIVE
		return p, false, nil
	}
	p, err = parseGTIDs(rows[0][1])
	return p, true, err
}

// binlogEnd reads the end of the binary log of a primary.
func binlogEnd(ctx context.Context, se *session) (standby.Position, error) {
	sql := "SHOW MASTER STATUS"
	if se.Server.AtLeast(8, 2, 0) {
		sql = "SHOW BINARY LOG STATUS"
	}
	return endOf(ctx, se, sql, "File", "Position", "the server writes no binary log (log_bin)")
}

// replayedEnd reads where a replica is in its source's binary log.
func replayedEnd(ctx context.Context, se *session) (standby.Position, error) {
	if se.Server.AtLeast(8, 0, 22) {
		return endOf(ctx, se, "SHOW REPLICA STATUS", "Relay_Source_Log_File", "Exec_Source_Log_Pos",
			"the server is not the replica of exactly one source")
	}
	return endOf(ctx, se, "SHOW SLAVE STATUS", "Relay_Master_Log_File", "Exec_Master_Log_Pos",
		"the server is not the replica of exactly one source")
}

// endOf reads a file and a position in it from two columns of the only row.
func endOf(ctx context.Context, se *session, sql, file, offset, otherwise string) (standby.Position, error) {
	rows, err := se.QueryContext(ctx, sql, nil)
	if err != nil {
		return standby.Position{}, fmt.Errorf("%s: %w", sql, err)
	}
	columns := rows.Columns()
	texts, err := database.ReadTexts(rows)
	if err = errors.Join(err, rows.Close()); err != nil {
		return standby.Position{}, fmt.Errorf("%s: %w", sql, err)
	}
	i, j := slices.Index(columns, file), slices.Index(columns, offset)
	if len(texts) != 1 || i < 0 || j < 0 {
		return standby.Position{}, errors.New(otherwise)
	}
	return parseEnd(texts[0][i], texts[0][j])
}

// parseEnd parses the name of a binary log, as binlog.000007, and a position in it.
func parseEnd(file, offset string) (standby.Position, error) {
	dot := strings.LastIndexByte(file, '.')
	number, numberErr := strconv.ParseUint(file[dot+1:], 10, 24)
	at, err := strconv.ParseUint(offset, 10, 40)
	if err := errors.Join(numberErr, err); err != nil || dot < 0 {
		return standby.Position{}, fmt.Errorf("%w: %.40q, %.40q", errPosition, file, offset)
	}
	return standby.Position{Logs: map[string]uint64{file[:dot]: number<<40 | at}}, nil
}

// parseDomains parses a GTID position of MariaDB: DOMAIN-SERVER-NUMBER, separated by commas.
func parseDomains(text string) (standby.Position, error) {
	p := standby.Position{Logs: make(map[string]uint64)}
	for gtid := range strings.SplitSeq(text, ",") {
		if gtid == "" {
			continue
		}
		domain, rest, _ := strings.Cut(gtid, "-")
		_, last, _ := strings.Cut(rest, "-")
		number, err := strconv.ParseUint(last, 10, 64)
		if err != nil || len(p.Logs) >= spansMax {
			return standby.Position{}, fmt.Errorf("%w: the GTID position %.80q", errPosition, text)
		}
		p.Logs[domain] = max(p.Logs[domain], number)
	}
	return p, nil
}

// parseGTIDs parses a GTID set of MySQL: UUID[:TAG]:FIRST[-LAST]:... , separated by commas. A
// tag can follow other intervals of the same UUID.
func parseGTIDs(text string) (standby.Position, error) {
	p := standby.Position{Sets: make(map[string][]standby.Span)}
	spans := 0
	for set := range strings.SplitSeq(text, ",") {
		uuid, rest, _ := strings.Cut(strings.TrimSpace(set), ":")
		if uuid == "" {
			continue
		}
		name := uuid
		for part := range strings.SplitSeq(rest, ":") {
			if part == "" || part[0] < '0' || part[0] > '9' {
				name = uuid + ":" + part // a tag
				continue
			}
			span, err := parseSpan(part)
			if err != nil {
				return standby.Position{}, fmt.Errorf("%w: the GTID set %.80q", errPosition, text)
			}
			if spans++; spans > spansMax {
				return standby.Position{}, fmt.Errorf("the GTID set has more than %d intervals", spansMax)
			}
			p.Sets[name] = append(p.Sets[name], span)
		}
		if len(p.Sets[name]) == 0 {
			return standby.Position{}, fmt.Errorf("%w: the GTID set %.80q", errPosition, text)
		}
	}
	return p, nil
}

// parseSpan parses FIRST or FIRST-LAST.
func parseSpan(text string) (standby.Span, error) {
	from, to, ranged := strings.Cut(text, "-")
	if !ranged {
		to = from
	}
	first, err := strconv.ParseUint(from, 10, 64)
	last, lastErr := strconv.ParseUint(to, 10, 64)
	return standby.Span{First: first, Last: last}, errors.Join(err, lastErr)
}
