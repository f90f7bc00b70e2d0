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
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

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

type popups struct {
	mode      string
	db        *sql.DB
	lastShow  *sql.Stmt
	campaigns *sql.Stmt
	insert    *sql.Stmt
	redis     rueidis.Client
	cached    atomic.Pointer[[]campaign]
}

// runPopup answers GET /popup?user=N as services do that the seed began with, and as the steps made them that it took:
//
//	--mode database    each request reads the user's last show and the campaigns, and a show is an INSERT
//	--mode list        the INSERT goes through a list in Redis, which a worker empties in batches
//	--mode cached      and the campaigns are read once per second; the user's last show is kept in Redis, and the database is asked on a miss
//
// A user who was shown something within a day gets 204. GET /hello is an answer without a decision.
func runPopup(ctx context.Context, flags *flag.FlagSet, args []string) error {
	database := flags.String("database", "", "mysql://USER[:PASSWORD]@HOST:PORT/NAME")
	redis := flags.String("redis", "", "HOST:PORT")
	address := flags.String("listen", "127.0.0.1:8093", "address to serve on")
	mode := flags.String("mode", "database", "database, list or cached")
	connections := flags.Int("pool", 300, "database connections")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := listen(*address)
	if err != nil {
		return err
	}
	p := &popups{mode: *mode}
	if err := p.open(ctx, *database, *redis, *connections); err != nil {
		return err
	}
	workers, stopWorkers := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.work(workers)
	}()
	err = serveFast(ctx, retryListener{listener}, p.serve)
	stopWorkers()
	<-done
	p.redis.Close()
	return errors.Join(err, p.db.Close())
}

// retryListener tries again if the process has too many open files, as net/http's server does.
type retryListener struct{ net.Listener }

