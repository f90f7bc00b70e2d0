//go:build linux

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
	"github.com/valyala/fasthttp"
	_ "modernc.org/sqlite"
)

// The statements of all programs.
const (
	selectItem = "SELECT id, name, price, stock FROM items WHERE id = "
	selectSlow = "SELECT sum(stock) AS total FROM items WHERE id > "
	insertInto = "INSERT INTO records (device, lat, lon, speed) VALUES "
)

// item is a row of the table items.
type item struct {
	ID    int64   `json:"id"`
	Name  string  `json:"name"`
	Price float64 `json:"price"`
	Stock int64   `json:"stock"`
}

// record is the body of a POST.
type record struct {
	Device int64   `json:"device"`
	Lat    float64 `json:"lat"`
	Lon    float64 `json:"lon"`
	Speed  float64 `json:"speed"`
}

// program is what a user would write instead of spillway.
type program struct {
	item   func(id int64) (item, error)
	slow   func(id int64) (total int64, err error)
	insert func(r record) error
	popup  func(user string) (due bool, err error)
}

// servePeer serves the program on an address until it is ended by a signal.
func servePeer(database, url string, pool, span int, address string) error {
	var p *program
	var err error
	switch database {
	case "postgres":
		p, err = openPool(url, pool, span)
	case "redis":
		p, err = openRedis(url)
	default:
		p, err = openSQL(database, url, pool, span)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", database, err)
	}
	return fasthttp.ListenAndServe(address, p.handle)
}

func (p *program) handle(c *fasthttp.RequestCtx) {
	var answer any
	var err error
	id, _ := strconv.ParseInt(string(c.QueryArgs().Peek("id")), 10, 64)
	switch string(c.Path()) {
	case "/q":
		answer, err = p.item(id)
	case "/slow":
		var total int64
		total, err = p.slow(id)
		answer = map[string]int64{"total": total}
	case "/w":
		var r record
		if err = json.Unmarshal(c.PostBody(), &r); err == nil {
			err = p.insert(r)
		}
		answer = map[string]int{"stored": 1}
	case "/popup":
		var due bool
		if due, err = p.popup(string(c.QueryArgs().Peek("user"))); err == nil && !due {
			c.SetStatusCode(fasthttp.StatusNoContent)
			return
		}
		answer = map[string]any{"campaign": 1, "payload": map[string]string{"title": "A new version is out"}}
	}
	if err != nil {
		c.Error(err.Error(), fasthttp.StatusServiceUnavailable)
		return
	}
	c.SetContentType("application/json")
	_ = json.NewEncoder(c).Encode(answer) // writes to memory
}

func openPool(url string, pool, span int) (*program, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(pool)
	ctx := context.Background()
	db, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	slow := fmt.Sprintf("%s$1 AND id <= $1 + %d", selectSlow, span)
	return &program{
		item: func(id int64) (i item, err error) {
			err = db.QueryRow(ctx, selectItem+"$1", id).Scan(&i.ID, &i.Name, &i.Price, &i.Stock)
			return i, err
		},
		slow: func(id int64) (total int64, err error) {
			err = db.QueryRow(ctx, slow, id).Scan(&total)
			return total, err
		},
		insert: func(r record) error {
			_, err := db.Exec(ctx, insertInto+"($1, $2, $3, $4)", r.Device, r.Lat, r.Lon, r.Speed)
			return err
		},
	}, nil
}

func openSQL(driver, url string, pool, span int) (*program, error) {
	db, err := sql.Open(driver, url)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(pool)
	db.SetMaxIdleConns(pool)
	var statements [3]*sql.Stmt
	for i, text := range []string{selectItem + "?", fmt.Sprintf("%s? AND id <= ? + %d", selectSlow, span), insertInto + "(?, ?, ?, ?)"} {
		if statements[i], err = db.Prepare(text); err != nil {
			return nil, err
		}
	}
	return &program{
		item: func(id int64) (i item, err error) {
			err = statements[0].QueryRow(id).Scan(&i.ID, &i.Name, &i.Price, &i.Stock)
			return i, err
		},
		slow: func(id int64) (total int64, err error) {
			err = statements[1].QueryRow(id, id).Scan(&total)
			return total, err
		},
		insert: func(r record) error {
			_, err := statements[2].Exec(r.Device, r.Lat, r.Lon, r.Speed)
			return err
		},
	}, nil
}

// openRedis keeps the last show to each user, and a list of shows for whoever stores them.
func openRedis(address string) (*program, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, DisableCache: true})
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	return &program{popup: func(user string) (bool, error) {
		now := strconv.FormatInt(time.Now().Unix(), 10)
		err := client.Do(ctx, client.B().Set().Key("popup:last:"+user).Value(now).Nx().Ex(24*time.Hour).Build()).Error()
		if rueidis.IsRedisNil(err) {
			return false, nil
		}
		if err == nil {
			err = client.Do(ctx, client.B().Lpush().Key("popup:shows").Element(user+" 1 "+now).Build()).Error()
		}
		return err == nil, err
	}}, nil
}
