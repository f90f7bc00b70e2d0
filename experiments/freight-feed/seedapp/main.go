// Command seedapp is the freight list of seed 1 as its authors built it in Go,
// written afresh: one HTTP server, a pool of eight connections, one statement
// for each request. It is the yardstick that the feed is measured against and
// does nothing else: no window, no cache, no cursor.
//
// It differs from the original in two ways, both in its favour or the user's:
// the offset is parsed as an integer instead of being pasted into the statement,
// and the statement is prepared once for each connection. MariaDB and SQLite are read
// in the same way.
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

	"github.com/valyala/fasthttp"
)

// page takes the column of the time as text and the parameter's mark.
const page = `SELECT orders.id, %s, orders.goods_name, users.nickname, users.mobileno
FROM orders JOIN users ON users.id = orders.users_id
ORDER BY orders.id DESC LIMIT 10 OFFSET %s`

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
	database := flag.String("database", "", "URL of the freight data: postgres://, mysql:// or sqlite:PATH")
	listen := flag.String("listen", "127.0.0.1:8091", "address to serve on")
	connections := flag.Int("pool", 8, "database connections")
	flag.Parse()

	read, closePool, err := open(ctx, *database, *connections)
	if err != nil {
		return err
	}
	defer closePool()

	server := &fasthttp.Server{Handler: func(c *fasthttp.RequestCtx) { serve(c, read) }}
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
func serve(c *fasthttp.RequestCtx, read reader) {
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
	body, err := json.Marshal(answer{code, orders})
	if err != nil {
		c.Error("encode the answer", fasthttp.StatusInternalServerError)
		return
	}
	c.SetContentType("application/json")
	c.SetBody(body)
}
