package chaostest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/apptest"
)

// finish makes everything good, waits until the spool is drained, and accounts for every record,
// before and after dead letters are retried.
func (r *run) finish() {
	t := r.t
	if r.db.down {
		if err := r.startDatabase(); err != nil {
			t.Fatal(err)
		}
	}
	if !r.up {
		if _, err := r.startService(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range r.streams {
		apptest.AwaitState(t, "table "+s.table+" is made good", func() (string, bool) {
			err := r.normalize(s.table)
			return fmt.Sprint(err), err == nil
		})
	}
	r.logf("all is made good")
	r.stop()
	apptest.AwaitState(t, "requests that were repeated are accepted", func() (string, bool) {
		return r.pending(), r.working.Load() == 0
	})
	r.logf("the clients have ended")
	r.service.WaitReady(t)
	r.drain()
	r.logf("the spool is drained")
	r.account("at first")
	if _, err := r.orderSpool("retry", map[string]any{}); err != nil && len(r.letterIDs(false)) > 0 {
		t.Error(err)
	}
	r.drain()
	r.account("after a retry")
	r.count()
	r.report()
}

// drain waits until nothing waits in the spool. Each minute something must be drained.
func (r *run) drain() {
	for last := int64(-1); last != 0; {
		before := last
		apptest.AwaitState(r.t, "more of the spool is drained", func() (string, bool) {
			if detail, err := r.move(); err != nil {
				return detail + err.Error(), false
			}
			names, err := r.spoolStatus()
			last = 0
			for _, n := range names {
				last += n.Records
			}
			return fmt.Sprintf("%+v %v", names, err), err == nil && (last < before || before < 0 || last == 0)
		})
	}
}

// pending is the last answers to requests that are still repeated.
func (r *run) pending() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for l, last := range r.last {
		if last != nil {
			all = append(all, fmt.Sprint(l.stream.table, " ", l.idempotent, " ", last))
		}
	}
	return strings.Join(all, "\n")
}

// compare compares a row with the record that has its id, which compare returns.
func (r *run) compare(where string, row []string) int {
	id, err := strconv.Atoi(row[0])
	if err != nil || len(row) != len(columns) {
		r.violate("%s: a row that nobody sent: %q", where, row)
		return 0
	}
	want, err := canonicalRecord(newRecord(r.seed, id))
	if err != nil {
		r.t.Fatal(err)
	}
	if !slices.Equal(want, row) {
		r.violate("altered: %s has %q, sent was %q; %s", where, row, want, r.describe(id))
	}
	return id
}

// describe is the history of a record.
func (r *run) describe(id int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.records[id] == nil {
		return "nobody sent it"
	}
	return r.records[id].String()
}

// stored returns how often each record is in the tables of a database, and how often in the
// table itself, without what the operator moved to the archive.
func (r *run) stored(name string, optional bool) (all, live map[int]int) {
	all, live = make(map[int]int), make(map[int]int)
	for _, s := range r.streams {
		for _, archive := range []bool{false, true} {
			rows, err := r.db.rows(name, s.table, archive)
			if err != nil && !optional {
				r.t.Fatal(err)
			}
			for _, row := range rows {
				id := r.compare(name+" "+s.table, canonical(row))
				if record := r.records[id]; record == nil || record.stream != s.table {
					r.violate("%s: %s has record %d: %s", name, s.table, id, r.describe(id))
				}
				all[id]++
				if !archive {
					live[id]++
				}
			}
		}
	}
	return all, live
}

// letterIDs returns the records in dead letters, how often each.
func (r *run) letterIDs(inDoubt bool) map[int]int {
	var all []letter
	apptest.AwaitState(r.t, "dead letters are read", func() (string, bool) {
		var err error
		all, err = r.letters()
		return fmt.Sprint(err), err == nil
	})
	ids := make(map[int]int)
	for _, l := range all {
		if l.InDoubt == inDoubt {
			for _, id := range r.idsOf("dead letter", l.Records) {
				ids[id]++
			}
		}
	}
	return ids
}

// account checks that each record is in its place.
func (r *run) account(when string) {
	stored, live := r.stored(r.db.current, false)
	for _, name := range r.db.replaced {
		ids, _ := r.stored(name, true)
		for id := range ids {
			r.replaced[id] = true
		}
	}
	dead, doubt := r.letterIDs(false), r.letterIDs(true)
	for _, id := range slices.Sorted(maps.Keys(r.records)) {
		record := r.records[id]
		acked, maybe := record.acked()
		// A key that the operator moved away with its row is not known any more.
		repeated := record.stream == "keyed" && !record.idempotent && len(record.attempts) > 1
		n := stored[id] + dead[id]
		if r.discarded[id] {
			n++
		}
		switch {
		case acked && n == 0 && doubt[id] == 0 && !r.replaced[id]:
			r.violate("lost %s: %s", when, record)
		case !maybe && n+doubt[id] > 0:
			r.violate("refused but there, %s: stored %d, dead %d, in doubt %d: %s", when, stored[id], dead[id], doubt[id], record)
		case live[id] > 1 || n > 1 && !repeated:
			r.violate("doubled %s: stored %d (%d live), dead %d: %s", when, stored[id], live[id], dead[id], record)
		}
	}
	if when != "at first" && len(dead) > 0 {
		all, _ := r.letters()
		for _, l := range all[:min(3, len(all))] {
			r.violate("%d dead letters after a retry of all, although everything is made good: %s: %s: %s", len(all), l.Stream, l.Reason, l.Records)
		}
	}
	r.tally.outcome("dead letters "+when, len(dead))
}

// count adds the outcomes of the records to the tally.
func (r *run) count() {
	r.tally.outcome("sent", len(r.records))
	for id, record := range r.records {
		acked, maybe := record.acked()
		switch {
		case acked && r.discarded[id]:
			r.tally.outcome("acknowledged, discarded", 1)
		case acked:
			r.tally.outcome("acknowledged", 1)
		case maybe:
			r.tally.outcome("unknown", 1)
		default:
			r.tally.outcome("refused", 1)
		}
		for _, a := range record.attempts {
			if kind := []string{"attempts of unknown outcome", "attempts refused", "attempts acknowledged"}[a.known]; len(record.attempts) > 1 {
				r.tally.outcome("repeated: "+kind, 1)
			}
		}
	}
	r.tally.outcome("in replaced databases", len(r.replaced))
	r.tally.outcome("in doubt", len(r.letterIDs(true)))
}

// history is what the operator did.
func (r *run) history() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.log, "\n")
}

// report fails the test if something was violated.
func (r *run) report() {
	const most = 12
	if len(r.violations) == 0 {
		return
	}
	shown := r.violations[:min(most, len(r.violations))]
	r.t.Errorf("%d violations after %v:\n%s", len(r.violations), time.Since(r.began).Round(time.Second), strings.Join(shown, "\n"))
}
