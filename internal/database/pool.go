package database

import (
	"cmp"
	"time"
)

// Pool bounds the connections to one database. The zero value of a field means
// its default (DefaultPool).
type Pool struct {
	Min              int           // connections opened at start and kept
	Max              int           // connections at most
	MaxLifetime      time.Duration // a connection older than this is replaced once it is free
	MaxIdleTime      time.Duration // a connection idle for longer is closed, down to Min
	ConnectTimeout   time.Duration // one attempt to connect
	AcquireTimeout   time.Duration // a statement waits at most this long for a connection
	StatementTimeout time.Duration // the server cancels a statement that runs longer
}

// DefaultPool returns the pool that is used without configuration. Max is (cores x 2) + 1,
// the usual starting point for one disk, and at most 17, because small managed databases grant
// 20 connections. It assumes that the database has as many cores as this machine.
func DefaultPool(cores int) Pool {
	return Pool{
		Min:              1,
		Max:              min(2*cores+1, 17),
		MaxLifetime:      30 * time.Minute,
		MaxIdleTime:      5 * time.Minute,
		ConnectTimeout:   5 * time.Second,
		AcquireTimeout:   2 * time.Second,
		StatementTimeout: 5 * time.Second,
	}
}

// WithDefaults returns p with its zero fields filled from DefaultPool(cores).
func (p Pool) WithDefaults(cores int) Pool {
	d := DefaultPool(cores)
	p.Max = cmp.Or(p.Max, d.Max)
	p.Min = cmp.Or(p.Min, min(d.Min, p.Max))
	p.MaxLifetime = cmp.Or(p.MaxLifetime, d.MaxLifetime)
	p.MaxIdleTime = cmp.Or(p.MaxIdleTime, d.MaxIdleTime)
	p.ConnectTimeout = cmp.Or(p.ConnectTimeout, d.ConnectTimeout)
	p.AcquireTimeout = cmp.Or(p.AcquireTimeout, d.AcquireTimeout)
	p.StatementTimeout = cmp.Or(p.StatementTimeout, d.StatementTimeout)
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
