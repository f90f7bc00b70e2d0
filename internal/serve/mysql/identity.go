package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// MySQL has a server_uuid, and the nodes of a Galera cluster have the id of its state. What other
// MariaDB servers have, two of them share only if their hosts are copies.
const (
	selectUUID    = "SELECT @@server_uuid, DATABASE(), CURRENT_USER()"
	selectCluster = "SHOW GLOBAL STATUS WHERE Variable_name = 'wsrep_cluster_state_uuid' AND Value <> ''"
	selectServer  = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uid', 'server_id', 'hostname', 'port', 'datadir')"
	selectSchema  = "SELECT DATABASE(), CURRENT_USER()"
)

// Identity returns what the server says of itself, the name of the database, and the account of the
// session. It needs no privilege.
func (db *DB) Identity(ctx context.Context) (identity string, err error) {
	err = db.withSession(ctx, func(ctx context.Context, se *session) error {
		var rows [][]string
		if !se.Server.MariaDB {
			rows, err = se.Query(ctx, selectUUID)
		} else {
			var schema [][]string
			if rows, err = se.Query(ctx, selectCluster); err == nil && len(rows) == 0 {
				rows, err = se.Query(ctx, selectServer)
			}
			if err == nil {
				schema, err = se.Query(ctx, selectSchema)
			}
			rows = append(rows, schema...)
		}
		if err == nil && len(rows) == 0 {
			err = errors.New("the server does not say")
		}
		for _, row := range rows {
			identity += strings.Join(row, "=") + "/"
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the identity of the database: %w", err)
	}
	return identity, nil
}

// Logins counts the changes of the user of the connections.
func (db *DB) Logins() uint64 { return db.connector.logins.Count() }
