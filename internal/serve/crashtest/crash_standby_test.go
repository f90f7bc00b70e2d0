package crashtest

import (
	"slices"
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/serve/storetest"
)

// failover is a primary with a synchronous standby behind one address, as a pair that a
// cluster manager looks after.
type failover struct {
	primary, standby *apptest.PostgresServer
	address          *apptest.Forward
}

// newFailover returns the pair and a database of it.
func newFailover(t *testing.T) (*failover, storetest.Database) {
	t.Helper()
	r := newReplicatedPair(t)
	f := &failover{primary: r.primary, standby: r.standby, address: apptest.NewForward(t, r.primary.Addr())}
	url := strings.Replace(r.db.URL, r.primary.Addr(), f.address.Addr(), 1)
	return f, storetest.Database{URL: url, Query: storetest.PostgresQuery(url)}
}

// promote kills the primary for good and promotes the standby, which gets a new standby.
func (f *failover) promote(t *testing.T) {
	t.Helper()
	f.primary.Kill()
	if err := f.standby.Start(); err != nil {
		t.Fatal(err)
	}
	if err := f.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.primary = f.standby
	f.address.To(f.primary.Addr())
	f.standby = f.primary.SynchronousStandby(t)
}

// crashStandby returns a TestCrash on PostgreSQL with a synchronous standby that is taken
// away and promoted.
func crashStandby(t *testing.T, ack string, keyless bool) *crashTest {
	f, db := newFailover(t)
	return &crashTest{
		openDatabase: func() storetest.Database { return db }, server: f.primary.Server, pair: f, ack: ack, keyless: keyless,
		faults:         []string{"kill", "kill both", "standby away", "promote", "promote after outage"},
		addOrderColumn: "ALTER TABLE readings ADD COLUMN arrival bigserial", orderColumn: "arrival",
	}
}

// injectPair injects the faults that need a standby.
func (x *crashTest) injectPair(t *testing.T, fault string, c *crashClients) {
	t.Helper()
	f := x.pair
	switch fault {
	case "standby away":
		f.standby.Kill()
		x.waitAway(t, c)
		if err := f.standby.Start(); err != nil {
			t.Fatal(err)
		}
	case "promote":
		f.promote(t)
	case "promote after outage":
		// The restarted primary has records that the standby never gets.
		f.standby.Kill()
		x.waitAway(t, c)
		f.primary.Kill()
		if err := f.primary.Start(); err != nil {
			t.Fatal(err)
		}
		x.waitAway(t, c)
		f.promote(t)
	}
	x.server = f.primary.Server
}

// waitAway waits while the standby is away. The database may acknowledge no record that was
// sent in that time.
func (x *crashTest) waitAway(t *testing.T, c *crashClients) {
	t.Helper()
	sent := int(c.next.Load())
	pause(t, outage)
	if ids := c.ackedAfter(sent); x.ack == "database" && len(ids) > 0 {
		t.Errorf("records %v were sent and acknowledged without a standby", ids)
	}
}

// ackedAfter returns the acknowledged records that were sent after record id.
func (c *crashClients) ackedAfter(id int) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var after []int
	for _, ids := range c.acked {
		from, _ := slices.BinarySearch(ids, id+1) // each lane waits for the answer before it sends the next record
		after = append(after, ids[from:]...)
	}
	return after
}
