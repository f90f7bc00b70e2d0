package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/valyala/fasthttp"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// orderPage takes the column of the time as text and the parameter's mark.
const orderPage = `SELECT orders.id, %s, orders.goods_name, users.nickname, users.mobileno
FROM orders JOIN users ON users.id = orders.users_id
ORDER BY orders.id DESC LIMIT 10 OFFSET %s`

type order struct {
	ID         int64  `json:"id"`
	CreateTime string `json:"createtime"`
	GoodsName  string `json:"goods_name"`
	Nickname   string `json:"nickname"`
	MobileNo   string `json:"mobileno"`
}

type orderList struct {
	ReturnCode string  `json:"return_code"`
	Data       []order `json:"data"`
}

// runFreight serves the freight list of seed 1 as its authors built it in Go: one HTTP server, a pool of connections, one
// SELECT per request; no window, no cache, no cursor. Unlike the original, it parses the offset as an integer and prepares
// the statement once per connection.
func runFreight(ctx context.Context, flags *flag.FlagSet, args []string) error {
	database := flags.String("database", "", "URL of the freight data: postgres://, mysql:// or sqlite:PATH")
	address := flags.String("listen", "127.0.0.1:8091", "address to serve on")
	connections := flags.Int("pool", 8, "database connections")
	if err := flags.Parse(args); err != nil {
		return err
	}
	read, closePool, err := openFreight(ctx, *database, *connections)
	if err != nil {
		return err
	}
	defer closePool()
	listener, err := listen(*address)
	if err != nil {
		return err
	}
	return serveFast(ctx, listener, func(c *fasthttp.RequestCtx) { serveOrders(c, read) })
}

// serveOrders answers one page: 400 when the offset is no integer from 0 on, 503 when
// the database does not answer.
func serveOrders(c *fasthttp.RequestCtx, read orderReader) {
	offset := 0
	if text := c.QueryArgs().Peek("offset"); len(text) > 0 {
		n, err := strconv.Atoi(string(text))
		if err != nil || n < 0 {
			c.Error("offset must be an integer from 0 on", fasthttp.StatusBadRequest)
			return
		}
		offset = n
	}
	orders, err := read(c, offset)
	if err != nil {
		slog.Error("read page", "offset", offset, "error", err)
		c.Error("the database does not answer", fasthttp.StatusServiceUnavailable)
		return
	}
	code := "SUCCESS"
	if len(orders) == 0 {
		code = "FAIL"
	}
	body, err := json.Marshal(orderList{code, orders})
	if err != nil {
		c.Error("encode the answer", fasthttp.StatusInternalServerError)
		return
	}
	c.SetContentType("application/json")
	c.SetBody(body)
}

// orderReader returns the ten orders behind offset, newest first. It prepares its statement once for each connection.
type orderReader func(ctx context.Context, offset int) ([]order, error)

// openFreight returns the reader of the database at a URL and what closes it.
func openFreight(ctx context.Context, url string, connections int) (orderReader, func(), error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch scheme {
	case "postgres", "postgresql":
		pool, err := openPostgres(ctx, url, connections)
		if err != nil {
			return nil, nil, err
		}
		return postgresOrders(pool), pool.Close, nil
	case "mysql":
		pool, err := openMySQL(url, connections, false)
		if err != nil {
			return nil, nil, err
		}
		statement, err := pool.PrepareContext(ctx, fmt.Sprintf(orderPage, "orders.createtime", "?"))
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("prepare: %w", err), pool.Close())
		}
		return mysqlOrders(statement), func() { _ = pool.Close() }, nil // nothing is left to do about an error
	case "sqlite":
		return openSQLite(rest, connections)
	}
	return nil, nil, fmt.Errorf("database %q: want postgres://…, mysql://… or sqlite:PATH", scheme)
}

func postgresOrders(pool *pgxpool.Pool) orderReader {
	text := fmt.Sprintf(orderPage, "orders.createtime::text", "$1")
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
	}
}

func mysqlOrders(statement *sql.Stmt) orderReader {
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
	}
}

func openSQLite(path string, connections int) (orderReader, func(), error) {
	pool, err := sqlitex.NewPool(path, sqlitex.PoolOptions{Flags: sqlite.OpenReadOnly | sqlite.OpenWAL, PoolSize: connections})
	if err != nil {
		return nil, nil, fmt.Errorf("open pool: %w", err)
	}
	text := fmt.Sprintf(orderPage, "orders.createtime", "?")
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
