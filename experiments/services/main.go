// Command services holds the programs that spillway is compared with, one subcommand each:
//
//	empty     GET /probe/empty on fasthttp, on net/http, or on net/http behind a router and middleware
//	redisget  one Redis GET per request, through a pool or a shared connection
//	registry  a service registry over HTTP
//	greeter   a gRPC service that registers itself there
//	gateway   an HTTP gateway that finds the greeter and calls it
//	freight   the freight list, one SELECT per request
//	inserts   POST of a position, one INSERT per request
//	popup     the popup of a user, as services begin and as they are tuned
//
// They are a module of their own: what they need, spillway does not.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/valyala/fasthttp"
)

// drainGrace is how long requests in flight may take after the signal to end.
const drainGrace = 5 * time.Second

// A program reads its flags and runs until ctx ends.
type program func(ctx context.Context, flags *flag.FlagSet, args []string) error

func main() {
	programs := map[string]program{
		"empty": runEmpty, "redisget": runRedisGet, "registry": runRegistry, "greeter": runGreeter, "gateway": runGateway,
		"freight": runFreight, "inserts": runInserts, "popup": runPopup,
	}
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "services: give one of", strings.Join(slices.Sorted(maps.Keys(programs)), ", "))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name := os.Args[1]
	if err := programs[name](ctx, flag.NewFlagSet(name, flag.ExitOnError), os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "services %s: %v\n", name, err)
		os.Exit(1)
	}
}

// serveFast serves on fasthttp until ctx ends.
func serveFast(ctx context.Context, listener net.Listener, handler fasthttp.RequestHandler) error {
	server := &fasthttp.Server{Handler: handler}
	return serve(ctx, func() error { return server.Serve(listener) }, server.ShutdownWithContext)
}

// serveHTTP serves on net/http until ctx ends.
func serveHTTP(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	err := serve(ctx, func() error { return server.Serve(listener) }, server.Shutdown)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func serve(ctx context.Context, run func() error, shutdown func(context.Context) error) error {
	served := make(chan error, 1)
	go func() { served <- run() }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), drainGrace)
	defer cancel()
	if err := shutdown(drain); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	return <-served
}

// listen opens the address of the flag --listen.
func listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return listener, nil
}

// openMySQL opens mysql://USER[:PASSWORD]@HOST:PORT/NAME with a pool that keeps every connection. Times are read as
// time.Time if parseTime is set, else as text.
func openMySQL(url string, connections int, parseTime bool) (*sql.DB, error) {
	credentials, place, _ := strings.Cut(strings.TrimPrefix(url, "mysql://"), "@")
	config := mysql.NewConfig()
	config.User, config.Passwd, _ = strings.Cut(credentials, ":")
	config.Net, config.ParseTime = "tcp", parseTime
	config.Addr, config.DBName, _ = strings.Cut(place, "/")
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	pool := sql.OpenDB(connector)
	pool.SetMaxOpenConns(connections)
	pool.SetMaxIdleConns(connections)
	return pool, nil
}

// openPostgres opens a pool that keeps every connection.
func openPostgres(ctx context.Context, url string, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	config.MinConns, config.MaxConns = int32(connections), int32(connections)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}
