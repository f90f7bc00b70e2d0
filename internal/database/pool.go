package database

import (
	"cmp"
	"sync/atomic"
	"time"
)

// Pool bounds the connections to one database. The zero value of a field means
// its default (WithDefaults).
type Pool struct {
	Min              int           `yaml:"min" default:"1" range:"0..10000" doc:"connections opened at start and kept" over:"idle connections are closed down to min"`
	Max              int           `yaml:"max" range:"1..10000" doc:"connections per database" over:"statements wait; 'spillway_pool_waiting'"`
	MaxLifetime      time.Duration `yaml:"max_lifetime" default:"30m" range:"1s..8760h" doc:"age at which a connection is replaced" over:"replaced once it is free; not on SQLite"`
	MaxIdleTime      time.Duration `yaml:"max_idle_time" default:"5m" range:"1s..8760h" doc:"idle time after which a connection is closed" over:"closed; not on SQLite"`
	ConnectTimeout   time.Duration `yaml:"connect_timeout" default:"5s" range:"10ms..10m" doc:"one attempt to connect" over:"retried with a growing pause"`
	AcquireTimeout   time.Duration `yaml:"acquire_timeout" default:"2s" range:"1ms..10m" doc:"wait of a statement for a connection" over:"503, or the window stays as it is"`
	StatementTimeout time.Duration `yaml:"statement_timeout" default:"5s" range:"1ms..1h" doc:"run time of a statement" over:"the server cancels it: 503, or the window stays as it is"`
}

// WithDefaults returns p with its zero fields filled. The default of Max is (cores x 2) + 1, the usual
// starting point for one disk, and at most 17, because small managed databases grant 20 connections. It
// assumes that the database has as many cores as this machine.
func (p Pool) WithDefaults(cores int) Pool {
	p.Max = cmp.Or(p.Max, min(2*cores+1, 17))
	p.Min = cmp.Or(p.Min, min(1, p.Max))
	p.MaxLifetime = cmp.Or(p.MaxLifetime, 30*time.Minute)
	p.MaxIdleTime = cmp.Or(p.MaxIdleTime, 5*time.Minute)
	p.ConnectTimeout = cmp.Or(p.ConnectTimeout, 5*time.Second)
	p.AcquireTimeout = cmp.Or(p.AcquireTimeout, 2*time.Second)
	p.StatementTimeout = cmp.Or(p.StatementTimeout, 5*time.Second)
	return p
}

// Stats is a snapshot of a pool, for metrics.
type Stats struct {
	InUse    int           `json:"connections_in_use" metric:"connections,state=in_use" help:"Connections open."`
	Idle     int           `json:"connections_idle" metric:"connections,state=idle"`
	Max      int           `json:"connections_max" metric:"connections_max" help:"Connections at most."`
	Waiting  int           `json:"waiting" metric:"waiting" help:"Statements waiting for a connection."`
	Waits    int64         `json:"-" metric:"waits_total" help:"Statements that waited for a connection."`
	WaitTime time.Duration `json:"-" metric:"wait_seconds_total" help:"Time that statements waited for a connection."`
	Connects int64         `json:"-" metric:"connects_total" help:"Connections opened."`
}

// Logins counts the users with which the connections of a pool are opened one after the other: rows read before a change may be
// none that the next user may see.
type Logins struct {
	user  atomic.Pointer[string]
	count atomic.Uint64
}

// Count returns the number of changes.
func (l *Logins) Count() uint64 { return l.count.Load() }

// Opened is called with the user of each new connection before it is used. If that is another user than the last one, replace
// must replace the connections that there are.
func (l *Logins) Opened(user string, replace func()) {
	if last := l.user.Swap(&user); last != nil && *last != user {
		replace()
		l.count.Add(1)
	}
}
