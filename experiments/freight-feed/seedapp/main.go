// Command seedapp is the freight list of seed 1 as its authors built it in Go,
// written afresh: one HTTP server, a pool of eight connections, one statement
// for each request. It is the yardstick that the feed is measured against and
// does nothing else: no window, no cache, no cursor.
//
// It differs from the original in two ways, both in its favour or the user's:
// the offset is parsed as an integer instead of being pasted into the statement,
// and the statement is prepared once for each connection.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/valyala/fasthttp"
)

const page = `SELECT orders.id, orders.createtime::text, orders.goods_name, users.nickname, users.mobileno
FROM orders JOIN users ON users.id = orders.users_id
ORDER BY orders.id DESC OFFSET $1 LIMIT 10`

type order struct {
	ID         int64  `json:"id"`
	CreateTime string `json:"createtime"`
	GoodsName  string `json:"goods_name"`
	Nickname   string `json:"nickname"`
	MobileNo   string `json:"mobileno"`
}

type answer struct {
	ReturnCode string  `json:"return_code"`
	Data       []order `json:"data"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("stop", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	database := flag.String("database", "", "PostgreSQL URL of the freight data")
	listen := flag.String("listen", "127.0.0.1:8091", "address to serve on")
	connections := flag.Int("pool", 8, "database connections")
	flag.Parse()

	config, err := pgxpool.ParseConfig(*database)
	if err != nil {
		return fmt.Errorf("read the database URL: %w", err)
	}
	config.MinConns, config.MaxConns = int32(*connections), int32(*connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	defer pool.Close()

	server := &fasthttp.Server{Handler: func(c *fasthttp.RequestCtx) { serve(c, pool) }}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe(*listen) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.ShutdownWithContext(drain); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	return <-served
}

// serve answers one page: 400 when the offset is no integer from 0 on, 503 when
// the database does not answer.
func serve(c *fasthttp.RequestCtx, pool *pgxpool.Pool) {
	offset := 0
	if text := c.QueryArgs().Peek("offset"); len(text) > 0 {
		n, err := strconv.Atoi(string(text))
		if err != nil || n < 0 {
			c.Error("offset must be an integer from 0 on", fasthttp.StatusBadRequest)
			return
		}
		offset = n
	}
	orders, err := read(c, pool, offset)
	if err != nil {
		slog.Error("read page", "offset", offset, "error", err)
		c.Error("the database does not answer", fasthttp.StatusServiceUnavailable)
		return
	}
	code := "SUCCESS"
	if len(orders) == 0 {
		code = "FAIL"
	}
	body, err := json.Marshal(answer{code, orders})
	if err != nil {
		c.Error("encode the answer", fasthttp.StatusInternalServerError)
		return
	}
	c.SetContentType("application/json")
	c.SetBody(body)
}

// read returns the ten orders behind offset, newest first.
func read(ctx context.Context, pool *pgxpool.Pool, offset int) ([]order, error) {
	rows, err := pool.Query(ctx, page, offset)
	if err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	orders, err := pgx.AppendRows(make([]order, 0, 10), rows, pgx.RowToStructByPos[order])
	if err != nil {
		return nil, fmt.Errorf("read rows: %w", err)
	}
	return orders, nil
}
