//go:build linux

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"
	"github.com/valyala/fasthttp"
	_ "modernc.org/sqlite"
)

// The statements of all programs. A slow one reads as many rows as cost the database about 2 ms; a stuck one takes a second for
// the argument 1.
const (
	selectItem  = "SELECT id, name, price, stock FROM items WHERE id = :id"
	selectSlow  = "SELECT id, name, price, (SELECT sum(stock) FROM items WHERE id > :id AND id <= :id + %d) AS stock FROM items WHERE id = :id"
	selectStuck = selectItem + " AND (SELECT count(*) FROM (SELECT generate_series(1, CASE WHEN :id = 1 THEN 10000000 ELSE 0 END)) AS s) >= 0"
	selectPage  = "SELECT id, name, price, stock FROM items WHERE id < :id ORDER BY id DESC LIMIT 20"
	insertInto  = "INSERT INTO records (device, lat, lon, speed) VALUES (:device, :lat, :lon, :speed)"
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
	items map[string]func(id int64) (item, error) // by path
	page  func(last int64) ([]item, error)
	store func(r record) error
	popup func(user string) (due bool, err error)
}

// servePeer serves the program on an address until it is ended by a signal.
func servePeer(database, url string, pool, span int, address string) error {
	open := openSQL
	switch database {
	case "postgres":
		open = openPool
	case "redis":
		open = openRedis
	}
	p, err := open(database, url, pool, span)
	if err != nil {
		return fmt.Errorf("open %s: %w", database, err)
	}
	return fasthttp.ListenAndServe(address, p.handle)
}

func (p *program) handle(c *fasthttp.RequestCtx) {
	var answer any
	var err error
	switch path := string(c.Path()); path {
	case "/w":
		var r record
		if err = json.Unmarshal(c.PostBody(), &r); err == nil {
			err = p.store(r)
		}
		answer = map[string]int{"stored": 1}
	case "/page":
		id, _ := strconv.ParseInt(string(c.QueryArgs().Peek("id")), 10, 64)
		answer, err = p.page(id)
	case "/popup":
		var due bool
		if due, err = p.popup(string(c.QueryArgs().Peek("user"))); err == nil && !due {
			c.SetStatusCode(fasthttp.StatusNoContent)
			return
		}
		answer = map[string]any{"campaign": 1, "payload": map[string]string{"title": "A new version is out"}}
	default:
		if find := p.items[path]; find != nil {
			id, _ := strconv.ParseInt(string(c.QueryArgs().Peek("id")), 10, 64)
			answer, err = find(id)
		}
	}
	if err != nil {
		c.Error(err.Error(), fasthttp.StatusServiceUnavailable)
		return
	}
	c.SetContentType("application/json")
	_ = json.NewEncoder(c).Encode(answer) // writes to memory
}

func openPool(_, url string, pool, span int) (*program, error) {
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
	find := func(text string) func(int64) (item, error) {
		text = strings.ReplaceAll(text, ":id", "$1")
		return func(id int64) (i item, err error) {
			err = db.QueryRow(ctx, text, id).Scan(&i.ID, &i.Name, &i.Price, &i.Stock)
			return i, err
		}
	}
	insert := strings.NewReplacer(":device", "$1", ":lat", "$2", ":lon", "$3", ":speed", "$4").Replace(insertInto)
	return &program{
		items: map[string]func(int64) (item, error){
			"/q": find(selectItem), "/slow": find(fmt.Sprintf(selectSlow, span)), "/stuck": find(selectStuck),
		},
		page: func(last int64) ([]item, error) {
			rows, err := db.Query(ctx, strings.ReplaceAll(selectPage, ":id", "$1"), last)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowToStructByPos[item])
		},
		store: func(r record) error {
			_, err := db.Exec(ctx, insert, r.Device, r.Lat, r.Lon, r.Speed)
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
	p := &program{items: map[string]func(int64) (item, error){}}
	for path, text := range map[string]string{"/q": selectItem, "/slow": fmt.Sprintf(selectSlow, span)} {
		statement, err := db.Prepare(strings.ReplaceAll(text, ":id", "?"))
		if err != nil {
			return nil, err
		}
		p.items[path] = func(id int64) (i item, err error) {
			ids := []any{id, id, id}[:strings.Count(text, ":id")]
			err = statement.QueryRow(ids...).Scan(&i.ID, &i.Name, &i.Price, &i.Stock)
			return i, err
		}
	}
	page, err := db.Prepare(strings.ReplaceAll(selectPage, ":id", "?"))
	if err != nil {
		return nil, err
	}
	p.page = func(last int64) (list []item, err error) {
		rows, err := page.Query(last)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var i item
			if err := rows.Scan(&i.ID, &i.Name, &i.Price, &i.Stock); err != nil {
				return nil, err
			}
			list = append(list, i)
		}
		return list, rows.Err()
	}
	insert, err := db.Prepare(strings.NewReplacer(":device", "?", ":lat", "?", ":lon", "?", ":speed", "?").Replace(insertInto))
	p.store = func(r record) error {
		_, err := insert.Exec(r.Device, r.Lat, r.Lon, r.Speed)
		return err
	}
	return p, err
}

// openRedis keeps the last show to each user, and a list of shows for whoever stores them.
func openRedis(_, address string, _, _ int) (*program, error) {
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
