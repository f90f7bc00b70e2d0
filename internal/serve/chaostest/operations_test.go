package chaostest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"spillway/internal/apptest"
)

// operation is something that an operator does. It returns the details for the log.
type operation struct {
	name     string
	weight   int
	possible func() bool
	do       func() (string, error)
}

// operations returns all operations of a run.
func (r *run) operations() []operation {
	always := func() bool { return true }
	up := func() bool { return r.up }
	down := func() bool { return !r.up }
	reachable := func() bool { return !r.db.down }
	all := []operation{
		{"kill spillway", 2, up, r.killService},
		{"stop spillway", 3, up, r.stopService},
		{"start spillway", 12, down, r.startService},
		{"restart spillway", 4, up, r.restartService},
		{"kill spillway and start", 4, up, func() (string, error) { r.service.Kill(); return r.startService() }},
		{"change ack", 4, always, r.changeAck},
		{"change path", 3, always, r.changePath},
		{"reload", 2, up, r.reload},
		{"move", 4, up, r.move},
		{"retry", 3, always, r.retry},
		{"discard", 1, up, r.discard},
		{"make good", 14, func() bool { return reachable() && len(r.broken) > 0 }, r.makeGood},
		{"copy", 2, reachable, r.copy},
		{"restore", 2, func() bool { return reachable() && r.copies > 0 }, r.restore},
	}
	if r.db.server != nil {
		all = append(all,
			operation{"kill database", 2, reachable, r.killDatabase},
			operation{"stop database", 2, reachable, r.stopDatabase},
			operation{"start database", 12, func() bool { return r.db.down }, func() (string, error) { return "", r.startDatabase() }},
			operation{"cut connections", 3, reachable, func() (string, error) { r.db.address.To(r.db.server.Addr()); return "", nil }},
			operation{"end sessions", 2, reachable, func() (string, error) { return "", r.db.endSessions() }},
		)
	}
	for _, change := range r.db.changes {
		all = append(all, operation{change.name, change.weight, reachable, func() (string, error) { return r.change(change) }})
	}
	return all
}

func (r *run) killService() (string, error) {
	r.service.Kill()
	r.up = false
	return "", nil
}

func (r *run) stopService() (string, error) {
	r.up = false
	return "", r.service.Stop()
}

func (r *run) startService() (string, error) {
	if err := r.service.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.up = true
	r.started()
	return r.checkNamed()
}

func (r *run) restartService() (string, error) {
	if _, err := r.stopService(); err != nil {
		return "", err
	}
	return r.startService()
}

// changeAck changes the ack of a stream in the file, and asks for a reload, which the process refuses.
func (r *run) changeAck() (string, error) {
	s := r.streams[r.random.IntN(len(r.streams))]
	s.ack = r.choose("database", "spool")
	r.configure()
	return s.path + " " + s.ack, r.askForReload()
}

// changePath changes the path of a stream in the file, with or without its other paths as aliases.
func (r *run) changePath() (string, error) {
	s := r.streams[len(r.streams)-1]
	s.path, s.aliases = r.choose(movingPaths...), nil
	for _, path := range movingPaths {
		if path != s.path && r.random.IntN(3) == 0 {
			s.aliases = append(s.aliases, path)
		}
	}
	r.configure()
	return fmt.Sprint(s.path, " ", s.aliases), r.askForReload()
}

func (r *run) reload() (string, error) { return "", r.askForReload() }

// askForReload reloads half of the time. Of streams nothing changes before a restart.
func (r *run) askForReload() error {
	switch way := r.random.IntN(4); {
	case !r.up || way > 1:
		return nil
	case way == 0:
		return syscall.Kill(r.service.PID(), syscall.SIGHUP)
	}
	a, err := apptest.TryPost(r.ctx, http.DefaultClient, r.service.Admin+"/reload", "")
	if err == nil && a.Status != http.StatusNoContent && a.Status != http.StatusConflict {
		err = fmt.Errorf("reload: %d %s", a.Status, a.Body)
	}
	return err
}

// change has the operator change a table.
func (r *run) change(c tableChange) (string, error) {
	s := r.streams[r.random.IntN(len(r.streams))]
	if r.away[s.table] || c.keyOnly && !s.key {
		s = r.streams[1]
	}
	if r.away[s.table] {
		return "", errors.New("the table is renamed")
	}
	detail, err := c.do(r, s.table)
	if c.lasts {
		r.broken[s.table] += " " + c.name
		r.away[s.table] = c.name == renameTable
	}
	return s.table + " " + detail, err
}

// makeGood undoes what was done to a table.
func (r *run) makeGood() (string, error) {
	var tables []string
	for table := range r.broken {
		tables = append(tables, table)
	}
	slices.Sort(tables)
	table := r.choose(tables...)
	return table + ":" + r.broken[table], r.normalize(table)
}

func (r *run) normalize(table string) error {
	err := r.db.normalize(table, table == "keyed")
	if err == nil {
		delete(r.broken, table)
		delete(r.away, table)
	}
	return err
}

func (r *run) copy() (string, error) {
	err := r.db.copy(r.copies + 1)
	if err == nil {
		r.copies++
	}
	return fmt.Sprint(r.copies), err
}

// restore puts one of the last two copies in the place of the database.
func (r *run) restore() (string, error) {
	n := max(1, r.copies-r.random.IntN(2))
	err := r.db.restore(n, r.up)
	for _, s := range r.streams { // they are as they were then
		r.broken[s.table] += " restore"
		delete(r.away, s.table)
	}
	return fmt.Sprint(n), err
}

func (r *run) killDatabase() (string, error) {
	r.db.server.Kill()
	r.db.down = true
	return "", nil
}

func (r *run) stopDatabase() (string, error) {
	r.db.down = true
	return "", r.db.server.Stop()
}

func (r *run) startDatabase() error {
	if err := r.db.server.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.db.down = false
	return nil
}

// move gives what no stream drains to the stream of the table.
func (r *run) move() (string, error) {
	names, err := r.spoolStatus()
	if err != nil {
		return "", err
	}
	to := r.streams[len(r.streams)-1].running.Load().(string)
	var moved []string
	for _, n := range names {
		if n.Drain != "none" || n.Stream == to || !slices.Contains(movingPaths, n.Stream) || n.Records+n.DeadLetters == 0 {
			continue
		}
		if r.random.IntN(2) == 0 {
			_, stderr, code := binary.Run(r.t, "spool", "move", n.Stream, to, "--data", r.service.Dir()+"/data")
			if code != 0 && !strings.Contains(stderr, "no stream") {
				err = fmt.Errorf("spool move: %d %s", code, stderr)
			}
		} else {
			_, err = r.orderSpool("move", map[string]any{"stream": n.Stream, "to": to, "waiting": true})
		}
		if err != nil {
			return n.Stream, err
		}
		moved = append(moved, n.Stream)
	}
	return fmt.Sprint(moved), nil
}