func (l retryListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if !errors.Is(err, syscall.EMFILE) {
			return conn, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (p *popups) open(ctx context.Context, url, redis string, connections int) error {
	var err error
	if p.db, err = openMySQL(url, connections, true); err != nil {
		return err
	}
	for statement, text := range map[**sql.Stmt]string{
		&p.lastShow:  "SELECT shown_at FROM shows WHERE user_id = ? ORDER BY shown_at DESC LIMIT 1",
		&p.campaigns: "SELECT id, payload, city, channel, age_from, age_before, vip FROM campaigns ORDER BY id",
		&p.insert:    "INSERT INTO shows (user_id, campaign_id, shown_at) VALUES (?, ?, ?)",
	} {
		if *statement, err = p.db.PrepareContext(ctx, text); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	if p.redis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{redis}, DisableCache: true}); err != nil {
		return fmt.Errorf("connect to Redis: %w", err)
	}
	if p.mode == "cached" {
		if err := p.warm(ctx); err != nil {
			return err
		}
	}
	return p.refresh(ctx)
}

// warm puts the users' last shows into Redis.
func (p *popups) warm(ctx context.Context) error {
	rows, err := p.db.QueryContext(ctx, "SELECT user_id, MAX(shown_at) FROM shows GROUP BY user_id")
	if err != nil {
		return err
	}
	defer rows.Close()
	var commands rueidis.Commands
	send := func() error {
		for _, result := range p.redis.DoMulti(ctx, commands...) {
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
		if commands = append(commands, p.keep(user, shown.Unix())); len(commands) == 10*batch {
			if err := send(); err != nil {
				return err
			}
		}
	}
	return errors.Join(rows.Err(), send())
}

// keep is the command that keeps a user's last show in Redis.
func (p *popups) keep(user, shown int64) rueidis.Completed {
	return p.redis.B().Set().Key(lastKey(user)).Value(strconv.FormatInt(shown, 10)).Ex(repeatAfter).Build()
}

func lastKey(user int64) string { return "popup:last:" + strconv.FormatInt(user, 10) }

func (p *popups) serve(c *fasthttp.RequestCtx) {
	if string(c.Path()) == "/hello" {
		c.SetBodyString("hello\n")
		return
	}
	user, err := strconv.ParseInt(string(c.QueryArgs().Peek("user")), 10, 64)
	if err != nil {
		c.Error("user must be an integer", fasthttp.StatusBadRequest)
		return
	}
	chosen, err := p.decide(c, user, c.QueryArgs())
	switch {
	case err != nil:
		slog.Error("decide", "error", err)
		c.Error("the database does not answer: "+err.Error(), fasthttp.StatusServiceUnavailable)
	case chosen == nil:
		c.SetStatusCode(fasthttp.StatusNoContent)
	default:
		c.SetContentType("application/json")
		c.SetBodyString(fmt.Sprintf(`{"campaign":%d,"payload":%s}`, chosen.id, chosen.payload))
	}
}

func (p *popups) decide(ctx context.Context, user int64, q *fasthttp.Args) (*campaign, error) {
	now := time.Now()
	last, err := p.last(ctx, user)
	if err != nil || now.Before(last.Add(repeatAfter)) {
		return nil, err
	}
	campaigns := *p.cached.Load()
	if p.mode != "cached" {
		if campaigns, err = p.readCampaigns(ctx); err != nil {
			return nil, err
		}
	}
	age, _ := strconv.Atoi(string(q.Peek("age"))) // 0 suits nobody
	for i := range campaigns {
		c := &campaigns[i]
		if c.city == string(q.Peek("city")) && c.channel == string(q.Peek("channel")) && age >= c.age && age < c.before &&
			c.vip == (string(q.Peek("vip")) == "true") {
			return c, p.record(ctx, user, c.id, now)
		}
	}
	return nil, nil
}

// last returns when the user was shown something, zero for never.
func (p *popups) last(ctx context.Context, user int64) (time.Time, error) {
	if p.mode == "cached" {
		seconds, err := p.redis.Do(ctx, p.redis.B().Get().Key(lastKey(user)).Build()).AsInt64()
		if err == nil {
			return time.Unix(seconds, 0), nil
		}
		if !rueidis.IsRedisNil(err) {
			return time.Time{}, err
		}
	}
	var shown time.Time
	err := p.lastShow.QueryRowContext(ctx, user).Scan(&shown)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	if err == nil && p.mode == "cached" {
		err = p.redis.Do(ctx, p.keep(user, max(shown.Unix(), 0))).Error()
	}
	return shown, err
}

// show is an entry of the list.
type show struct{ User, Campaign, At int64 }

func (p *popups) record(ctx context.Context, user, campaign int64, now time.Time) error {
	if p.mode == "database" {
		_, err := p.insert.ExecContext(ctx, user, campaign, now.UTC())
		return err
	}
	text, err := json.Marshal(show{user, campaign, now.Unix()})
	if err != nil {
		return err
	}
	commands := rueidis.Commands{p.redis.B().Lpush().Key(queue).Element(string(text)).Build()}
	if p.mode == "cached" {
		commands = append(commands, p.keep(user, now.Unix()))
	}
	for _, result := range p.redis.DoMulti(ctx, commands...) {
		if result.Error() != nil {
			return result.Error()
		}
	}
	return nil
}

func (p *popups) readCampaigns(ctx context.Context) ([]campaign, error) {
	rows, err := p.campaigns.QueryContext(ctx)
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

func (p *popups) refresh(ctx context.Context) error {
	campaigns, err := p.readCampaigns(ctx)
	if err == nil {
		p.cached.Store(&campaigns)
	}
	return err
}

// work reads the campaigns each second and empties the list.
func (p *popups) work(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	idle := time.NewTicker(20 * time.Millisecond)
	defer idle.Stop()
	for {
		n, err := p.drain(ctx)
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
			if err := p.refresh(ctx); err != nil && ctx.Err() == nil {
				slog.Error("read campaigns", "error", err)
			}
		case <-idle.C:
		}
	}
}

// drain inserts what the list holds, a batch at most. What it has taken is lost when
// the process dies: the seed's design has no more.
func (p *popups) drain(ctx context.Context) (int, error) {
	entries, err := p.redis.Do(ctx, p.redis.B().Rpop().Key(queue).Count(batch).Build()).AsStrSlice()
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
	_, err = p.db.ExecContext(ctx, text.String(), args...)
	return len(entries), err
}
