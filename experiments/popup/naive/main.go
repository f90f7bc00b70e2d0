// Command naive answers GET /popup?user=N as services do that the seed began with,
// and as the steps made them that it took:
//
//	-mode database    each request reads the user's last show and the campaigns, and a show is an INSERT
//	-mode list        the INSERT goes through a list in Redis, which a worker empties in batches
//	-mode cached      and the campaigns are read once a second; the user's last show is kept in Redis from the start, the database asked on a miss
//
// A user who was shown something within a day gets 204. GET /hello is an answer without a decision.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/rueidis"
	"github.com/valyala/fasthttp"
)

const (
	repeatAfter = 24 * time.Hour
	queue       = "popup:shows"
	batch       = 500
)

// campaign suits users of one city and channel, from an age and a version on, VIPs or not.
type campaign struct {
	id          int64
	payload     string
	city        string
	channel     string
	age, before int
	vip         bool
}

type app struct {
	mode      string
	db        *sql.DB
	lastShow  *sql.Stmt
	campaigns *sql.Stmt
	insert    *sql.Stmt
	redis     rueidis.Client
	cached    atomic.Pointer[[]campaign]
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
	database := flag.String("database", "", "mysql://USER[:PASSWORD]@HOST:PORT/NAME")
	redis := flag.String("redis", "", "HOST:PORT")
	listen := flag.String("listen", "127.0.0.1:8093", "address to serve on")
	mode := flag.String("mode", "database", "database, list or cached")
	connections := flag.Int("pool", 300, "database connections")
	flag.Parse()

	ln, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	a := &app{mode: *mode}
	if err := a.open(ctx, *database, *redis, *connections); err != nil {
		return err
	}
	workers, stopWorkers := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.work(workers)
	}()
	server := &fasthttp.Server{Handler: a.serve}
	served := make(chan error, 1)
	go func() { served <- server.Serve(patient{ln}) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		drain, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = server.ShutdownWithContext(drain)
	}
	stopWorkers()
	<-done
	a.redis.Close()
	return errors.Join(err, a.db.Close())
}

// patient is a listener that tries again where there is no file for a connection, as
// net/http's server does.
type patient struct{ net.Listener }

func (p patient) Accept() (net.Conn, error) {
	for {
		conn, err := p.Listener.Accept()
		if !errors.Is(err, syscall.EMFILE) {
			return conn, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (a *app) open(ctx context.Context, url, redis string, connections int) error {
	credentials, place, _ := strings.Cut(strings.TrimPrefix(url, "mysql://"), "@")
	config := mysql.NewConfig()
	config.User, config.Passwd, _ = strings.Cut(credentials, ":")
	config.Net, config.ParseTime = "tcp", true
	config.Addr, config.DBName, _ = strings.Cut(place, "/")
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return fmt.Errorf("read the database URL: %w", err)
	}
	a.db = sql.OpenDB(connector)
	a.db.SetMaxOpenConns(connections)
	a.db.SetMaxIdleConns(connections)
	for statement, text := range map[**sql.Stmt]string{
		&a.lastShow:  "SELECT shown_at FROM shows WHERE user_id = ? ORDER BY shown_at DESC LIMIT 1",
		&a.campaigns: "SELECT id, payload, city, channel, age_from, age_before, vip FROM campaigns ORDER BY id",
		&a.insert:    "INSERT INTO shows (user_id, campaign_id, shown_at) VALUES (?, ?, ?)",
	} {
		if *statement, err = a.db.PrepareContext(ctx, text); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	if a.redis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redis}, DisableCache: true}); err != nil {
		return fmt.Errorf("connect to Redis: %w", err)
	}
	if a.mode == "cached" {
		if err := a.warm(ctx); err != nil {
			return err
		}
	}
	return a.refresh(ctx)
}

