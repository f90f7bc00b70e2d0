package admin

import (
	"net"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// connections bounds the connections of the listener.
type connections struct {
	open    atomic.Int64
	refused prometheus.Counter
}

func newConnections() *connections {
	return &connections{refused: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "spillway_admin_connections_refused_total",
		Help: "Admin connections closed because too many were open.",
	})}
}

// track follows net/http's connection states: it closes a new connection
// beyond the bound, which net/http then reports as closed like any other.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if c.open.Add(1) > ConnectionsMax {
			c.refused.Inc()
			_ = conn.Close() // the client sees it; there is nothing more to do
		}
	case http.StateClosed, http.StateHijacked:
		c.open.Add(-1)
	}
}

// collectors returns the metrics of the bound.
func (c *connections) collectors() []prometheus.Collector {
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spillway_admin_connections",
		Help: "Admin connections open.",
	}, func() float64 { return float64(c.open.Load()) })
	return []prometheus.Collector{open, c.refused}
}
