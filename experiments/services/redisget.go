package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"time"

	"github.com/gomodule/redigo/redis"
	"github.com/redis/rueidis"
	"github.com/valyala/fasthttp"
)

// runRedisGet answers GET /probe/redis?key=K by one Redis GET.
func runRedisGet(ctx context.Context, flags *flag.FlagSet, args []string) error {
	listenOn := flags.String("listen", "127.0.0.1:8093", "address to serve on")
	address := flags.String("redis", "127.0.0.1:6379", "address of Redis")
	client := flags.String("client", "pool", "pool (redigo) or rueidis")
	size := flags.Int("pool", 8, "connections of the pool, all kept; a request waits for a free one")
	if err := flags.Parse(args); err != nil {
		return err
	}

	var get getter
	switch *client {
	case "pool":
		pool := newRedisPool(*address, *size)
		defer pool.Close()
		get = pooled(pool)
	case "rueidis":
		multiplexer, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{*address}, ForceSingleClient: true, DisableCache: true})
		if err != nil {
			return fmt.Errorf("open Redis: %w", err)
		}
		defer multiplexer.Close()
		get = multiplexed(multiplexer)
	default:
		return fmt.Errorf("--client %q: pool or rueidis", *client)
	}
	listener, err := listen(*listenOn)
	if err != nil {
		return err
	}
	return serveFast(ctx, listener, redisHandler(get))
}

// getter reads a key; found is false when there is none.
type getter func(ctx context.Context, key string) (value []byte, found bool, err error)

func newRedisPool(address string, size int) *redis.Pool {
	return &redis.Pool{
		MaxIdle: size, MaxActive: size, Wait: true,
		DialContext: func(ctx context.Context) (redis.Conn, error) { return redis.DialContext(ctx, "tcp", address) },
	}
}

func pooled(pool *redis.Pool) getter {
	return func(ctx context.Context, key string) ([]byte, bool, error) {
		conn, err := pool.GetContext(ctx)
		if err != nil {
			return nil, false, err
		}
		defer conn.Close()
		value, err := redis.Bytes(redis.DoContext(conn, ctx, "GET", key))
		if errors.Is(err, redis.ErrNil) {
			return nil, false, nil
		}
		return value, err == nil, err
	}
}

func multiplexed(client rueidis.Client) getter {
	return func(ctx context.Context, key string) ([]byte, bool, error) {
		value, err := client.Do(ctx, client.B().Get().Key(key).Build()).AsBytes()
		if rueidis.IsRedisNil(err) {
			return nil, false, nil
		}
		return value, err == nil, err
	}
}

func redisHandler(get getter) fasthttp.RequestHandler {
	return func(c *fasthttp.RequestCtx) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		switch value, found, err := get(ctx, string(c.QueryArgs().Peek("key"))); {
		case err != nil:
			c.Error(err.Error(), fasthttp.StatusServiceUnavailable)
		case !found:
			c.SetStatusCode(fasthttp.StatusNoContent)
		default:
			c.SetContentType("application/octet-stream")
			c.SetBody(value)
		}
	}
}
