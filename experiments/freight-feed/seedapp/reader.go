package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// reader returns the ten orders behind offset, newest first. It prepares its statement once for each connection.
type reader func(ctx context.Context, offset int) ([]order, error)

// open returns the reader of the database at a URL and what closes it.
func open(ctx context.Context, url string, connections int) (reader, func(), error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch scheme {
	case "postgres", "postgresql":
		return openPostgres(ctx, url, connections)
	case "mysql":
		return openMySQL(ctx, rest, connections)
	case "sqlite":
		return openSQLite(rest, connections)
	}
	return nil, nil, fmt.Errorf("database %q: want postgres://…, mysql://… or sqlite:PATH", scheme)
}

func openPostgres(ctx context.Context, url string, connections int) (reader, func(), error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, fmt.Errorf("read the database URL: %w", err)
	}
	config.MinConns, config.MaxConns = int32(connections), int32(connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("open pool: %w", err)
	}
	text := fmt.Sprintf(page, "orders.createtime::text", "$1")
	return func(ctx context.Context, offset int) ([]order, error) {
		rows, err := pool.Query(ctx, text, offset)
		if err != nil {
			return nil, fmt.Errorf("query: %w", err)
		}
		orders, err := pgx.AppendRows(make([]order, 0, 10), rows, pgx.RowToStructByPos[order])
		if err != nil {
			return nil, fmt.Errorf("read rows: %w", err)
		}
		return orders, nil
	}, pool.Close, nil
}

// openMySQL takes //USER[:PASSWORD]@HOST:PORT/NAME.
func openMySQL(ctx context.Context, address string, connections int) (reader, func(), error) {
	credentials, place, _ := strings.Cut(strings.TrimPrefix(address, "//"), "@")
	config := mysql.NewConfig()
	config.User, config.Passwd, _ = strings.Cut(credentials, ":")
	config.Net = "tcp"
	config.Addr, config.DBName, _ = strings.Cut(place, "/")
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, nil, fmt.Errorf("read the database URL: %w", err)
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(connections)
	pool.SetMaxIdleConns(connections)
	closePool := func() { _ = pool.Close() } // nothing is left to do about an error
	statement, err := pool.PrepareContext(ctx, fmt.Sprintf(page, "orders.createtime", "?"))
	if err != nil {
		closePool()
		return nil, nil, fmt.Errorf("prepare: %w", err)
	}
	return func(ctx context.Context, offset int) ([]order, error) {
		rows, err := statement.QueryContext(ctx, offset)
		if err != nil {
			return nil, fmt.Errorf("query: %w", err)
		}
		defer rows.Close()
		orders := make([]order, 0, 10)
		for rows.Next() {
			var o order
			if err := rows.Scan(&o.ID, &o.CreateTime, &o.GoodsName, &o.Nickname, &o.MobileNo); err != nil {
				return nil, fmt.Errorf("read rows: %w", err)
			}
			orders = append(orders, o)
		}
		return orders, rows.Err()
	}, closePool, nil
}

func openSQLite(path string, connections int) (reader, func(), error) {
	pool, err := sqlitex.NewPool(path, sqlitex.PoolOptions{Flags: sqlite.OpenReadOnly | sqlite.OpenWAL, PoolSize: connections})
	if err != nil {
		return nil, nil, fmt.Errorf("open pool: %w", err)
	}
	text := fmt.Sprintf(page, "orders.createtime", "?")
	return func(ctx context.Context, offset int) ([]order, error) {
		conn, err := pool.Take(ctx)
		if err != nil {
			return nil, fmt.Errorf("take a connection: %w", err)
		}
		defer pool.Put(conn)
		orders := make([]order, 0, 10)
		err = sqlitex.Execute(conn, text, &sqlitex.ExecOptions{Args: []any{offset}, ResultFunc: func(s *sqlite.Stmt) error {
			orders = append(orders, order{s.ColumnInt64(0), s.ColumnText(1), s.ColumnText(2), s.ColumnText(3), s.ColumnText(4)})
			return nil
		}})
		if err != nil {
			return nil, fmt.Errorf("query: %w", err)
		}
		return orders, nil
	}, func() { _ = pool.Close() }, nil
}
