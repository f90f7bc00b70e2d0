package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// drainBatch is groups on their way into the sink.
type drainBatch struct {
	Batch
	groups  []Group
	entries []drainEntry // of Requests, one by one
	lost    []deadRecord // what the schema has no place for
	rows    int

	// before are the dead records of the batch as an earlier run has stored it, when
	// the stream may have had other columns.
	before *drainResults
	unread error // they cannot be read
}

// drainResults is what became of a drained batch, as SpoolTable keeps it. It counts in
// groups and in what was accepted, which do not change, and names what was dead already
// when the batch was stored: the stream's columns may be others when it is read.
type drainResults struct {
	Dead []deadRecord `json:"dead"`
}

// deadRecord is a record of a group that was not stored.
type deadRecord struct {
	Sequence uint64 `json:"sequence"` // of the group
	Entry    int    `json:"entry"`    // in the group
	Row      int    `json:"row"`      // in the entry; wholeEntry: all of them
	Reason   string `json:"reason"`
}

const wholeEntry = -1

// drainEntry is where a request of a batch comes from.
type drainEntry struct {
	group  *Group
	number int   // of the entry in the group
	origin []int // the row in the entry of each record
}

// apply stores as many of the groups as a batch takes. It is an Apply.
func (s *Spooled) apply(_ context.Context, groups []Group) (Applied, error) {
	b := s.batch(groups)
	b.Careful = s.careful
	start := time.Now()
	// The drain's context ends between batches; this one may be finished.
	err := commitWithin(s.base, s.cfg.CommitTimeout, s.sink, &b.Batch)
	took := time.Since(start)
	s.keeper.observe(b.Session, err)
	var moved *Moved
	if errors.As(err, &moved) {
		return s.moved(groups, moved, err)
	}
	if err != nil {
		s.counters.retries.Add(1)
		s.exact = 0
		s.careful = s.careful || took > s.cfg.CommitTimeout/2
		return Applied{}, err
	}
	s.careful = false
	if b.Mark.Found != nil {
		s.cfg.Log.Error("the database lacks groups that were stored: it is an older copy, or an acknowledged commit was lost",
			"stream", s.schema.def.Name, "stood at", *b.Mark.Found, "spool drained to", b.Mark.After)
	}
	s.exact = 0
	dead := s.letters(b)
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
	b.drained = b
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
			s.join(b, g, j)
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
func (s *Spooled) join(b *drainBatch, g *Group, number int) {
	e := &g.Entries[number]
	source, err := readRecords(e.Payload)
	if err != nil {
		b.lost = append(b.lost, deadRecord{g.Sequence, number, wholeEntry, err.Error()})
		return
	}
	records, origin, lost := source.records(s.schema, e.At)
	for _, d := range lost {
		b.lost = append(b.lost, deadRecord{g.Sequence, number, d.row, d.reason})
	}
	if len(origin) == 0 && e.Key == "" {
		return
	}
	b.entries = append(b.entries, drainEntry{group: g, number: number, origin: origin})
	b.Requests = append(b.Requests, &Entry{Records: records, Key: e.Key, Fingerprint: e.Fingerprint, Expires: e.Expires, refused: source.refused})
}

// dead returns the records of the batch that are not in the table.
func (b *drainBatch) dead() []deadRecord {
	if b.before != nil {
		return b.before.Dead
	}
	dead := slices.Clip(b.lost)
	for i, e := range b.Requests {
		from := b.entries[i]
		if e.Result.Reused {
			dead = append(dead, deadRecord{from.group.Sequence, from.number, wholeEntry, ErrKeyReused.Error()})
			continue
		}
		for _, r := range e.Result.Refused {
			dead = append(dead, deadRecord{from.group.Sequence, from.number, from.origin[r.Row], r.Reason})
		}
	}
	return dead
}

// results encodes what becomes of the batch: nil when every record is stored.
func (b *drainBatch) results() ([]byte, error) {
	dead := b.dead()
	if len(dead) == 0 {
		return nil, nil
	}
	data, err := json.Marshal(drainResults{Dead: dead})
	if err != nil {
		return nil, fmt.Errorf("encode the results of a drained batch: %w", err)
	}
	return data, nil
}

// setResults takes what became of the batch in an earlier run.
func (b *drainBatch) setResults(data []byte) {
	b.before = &drainResults{}
	if len(data) > 0 {
		b.unread = json.Unmarshal(data, b.before)
	}
}

// letters returns the dead letters of a batch that was stored. Where nobody knows what
// an earlier run's database refused, all of the batch is: nothing is lost, and people
// can compare.
func (s *Spooled) letters(b *drainBatch) []DeadLetter {
	dead := b.dead()
	if b.unread != nil {
		s.cfg.Log.Error("what the database refused of groups that an earlier run stored cannot be read: all of them become dead letters",
			"stream", s.schema.def.Name, "from", b.Mark.After+1, "to", b.Mark.Last, "error", b.unread)
		dead = b.everything("an earlier run stored this, all or in part: look into the table before trying it again")
	}
	var letters []DeadLetter
	sources := make(map[*SpoolEntry]*spooled)
	for _, d := range dead {
		g := b.group(d.Sequence)
		if g == nil || d.Entry < 0 || d.Entry >= len(g.Entries) { // repaired since: what was there is a dead letter
			s.cfg.Log.Warn("a record that the database refused is not in the spool any more", "stream", s.schema.def.Name, "group", d.Sequence, "reason", d.Reason)
			continue
		}
		e := &g.Entries[d.Entry]
		source, known := sources[e]
		if !known {
			source, _ = readRecords(e.Payload) // nil: it is kept as it is
			sources[e] = source
		}
		letter := DeadLetter{Name: g.Name, Sequence: g.Sequence, At: e.At, Rows: e.Rows, Reason: d.Reason, Payload: e.Payload, Raw: source == nil}
		if source != nil && d.Row >= 0 && d.Row < len(source.rows) {
			letter.Rows, letter.Payload = 1, source.one(d.Row)
		}
		letters = append(letters, letter)
	}
	return letters
}

// everything is all entries of the batch.
func (b *drainBatch) everything(reason string) []deadRecord {
	var dead []deadRecord
	for _, g := range b.groups {
		for number := range g.Entries {
			dead = append(dead, deadRecord{g.Sequence, number, wholeEntry, reason})
		}
	}
	return dead
}

// group returns the group of that sequence, nil where it is not in the batch.
func (b *drainBatch) group(sequence uint64) *Group {
	if n := sequence - b.groups[0].Sequence; n < uint64(len(b.groups)) {
		return &b.groups[n]
	}
	return nil
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
	if b.before != nil {
		refused = min(rows, dead)
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
