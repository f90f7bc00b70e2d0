package stream

import (
	"context"
	"errors"
	"time"
)

// drainBatch is groups on their way into the sink.
type drainBatch struct {
	Batch
	groups  []Group
	entries []drainEntry // of Requests, one by one
	dead    []DeadLetter // what the schema has no place for
	rows    int
}

// drainEntry is where a request of a batch comes from.
type drainEntry struct {
	group  *Group
	entry  *SpoolEntry
	source *spooled
	origin []int // the row in source of each record
}

// apply stores as many of the groups as a batch takes. It is an Apply.
func (s *Spooled) apply(_ context.Context, groups []Group) (Applied, error) {
	b := s.batch(groups)
	// The drain's context ends between batches; this one may be finished.
	ctx, cancel := context.WithTimeout(s.base, s.cfg.CommitTimeout)
	defer cancel()
	start := time.Now()
	err := s.sink.Commit(ctx, &b.Batch)
	took := time.Since(start)
	var moved *Moved
	if errors.As(err, &moved) {
		return s.moved(groups, moved, err)
	}
	if err != nil {
		s.counters.retries.Add(1)
		s.exact = 0
		return Applied{}, err
	}
	if b.Mark.Found != nil {
		s.cfg.Log.Error("the database lacks groups that were stored: it is an older copy, or an acknowledged commit was lost",
			"stream", s.schema.def.Name, "stood at", *b.Mark.Found, "spool drained to", b.Mark.After)
	}
	s.exact = 0
	dead, err := b.letters()
	if err != nil {
		return Applied{}, err
	}
	s.book(b, len(dead), took)
	return Applied{Groups: len(b.groups), Dead: dead}, nil
}

// moved goes on where the database stands further than the spool: an earlier run was
// ended between the commit and the deletion. That batch is put together again to learn
// what was refused.
func (s *Spooled) moved(groups []Group, m *Moved, err error) (Applied, error) {
	first := groups[0].Sequence
	switch {
	case m.After+1 == first:
		s.exact = m.Last
		return Applied{}, err
	case m.After >= first:
		n := min(m.After-first+1, uint64(len(groups)))
		s.cfg.Log.Warn("groups were stored by an earlier run, and the spool is an older copy: what was refused of them is not known",
			"stream", s.schema.def.Name, "from", first, "to", first+n-1)
		return Applied{Groups: int(n)}, nil
	}
	// The batch of the earlier run began before what the spool holds: nothing can be
	// learned of it.
	n := min(m.Last-first+1, uint64(len(groups)))
	s.cfg.Log.Warn("groups were stored by an earlier run together with others: what was refused of them is not known",
		"stream", s.schema.def.Name, "from", first, "to", first+n-1)
	return Applied{Groups: int(n)}, nil
}

// batch makes a batch of as many groups as the bounds allow: of one at least, and of
// none with a key that an earlier one has.
func (s *Spooled) batch(groups []Group) *drainBatch {
	b := &drainBatch{}
	keys := make(map[string]bool)
	bytes := 0
	for i := range groups {
		g := &groups[i]
		full := b.rows+g.Rows > s.cfg.BatchRows || bytes+g.Bytes > s.cfg.BatchBytes || repeats(keys, g)
		if s.exact > 0 {
			full = g.Sequence > s.exact
		}
		if i > 0 && full {
			break
		}
		for j := range g.Entries {
			keys[g.Entries[j].Key] = true
			s.join(b, g, &g.Entries[j])
		}
		b.groups = groups[:i+1]
		b.rows += g.Rows
		bytes += g.Bytes
	}
	last := b.groups[len(b.groups)-1]
	b.Mark = &Mark{Spool: last.Spool, Name: s.schema.def.Name, After: groups[0].Sequence - 1, Last: last.Sequence}
	return b
}

func repeats(keys map[string]bool, g *Group) bool {
	for _, e := range g.Entries {
		if e.Key != "" && keys[e.Key] {
			return true
		}
	}
	return false
}

// join adds an entry to the batch.
func (s *Spooled) join(b *drainBatch, g *Group, e *SpoolEntry) {
	source, err := readRecords(e.Payload)
	if err != nil {
		b.dead = append(b.dead, DeadLetter{Name: g.Name, Sequence: g.Sequence, At: e.At, Rows: e.Rows, Reason: err.Error(), Payload: e.Payload, Raw: true})
		return
	}
	records, origin, lost := source.records(s.schema, e.At)
	from := drainEntry{group: g, entry: e, source: source, origin: origin}
	for _, d := range lost {
		b.dead = append(b.dead, from.letter(d.row, d.reason))
	}
	if len(origin) == 0 && e.Key == "" {
		return
	}
	b.entries = append(b.entries, from)
	b.Requests = append(b.Requests, &Entry{Records: records, Key: e.Key, Fingerprint: e.Fingerprint, Expires: e.Expires, refused: source.refused})
}

// letter makes a dead letter of one record.
func (d *drainEntry) letter(row int, reason string) DeadLetter {
	return DeadLetter{
		Name: d.group.Name, Sequence: d.group.Sequence, At: d.entry.At, Rows: 1, Reason: reason, Payload: d.source.one(row),
	}
}

// letters returns the dead letters of a batch that was stored.
func (b *drainBatch) letters() ([]DeadLetter, error) {
	letters := b.dead
	for i, e := range b.Requests {
		from := b.entries[i]
		if e.Result.Reused {
			letters = append(letters, DeadLetter{
				Name: from.group.Name, Sequence: from.group.Sequence, At: from.entry.At, Rows: from.entry.Rows,
				Reason: ErrKeyReused.Error(), Payload: from.entry.Payload,
			})
			continue
		}
		for _, r := range e.Result.Refused {
			if r.Row < 0 || r.Row >= len(from.origin) {
				return nil, errors.New("the database refused a record that the batch does not hold")
			}
			letters = append(letters, from.letter(from.origin[r.Row], r.Reason))
		}
	}
	return letters, nil
}

// book counts a batch.
func (s *Spooled) book(b *drainBatch, dead int, took time.Duration) {
	rows, refused := 0, 0
	for _, e := range b.Requests {
		if e.Result.Stored != nil || e.Result.Reused {
			continue
		}
		rows += e.Records.Len()
		refused += len(e.Result.Refused)
	}
	c := &s.counters
	c.batches.Add(1)
	c.batchRows.Add(uint64(rows))
	c.commitNanos.Add(int64(took))
	c.stored.Add(uint64(rows - refused))
	c.refusedDatabase.Add(uint64(dead))
	if s.cfg.Committed != nil {
		s.cfg.Committed(rows, refused, took)
	}
}
