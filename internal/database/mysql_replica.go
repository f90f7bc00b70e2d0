package database

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"
)

// errNotPermitted is the server's number for a missing privilege.
const errNotPermitted = 1227

// ReplicaLag returns how far the server is behind its source, of several the
// furthest, and false where it does not tell: it is no replica, its replication
// stands, or the user may not ask (REPLICATION CLIENT, on MariaDB REPLICA MONITOR).
func (s *MySQLSession) ReplicaLag(ctx context.Context) (lag time.Duration, known bool, err error) {
	queryer, ok := s.Conn.(driver.QueryerContext)
	if !ok {
		return 0, false, errors.New("the driver's connections run no statements")
	}
	sql, column := "SHOW SLAVE STATUS", "Seconds_Behind_Master"
	if !s.Server.MariaDB && s.Server.AtLeast(8, 0, 22) {
		sql, column = "SHOW REPLICA STATUS", "Seconds_Behind_Source"
	}
	rows, err := queryer.QueryContext(ctx, sql, nil)
	var refused *mysql.MySQLError
	if errors.As(err, &refused) && refused.Number == errNotPermitted {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read the replica's lag: %w", err)
	}
	at := slices.Index(rows.Columns(), column)
	texts, err := ReadTexts(rows)
	if err = errors.Join(err, rows.Close()); err != nil {
		return 0, false, fmt.Errorf("read the replica's lag: %w", err)
	}
	for _, row := range texts {
		if at < 0 || row[at] == "" {
			return 0, false, nil
		}
		seconds, err := strconv.Atoi(row[at])
		if err != nil {
			return 0, false, fmt.Errorf("read the replica's lag: %w", err)
		}
		lag = max(lag, time.Duration(seconds)*time.Second)
	}
	return lag, len(texts) > 0, nil
}