// warm puts the users' last shows into Redis.
func (a *app) warm(ctx context.Context) error {
	rows, err := a.db.QueryContext(ctx, "SELECT user_id, MAX(shown_at) FROM shows GROUP BY user_id")
	if err != nil {
		return err
	}
	defer rows.Close()
	var commands rueidis.Commands
	send := func() error {
		for _, result := range a.redis.DoMulti(ctx, commands...) {
			if result.Error() != nil {
				return result.Error()
			}
		}
		commands = commands[:0]
		return nil
	}
	for rows.Next() {
		var user int64
		var shown time.Time
		if err := rows.Scan(&user, &shown); err != nil {
			return err
		}
		if commands = append(commands, a.keep(user, shown.Unix())); len(commands) == 10*batch {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return errors.Join(rows.Err(), send())
}

// keep is the command that keeps a user's last show in Redis.
func (a *app) keep(user, shown int64) rueidis.Completed {
	return a.redis.B().Set().Key(lastKey(user)).Value(strconv.FormatInt(shown, 10)).Ex(repeatAfter).Build()
}

func lastKey(user int64) string { return "popup:last:" + strconv.FormatInt(user, 10) }

func (a *app) serve(c *fasthttp.RequestCtx) {
	if string(c.Path()) == "/hello" {
		c.SetBodyString("hello\n")
		return
	}
	user, err := strconv.ParseInt(string(c.QueryArgs().Peek("user")), 10, 64)
	if err != nil {
		c.Error("user must be an integer", fasthttp.StatusBadRequest)
		return
	}
	chosen, err := a.decide(c, user, c.QueryArgs())
	switch {
	case err != nil:
		slog.Error("decide", "error", err)
		c.Error("the database does not answer", fasthttp.StatusServiceUnavailable)
	case chosen == nil:
		c.SetStatusCode(fasthttp.StatusNoContent)
	default:
		c.SetContentType("application/json")
		c.SetBodyString(fmt.Sprintf(`{"campaign":%d,"payload":%s}`, chosen.id, chosen.payload))
	}
}

func (a *app) decide(ctx context.Context, user int64, q *fasthttp.Args) (*campaign, error) {
	now := time.Now()
	last, err := a.last(ctx, user)
	if err != nil || now.Before(last.Add(repeatAfter)) {
		return nil, err
	}
	campaigns := *a.cached.Load()
	if a.mode != "cached" {
		if campaigns, err = a.readCampaigns(ctx); err != nil {
			return nil, err
		}
	}
	age, _ := strconv.Atoi(string(q.Peek("age"))) // 0 suits nobody
	for i := range campaigns {
		c := &campaigns[i]
		if c.city == string(q.Peek("city")) && c.channel == string(q.Peek("channel")) && age >= c.age && age < c.before && c.vip == (string(q.Peek("vip")) == "true") {
			return c, a.record(ctx, user, c.id, now)
		}
	}
	return nil, nil
}

// last returns when the user was shown something, zero for never.
func (a *app) last(ctx context.Context, user int64) (time.Time, error) {
	if a.mode == "cached" {
		seconds, err := a.redis.Do(ctx, a.redis.B().Get().Key(lastKey(user)).Build()).AsInt64()
		if err == nil {
			return time.Unix(seconds, 0), nil
		}
		if !rueidis.IsRedisNil(err) {
			return time.Time{}, err
		}
	}
	var shown time.Time
	err := a.lastShow.QueryRowContext(ctx, user).Scan(&shown)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	if err == nil && a.mode == "cached" {
		err = a.redis.Do(ctx, a.keep(user, max(shown.Unix(), 0))).Error()
	}
	return shown, err
}

// show is an entry of the list.
type show struct{ User, Campaign, At int64 }

func (a *app) record(ctx context.Context, user, campaign int64, now time.Time) error {
	if a.mode == "database" {
		_, err := a.insert.ExecContext(ctx, user, campaign, now.UTC())
		return err
	}
	text, err := json.Marshal(show{user, campaign, now.Unix()})
	if err != nil {
		return err
	}
	commands := rueidis.Commands{a.redis.B().Lpush().Key(queue).Element(string(text)).Build()}
	if a.mode == "cached" {
		commands = append(commands, a.keep(user, now.Unix()))
	}
	for _, result := range a.redis.DoMulti(ctx, commands...) {
		if result.Error() != nil {
			return result.Error()
		}
	}
	return nil
}

func (a *app) readCampaigns(ctx context.Context) ([]campaign, error) {
	rows, err := a.campaigns.QueryContext(ctx)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	campaigns := make([]campaign, 0, 50)
	for rows.Next() {
		var c campaign
		if err := rows.Scan(&c.id, &c.payload, &c.city, &c.channel, &c.age, &c.before, &c.vip); err != nil {
			return nil, err
		}
		campaigns = append(campaigns, c)
	}
	return campaigns, rows.Err()
}

func (a *app) refresh(ctx context.Context) error {
	campaigns, err := a.readCampaigns(ctx)
	if err == nil {
		a.cached.Store(&campaigns)
	}
	return err
}

// work reads the campaigns each second and empties the list.
func (a *app) work(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	idle := time.NewTicker(20 * time.Millisecond)
	defer idle.Stop()
	for {
		n, err := a.drain(ctx)
		if err != nil && ctx.Err() == nil {
			slog.Error("empty the list", "error", err)
		}
		if n == batch {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := a.refresh(ctx); err != nil && ctx.Err() == nil {
				slog.Error("read campaigns", "error", err)
			}
		case <-idle.C:
		}
	}
}

// drain inserts what the list holds, a batch at most. What it has taken is lost when
// the process dies: the seed's design has no more.
func (a *app) drain(ctx context.Context) (int, error) {
	entries, err := a.redis.Do(ctx, a.redis.B().Rpop().Key(queue).Count(batch).Build()).AsStrSlice()
	if rueidis.IsRedisNil(err) || err == nil && len(entries) == 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var text strings.Builder
	text.WriteString("INSERT INTO shows (user_id, campaign_id, shown_at) VALUES ")
	args := make([]any, 0, 3*len(entries))
	for i, entry := range entries {
		var s show
		if err := json.Unmarshal([]byte(entry), &s); err != nil {
			return 0, err
		}
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString("(?,?,?)")
		args = append(args, s.User, s.Campaign, time.Unix(s.At, 0).UTC())
	}
	_, err = a.db.ExecContext(ctx, text.String(), args...)
	return len(entries), err
}
