package spool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"spillway/internal/serve/queue"
)

// never is the place in a recording of what does not happen in it.
const never = math.MaxInt

// entryName is an entry of a workload.
type entryName struct {
	name string
	id   int
}

// expectation is what a recording promises, and since which of its events. A check at an
// event uses what came before.
type expectation struct {
	tried, acked map[entryName]int
	stored       map[groupName]storedGroup
	where        map[entryName][]groupName // the groups in which the destination has an entry
	deleted      map[string][]deletion     // by name
}

// storedGroup is a group that the destination has, since an event.
type storedGroup struct {
	markGroup
	name string
	at   int
}

// deletion is that the groups before one were deleted from the spool, since an event.
type deletion struct {
	at     int
	before uint64
}

// expect reads the marks of a recording.
func expect(rec *recording) (*expectation, error) {
	x := &expectation{
		tried: map[entryName]int{}, acked: map[entryName]int{}, stored: map[groupName]storedGroup{},
		where: map[entryName][]groupName{}, deleted: map[string][]deletion{},
	}
	for i := range rec.History {
		if err := x.add(&rec.History[i], -1); err != nil {
			return nil, err
		}
	}
	for i := range rec.Events {
		if m := rec.Events[i].Mark; m != nil {
			if err := x.add(m, i); err != nil {
				return nil, err
			}
		}
	}
	return x, nil
}

func (x *expectation) add(m *mark, at int) error {
	entry := entryName{m.Name, m.ID}
	switch m.Kind {
	case markTry:
		x.tried[entry] = at
	case markAck:
		x.acked[entry] = at
	case markHand:
		// What the destination got before the first of these groups was deleted.
		x.deleted[m.Name] = append(x.deleted[m.Name], deletion{at, m.Groups[0].Sequence})
	}
	for _, g := range m.Groups {
		before, known := x.stored[g.groupName]
		switch {
		case known && !slices.Equal(before.IDs, g.IDs):
			return fmt.Errorf("event %d: group %+v has the entries %v, and had %v when it was stored", at, g.groupName, g.IDs, before.IDs)
		case known || m.Kind != markStore:
			continue
		}
		x.stored[g.groupName] = storedGroup{g, m.Name, at}
		for _, id := range g.IDs {
			x.where[entryName{m.Name, id}] = append(x.where[entryName{m.Name, id}], g.groupName)
		}
	}
	return nil
}

// reopened is what a spool holds after a power cut.
type reopened struct {
	groups map[string][]markGroup // that wait, by name
	found  map[entryName]int      // entries in them
	dead   map[entryName]int
	order  map[string][]int
}

// check opens the image of a disk in a directory as it was before an event, and returns an
// error unless each entry that was acknowledged is there once or with the destination, and
// the spool works.
func (x *expectation) check(ctx context.Context, dir string, at int) (err error) {
	s, err := Open(ctx, filepath.Join(dir, "data", "spool", "s.db"), testConfig())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	state, err := x.read(ctx, s, at)
	if err != nil {
		return err
	}
	if err := errors.Join(x.checkEntries(state, at), x.checkOrder(state, at), s.Ready("")); err != nil {
		return err
	}
	return x.checkUse(ctx, s, state, at)
}

