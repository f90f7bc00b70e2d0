package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway/internal/apptest"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/redis"
)

// The backlog is known while the database is down, and not known without Redis.
func TestPopupWaitingIsKnown(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	table := newPopupTable()
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table})
	if n := r.Stats().Backlog; n != -1 && r.Ready() != nil {
		t.Errorf("before the first look: %d", n)
	}
	r.waitReady(t)
	table.fail(errors.New("away"))
	for round := 1; round <= 2; round++ { // the second during retries of the first
		for i := range 40 {
			r.ask(t, fmt.Sprint(round, "-", i), popupDay)
		}
		apptest.Await(t, "the events are counted", func() bool { return r.Stats().Backlog == int64(40*round) })
	}
	if s := r.Stats(); s.Oldest <= 0 || s.Oldest > time.Hour {
		t.Errorf("%+v", s)
	}
	table.fail(nil)
	apptest.Await(t, "none waits", func() bool { s := r.Stats(); return s.Backlog == 0 && s.Oldest == 0 })
	server.Kill()
	apptest.Await(t, "it is not known without Redis", func() bool { return r.Stats().Backlog == -1 })
}

// A state has expired and its event still waits: the database is behind and is not read.
func TestPopupBehind(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	table := newPopupTable()
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table, StateTTL: time.Hour}).waitReady(t)
	table.stick(true) // reads, but does not write
	key, place := popup.Key{User: "7", Placement: "home"}, r.engine.Set().Placement("home")
	a := r.engine.Attributes()
	defer r.engine.Release(a)
	shown, _, err := popup.Show(place, key, popup.State{}, popup.Decide(place, popup.State{}, a, popupDay), popupDay)
	if err != nil {
		t.Fatal(err)
	}
	_, clicked, err := popup.AnswerShow(place, shown, popup.Token{Key: key, Campaign: 1, Version: 1, At: popupDay}, popup.KindClick, popupDay)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := popup.AppendEvent(nil, clicked)
	if err != nil {
		t.Fatal(err)
	}
	var quoted strings.Builder
	for _, b := range encoded {
		fmt.Fprintf(&quoted, `\x%02x`, b)
	}
	id := time.Now().Add(-61 * time.Minute).UnixMilli() // when the state was last written, before it expired
	if answer := command(t, server.Addr(), fmt.Sprintf(`XADD {spillway:popup}:events %d-0 e "%s"`, id, &quoted)); strings.HasPrefix(answer, "-") {
		t.Fatal(answer)
	}
	apptest.Await(t, "the event is seen", func() bool { return r.Stats().Oldest > time.Hour })
	if answer := r.ask(t, "7", popupDay); answer.Reason != popup.Unavailable {
		t.Errorf("the database is behind: %+v", answer)
	}
	table.stick(false)
	apptest.Await(t, "the database knows", func() bool { return r.ask(t, "7", popupDay).Reason == popup.WaitClicked })
	if answer := r.answer(t, "new", popupDay); answer.Reason != popup.First {
		t.Errorf("a new user: %+v", answer)
	}
}

// replace has another database answer at the address, and returns how often the first was asked which it is.
func (d *popupTable) replace() (asked int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.id, d.stuck = "of a neighbour", false
	return d.asked
}

// Another database that answers after an outage gets no events, also if another process was moving them meanwhile.
func TestPopupReplacedDatabase(t *testing.T) {
	t.Parallel()
	server, table, log := apptest.Redis(t), newPopupTable(), &popupLog{}
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table, Log: slog.New(slog.NewTextHandler(log, nil))}).waitReady(t)
	table.stick(true)
	showTo(t, r, 3)
	apptest.Await(t, "the events wait", func() bool { return strings.Contains(log.String(), "cannot be moved") })
	command(t, server.Addr(), "SET {spillway:popup}:drainer another PX 2000")
	before := table.replace()
	apptest.Await(t, "the database is asked again", func() bool {
		table.mu.Lock()
		defer table.mu.Unlock()
		return table.asked > before || len(table.events) > 0
	})
	if n := table.has(popup.KindShow); n > 0 {
		t.Errorf("another database has %d of the events", n)
	}
}

// hangingTable is a database that does not return states.
type hangingTable struct {
	*popupTable
	mu   sync.Mutex
	hang bool
}

func (d *hangingTable) States(ctx context.Context, keys []popup.Key) ([]popup.State, error) {
	d.mu.Lock()
	hang := d.hang
	d.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return d.popupTable.States(ctx, keys)
}

// A lookup ends after the configured time, however many there are, while the database does not
// answer at all, and lookups whose callers have gone do not delay others.
func TestPopupLoadTimeout(t *testing.T) {
	t.Parallel()
	server := apptest.Redis(t)
	table := &hangingTable{popupTable: newPopupTable(), hang: true}
	r := startPopups(t, server.URL(""), redis.PopupConfig{Table: table, StateTTL: time.Hour, Timeout: 300 * time.Millisecond}).waitReady(t)
	var users sync.WaitGroup
	for i := range 3000 { // several batches
		users.Go(func() {
			if answer := r.ask(t, fmt.Sprint(i), popupDay); answer.Reason != popup.Unavailable {
				t.Errorf("the database hangs: %+v", answer)
			}
		})
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		users.Wait()
	}()
	apptest.Receive(t, "the answers of 3000 lookups", answered)
	table.mu.Lock()
	table.hang = false
	table.mu.Unlock()
	apptest.Await(t, "a state is read again", func() bool { return r.ask(t, "1", popupDay).Reason != popup.Unavailable })
}

// oldRedis is a proxy that answers INFO like version 6.2, which accepts at most one section.
func oldRedis(t *testing.T, addr string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var copies sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		copies.Wait()
	})
	pass := func(to, from net.Conn, old, replacement string) {
		defer to.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if _, bad := to.Write(bytes.ReplaceAll(buffer[:n], []byte(old), []byte(replacement))); err != nil || bad != nil {
				return
			}
		}
	}
	copies.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", addr)
			if err != nil {
				client.Close()
				return
			}
			// SORT with so many arguments is a syntax error too.
			copies.Go(func() { pass(server, client, "*5\r\n$4\r\nINFO", "*5\r\n$4\r\nSORT") })
			copies.Go(func() { pass(client, server, "\nredis_version:7.", "\nredis_version:6.") })
		}
	})
	return l.Addr().String()
}

// A server that is too old is refused at start.
func TestPopupOldRedis(t *testing.T) {
	t.Parallel()
	addr := oldRedis(t, apptest.Redis(t).Addr())
	conn, err := net.Dial("tcp", addr) // the proxy is as old as it says
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "*5\r\n$4\r\nINFO\r\n$6\r\nserver\r\n$6\r\nmemory\r\n$1\r\na\r\n$1\r\nb\r\n"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 100)
	if n, err := conn.Read(answer); err != nil || !strings.HasPrefix(string(answer[:n]), "-ERR syntax error") {
		t.Errorf("%s %v", answer, err)
	}
	conn.Close()
	p, err := openPopups(t.Context(), "redis://"+addr, redis.Patient(redis.PopupConfig{Table: newPopupTable(), Log: slog.New(slog.DiscardHandler)}))
	if p != nil {
		p.Close()
	}
	if !errors.Is(err, redis.ErrPopupServer) || !strings.Contains(err.Error(), `it is version "6.`) || !strings.Contains(err.Error(), "7.0 or newer is required") {
		t.Errorf("%v", err)
	}
}
