package chaostest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"spillway/internal/apptest"
)

// Variables of make chaos.
const (
	minutesVariable    = "SPILLWAY_CHAOS_MINUTES"    // how long; unset: one short run per database
	seedVariable       = "SPILLWAY_CHAOS_SEED"       // of the first run; unset: a random one
	databasesVariable  = "SPILLWAY_CHAOS_DATABASES"  // names with commas between them; unset: all
	operationsVariable = "SPILLWAY_CHAOS_OPERATIONS" // of each run; unset: operationsUsual
)

const (
	operationsUsual = 40
	operationsFew   = 12 // without any variable
)

// databases opens the database of a run.
var databases = []struct {
	name string
	open func(t *testing.T) *database
}{{"postgres", openPostgres}, {"mariadb", openMariaDB}, {"sqlite", openSQLite}}

// TestChaos has clients write while an operator works on the database, the configuration and the
// spool, in an order that a seed decides. At the end all is made good, and every acknowledged
// record must be accounted for exactly once, with the values that were sent.
func TestChaos(t *testing.T) {
	apptest.Long(t)
	unset, usual := rand.Uint64N(1_000_000), uint64(operationsUsual)
	if os.Getenv(minutesVariable) == "" {
		unset, usual = 1, operationsFew
	}
	seed := number(t, seedVariable, unset)
	operations := int(number(t, operationsVariable, usual))
	end := time.Now().Add(time.Duration(number(t, minutesVariable, 0)) * time.Minute)
	total := newTally()
	for first := true; first || time.Now().Before(end); first = false {
		for _, d := range databases {
			if names := os.Getenv(databasesVariable); names != "" && !slices.Contains(strings.Split(names, ","), d.name) {
				continue
			}
			t.Run(fmt.Sprintf("%s-%d", d.name, seed), func(t *testing.T) {
				replay := fmt.Sprintf("make chaos MINUTES=0 SEED=%d DATABASES=%s OPERATIONS=%d", seed, d.name, operations)
				r := newRun(t, d.open(t), seed, replay)
				r.work(operations)
				r.finish()
				t.Logf("seed %d: %s", seed, r.tally)
				total.add(r.tally)
			})
		}
		seed++
	}
	t.Logf("all runs: %s", total)
}

// number returns the number in an environment variable.
func number(t *testing.T, name string, unset uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return unset
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s is %q, want a number", name, text)
	}
	return n
}