// read reads the groups and dead letters of a spool, and compares them with the destination.
func (x *expectation) read(ctx context.Context, s *Spool, at int) (*reopened, error) {
	state := &reopened{groups: map[string][]markGroup{}, found: map[entryName]int{}, dead: map[entryName]int{}, order: map[string][]int{}}
	err := s.Waiting(ctx, "", func(g queue.Group) error {
		m, err := nameGroup(g)
		if err != nil {
			return err
		}
		if err := x.checkGroup(g, m, at); err != nil {
			return err
		}
		state.groups[g.Name] = append(state.groups[g.Name], m)
		for _, id := range m.IDs {
			state.found[entryName{g.Name, id}]++
			state.order[g.Name] = append(state.order[g.Name], id)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = s.file.deadLetters(ctx, Filter{}, func(l queue.DeadLetter) error {
		g, err := nameGroup(queue.Group{Name: l.Name, Sequence: l.Sequence, Entries: []queue.Entry{{Payload: l.Payload}}})
		if err == nil {
			state.dead[entryName{l.Name, g.IDs[0]}]++
		}
		return err
	})
	return state, err
}

// checkGroup compares a group that waits with what the destination has.
func (x *expectation) checkGroup(g queue.Group, m markGroup, at int) error {
	for _, d := range x.deleted[g.Name] {
		if d.at < at && g.Sequence < d.before {
			return fmt.Errorf("group %d of %s is back: it was deleted before group %d was handed over", g.Sequence, g.Name, d.before)
		}
	}
	if before, ok := x.stored[m.groupName]; ok && before.at < at && !slices.Equal(before.IDs, m.IDs) {
		return fmt.Errorf("group %d of %s has the entries %v; the destination has this group with %v", g.Sequence, g.Name, m.IDs, before.IDs)
	}
	if g.Epoch == [16]byte{} {
		return nil
	}
	for name, before := range x.stored {
		if name.Spool == m.Spool && name.Epoch == m.Epoch && before.at < at && name.Number > g.EpochLast {
			return fmt.Errorf("the destination has group %d of epoch %s, and the spool knows it up to %d", name.Number, name.Epoch, g.EpochLast)
		}
	}
	return nil
}

// checkEntries returns an error if an entry is missing, is there twice, or is there although
// nobody appended it.
func (x *expectation) checkEntries(state *reopened, at int) error {
	for entry, n := range state.found {
		tried, ok := x.tried[entry]
		switch {
		case !ok || tried >= at:
			return fmt.Errorf("%+v waits, but was not appended", entry)
		case n > 1:
			return fmt.Errorf("%+v waits %d times", entry, n)
		}
	}
	for entry, acked := range x.acked {
		stored, dead := x.with(entry, at)
		waits, letters := state.found[entry], state.dead[entry]
		switch {
		case acked >= at:
		case waits+letters == 0 && !stored:
			return fmt.Errorf("%+v was acknowledged at event %d, and is gone", entry, acked)
		case stored && waits > 0 && !x.again(state, entry, at):
			return fmt.Errorf("%+v is with the destination, and waits in another group", entry)
		case dead && waits+letters != 1, !dead && letters > 0:
			return fmt.Errorf("%+v: the destination refused it: %t; it waits %d times, and is %d dead letters", entry, dead, waits, letters)
		}
	}
	return nil
}

// with reports whether the destination got a group with an entry, and whether it refused
// the entry.
func (x *expectation) with(entry entryName, at int) (stored, refused bool) {
	for _, name := range x.where[entry] {
		if g := x.stored[name]; g.at < at {
			stored, refused = true, refused || slices.Contains(g.Dead, entry.id)
		}
	}
	return stored, refused
}

// again reports whether an entry waits in the group with which the destination has it.
func (x *expectation) again(state *reopened, entry entryName, at int) bool {
	for _, g := range state.groups[entry.name] {
		if before, ok := x.stored[g.groupName]; ok && before.at < at && slices.Contains(g.IDs, entry.id) {
			return true
		}
	}
	return false
}

// checkOrder returns an error if an entry waits before one that was acknowledged before the
// former was appended.
func (x *expectation) checkOrder(state *reopened, at int) error {
	for name, ids := range state.order {
		latest, of := -1, 0
		for _, id := range ids {
			acked, ok := x.acked[entryName{name, id}]
			if ok && acked < at && acked < latest {
				return fmt.Errorf("%d waits behind %d, which was appended after it was acknowledged", id, of)
			}
			if tried := x.tried[entryName{name, id}]; tried > latest {
				latest, of = tried, id
			}
		}
	}
	return nil
}

// checkUse appends to the spool: keys that wait are recognized, and a new group has a name
// of its own.
func (x *expectation) checkUse(ctx context.Context, s *Spool, state *reopened, at int) error {
	for name, ids := range state.order {
		keyed := slices.IndexFunc(ids, func(id int) bool { return cutEntry(id).Key != "" })
		if keyed < 0 {
			continue
		}
		replayed, err := s.Append(ctx, name, cutEntry(ids[keyed]))
		if err != nil || !replayed {
			return fmt.Errorf("append %d of %s, whose key waits: replayed %t, %w", ids[keyed], name, replayed, err)
		}
	}
	const fresh = never - 1
	if _, err := s.Append(ctx, "/a", cutEntry(fresh)); err != nil {
		return fmt.Errorf("append: %w", err)
	}
	var last markGroup
	err := s.Waiting(ctx, "/a", func(g queue.Group) (err error) {
		last, err = nameGroup(g)
		return err
	})
	if err != nil || !slices.Equal(last.IDs, []int{fresh}) {
		return fmt.Errorf("the last group is %+v: %w", last, err)
	}
	for name, g := range x.stored {
		if g.at < at && (name == last.groupName || name.Epoch == last.Epoch && g.name == "/a" && name.Spool == last.Spool && name.Number >= last.Number && name.Sequence >= last.Sequence) {
			return fmt.Errorf("the new group %+v comes before %+v, which the destination has", last.groupName, name)
		}
	}
	return nil
}

// summary says how much a recording contains.
func (x *expectation) summary(rec *recording) string {
	kinds := map[string]int{}
	logs := 0
	for i := range rec.Events {
		kinds[rec.Events[i].Kind]++
		if rec.Events[i].Kind == eventCreate && strings.HasSuffix(rec.Events[i].Path, "-wal") {
			logs++
		}
	}
	return fmt.Sprintf("%d acknowledged, %d groups stored, %d logs created, events %v", len(x.acked), len(x.stored), logs, kinds)
}
