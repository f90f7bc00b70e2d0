// Command naive stores what clients post as most services do: one INSERT for each
// request, on a connection of a pool. It is the yardstick of the streams. POST /empty
// reads a body and stores nothing: what the request alone costs.
//
// The statement is prepared once for each connection, which is in its favour.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		slog.Error("stop", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	database := flag.String("database", "", "URL of the database: postgres:// or mysql://USER[:PASSWORD]@HOST:PORT/NAME")
	listen := flag.String("listen", "127.0.0.1:8092", "address to serve on")
	connections := flag.Int("pool", 8, "database connections")
	flag.Parse()

	store, closePool, err := open(ctx, *database, *connections)
	if err != nil {
		return err
	}
	defer closePool()
	server := &fasthttp.Server{Handler: func(c *fasthttp.RequestCtx) { serve(c, store) }}
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

func serve(c *fasthttp.RequestCtx, store storer) {
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

func open(ctx context.Context, url string, connections int) (storer, func(), error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch scheme {
	case "postgres":
		return openPostgres(ctx, url, connections)
	case "mysql":
		return openMySQL(ctx, rest, connections)
	}
	return nil, nil, fmt.Errorf("database %q: want postgres://… or mysql://…", scheme)
}

func openPostgres(ctx context.Context, url string, connections int) (storer, func(), error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, nil, fmt.Errorf("read the database URL: %w", err)
	}
	config.MinConns, config.MaxConns = int32(connections), int32(connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("open pool: %w", err)
	}
	return func(ctx context.Context, p position) error {
		_, err := pool.Exec(ctx, "INSERT INTO positions (device_id, latitude, longitude, speed) VALUES ($1, $2, $3, $4)", p.DeviceID, p.Latitude, p.Longitude, p.Speed)
		return err
	}, pool.Close, nil
}

func openMySQL(ctx context.Context, address string, connections int) (storer, func(), error) {
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
	insert, err := pool.PrepareContext(ctx, "INSERT INTO positions (device_id, latitude, longitude, speed) VALUES (?, ?, ?, ?)")
	if err != nil {
		closePool()
		return nil, nil, fmt.Errorf("prepare: %w", err)
	}
	return func(ctx context.Context, p position) error {
		_, err := insert.ExecContext(ctx, p.DeviceID, p.Latitude, p.Longitude, p.Speed)
		return err
	}, closePool, nil
}
