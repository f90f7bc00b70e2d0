package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"strings"

	"github.com/valyala/fasthttp"
)

type position struct {
	DeviceID  *int64   `json:"device_id"`
	Latitude  *float64 `json:"latitude"`
	Longitude *float64 `json:"longitude"`
	Speed     *float64 `json:"speed"`
}

// storer inserts one position and returns when the database has committed it.
type storer func(ctx context.Context, p position) error

// runInserts stores what clients post as most services do: one INSERT per request, on a connection of a pool. The statement
// is prepared once per connection. POST /empty reads a body and stores nothing.
func runInserts(ctx context.Context, flags *flag.FlagSet, args []string) error {
	database := flags.String("database", "", "URL of the database: postgres:// or mysql://USER[:PASSWORD]@HOST:PORT/NAME")
	address := flags.String("listen", "127.0.0.1:8092", "address to serve on")
	connections := flags.Int("pool", 8, "database connections")
	idle := flags.Int("idle", -1, "connections to MySQL that are kept; 0: each record opens one; -1: all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	store, closePool, err := openPositions(ctx, *database, *connections, *idle)
	if err != nil {
		return err
	}
	defer closePool()
	listener, err := listen(*address)
	if err != nil {
		return err
	}
	return serveFast(ctx, listener, func(c *fasthttp.RequestCtx) { storePosition(c, store) })
}

func storePosition(c *fasthttp.RequestCtx, store storer) {
	c.SetContentType("application/json")
	if !c.IsPost() {
		c.SetBodyString(`{"ready":true}`)
		return
	}
	if string(c.Path()) == "/empty" {
		c.SetBodyString(`{"stored":0}`)
		return
	}
	var p position
	if err := json.Unmarshal(c.PostBody(), &p); err != nil || p.DeviceID == nil {
		c.Error("not a position", fasthttp.StatusBadRequest)
		return
	}
	if err := store(c, p); err != nil {
		slog.Error("store", "error", err)
		c.Error("not stored", fasthttp.StatusServiceUnavailable)
		return
	}
	c.SetBodyString(`{"stored":1}`)
}

func openPositions(ctx context.Context, url string, connections, idle int) (storer, func(), error) {
	const insert = "INSERT INTO positions (device_id, latitude, longitude, speed) VALUES "
	switch scheme, _, _ := strings.Cut(url, ":"); scheme {
	case "postgres":
		pool, err := openPostgres(ctx, url, connections)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context, p position) error {
			_, err := pool.Exec(ctx, insert+"($1, $2, $3, $4)", p.DeviceID, p.Latitude, p.Longitude, p.Speed)
			return err
		}, pool.Close, nil
	case "mysql":
		pool, err := openMySQL(url, connections, false)
		if err != nil {
			return nil, nil, err
		}
		if idle >= 0 {
			pool.SetMaxIdleConns(idle)
		}
		statement, err := pool.PrepareContext(ctx, insert+"(?, ?, ?, ?)")
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("prepare: %w", err), pool.Close())
		}
		return func(ctx context.Context, p position) error {
			_, err := statement.ExecContext(ctx, p.DeviceID, p.Latitude, p.Longitude, p.Speed)
			return err
		}, func() { _ = pool.Close() }, nil // nothing is left to do about an error
	default:
		return nil, nil, fmt.Errorf("database %q: want postgres://… or mysql://…", scheme)
	}
}
