//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
)

// statements runs statements on one of k connections to PostgreSQL. Several statements, separated by semicolons, are one
// transaction. Before them, each request uses that much CPU time.
func statements(ctx context.Context, database, sql string, k int, work time.Duration) (http.Handler, func(), error) {
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		return nil, nil, fmt.Errorf("open pool: %w", err)
	}
	config.MaxConns, config.MinConns = int32(k), int32(k)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("open pool: %w", err)
	}
	list := strings.Split(sql, ";")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		spend(work)
		answer(w, runStatements(r.Context(), pool, list))
	}), pool.Close, nil
}

func runStatements(ctx context.Context, pool *pgxpool.Pool, list []string) error {
	if len(list) == 1 {
		_, err := pool.Exec(ctx, list[0])
		return err
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // after a commit it does nothing
	for _, statement := range list {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

// script runs a Lua script in Redis for each request.
func script(database, lua string) (http.Handler, func(), error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{strings.TrimPrefix(database, "redis://")}, DisableCache: true})
	if err != nil {
		return nil, nil, fmt.Errorf("connect to Redis: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(w, client.Do(r.Context(), client.B().Eval().Script(lua).Numkeys(0).Build()).Error())
	}), client.Close, nil
}
