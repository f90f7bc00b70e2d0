package stream

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"spillway/internal/serve/queue"
)

// drainBatch is groups of a spool on their way into the sink.
type drainBatch struct {
	Batch
	groups  []queue.Group
	entries []drainEntry // of Requests, one by one
	unfit   []deadRecord // what is not given to the sink
	rows    int
}

// drainResults is what became of a drained batch, as spillway_drained keeps it. It counts groups,
// and entries and rows as they were accepted, because the stream's columns may have changed
// when it is read.
type drainResults struct {
	Dead []deadRecord `json:"dead"`
}

// deadRecord is a record of a group that was not stored.
type deadRecord struct {
	Number  uint64 `json:"sequence"` // Group.Number
	Entry   int    `json:"entry"`    // in the group
	Row     int    `json:"row"`      // in the entry; wholeEntry: all of them
	Reason  string `json:"reason"`
	InDoubt bool   `json:"in_doubt,omitempty"` // the database may have it
}

const wholeEntry = -1

// drainEntry is the origin of a request of a batch.
type drainEntry struct {
	group  *queue.Group
	number int   // of the entry in the group
	origin []int // the row in the entry of each record
}

// newBatch makes a batch of as many groups of one epoch as the limits allow: at least one,
// and more if the first has a record that is held. None has a key that an earlier group of
// the batch has.
func (s *Spooled) newBatch(groups []queue.Group) *drainBatch {
	first := &groups[0]
	b := &drainBatch{}
	b.drained = b
	b.KeyTTL, b.KeyKeep = s.cfg.KeyTTL, s.cfg.SpoolMaxAge
	b.Mark = &queue.Mark{Spool: first.Spool, Name: s.name, Epoch: first.Epoch, First: first.Number}
	now := time.Now().Add(s.clock())
	keys := make(map[string]bool)
	bytes := 0
	for i := range groups {
		g := &groups[i]
		full := b.rows+g.Rows > s.cfg.BatchRows || bytes+g.Bytes > s.cfg.BatchBytes
		if i > 0 && (full && i >= s.least || repeats(keys, g) || g.Epoch != first.Epoch || g.Number != first.Number+uint64(i)) {
			break
		}
		for j := range g.Entries {
			keys[g.Entries[j].Key] = true
			s.addEntry(b, g, j, now)
		}
		b.groups = groups[:i+1]
		b.Mark.Sums = append(b.Mark.Sums, g.Sum)
		b.rows += g.Rows
		bytes += g.Bytes
	}
	if s.least > 1 {
		s.addTrial(b, groups[len(b.groups):])
	}
	return b
}

// addTrial adds the records of later groups that cannot join a batch whose last record may
// be held: they belong to another epoch, or have one of its keys.
func (s *Spooled) addTrial(b *drainBatch, later []queue.Group) {
	rows := 0
	for i := range later {
		for j := range later[i].Entries {
			if rows >= s.cfg.BatchRows {
				return
			}
			e := &later[i].Entries[j]
			source, _, err := decodeRecords(e.Payload)
			if err != nil {
				continue
			}
			if records, origin, _ := source.fit(s.schema, e.At); len(origin) > 0 {
				b.Trial = append(b.Trial, &Entry{Records: records})
				rows += records.Len()
			}
		}
	}
}

// repeats reports whether an entry of the group has one of the keys.
func repeats(keys map[string]bool, g *queue.Group) bool {
	return slices.ContainsFunc(g.Entries, func(e queue.Entry) bool { return e.Key != "" && keys[e.Key] })
}

// addEntry adds an entry of a group to the batch, unless its key is too old at a time.
func (s *Spooled) addEntry(b *drainBatch, g *queue.Group, number int, now time.Time) {
	e := &g.Entries[number]
	if e.Key != "" && now.Sub(e.At) > s.cfg.SpoolMaxAge {
		b.unfit = append(b.unfit, deadRecord{
			g.Number, number, wholeEntry,
			"the record waited longer than spool.max_age: the database may have forgotten its idempotency key", true,
		})
		return
	}
	source, refused, err := decodeRecords(e.Payload)
	if err != nil {
		b.unfit = append(b.unfit, deadRecord{g.Number, number, wholeEntry, err.Error(), false})
		return
	}
	records, origin, unfit := source.fit(s.schema, e.At)
	for _, d := range unfit {
		d.Number, d.Entry = g.Number, number
		b.unfit = append(b.unfit, d)
	}
	if len(origin) == 0 && e.Key == "" {
		return
	}
	b.entries = append(b.entries, drainEntry{group: g, number: number, origin: origin})
	request := &Entry{Records: records, Key: e.Key, Fingerprint: e.Fingerprint, refused: refused}
	if e.Key != "" {
		request.Accepted = e.At
	}
	b.Requests = append(b.Requests, request)
}

// dead returns the records of the batch that are not in the table.
func (b *drainBatch) dead() []deadRecord {
	dead := slices.Clone(b.unfit)
	for i, e := range b.Requests {
		from := b.entries[i]
		if e.Result.Reused || e.Result.Stored != nil { // its rows that do not fit are not lost alone
			dead = slices.DeleteFunc(dead, func(d deadRecord) bool { return d.Number == from.group.Number && d.Entry == from.number })
		}
		if e.Result.Reused {
			dead = append(dead, deadRecord{from.group.Number, from.number, wholeEntry, queue.ErrKeyReused.Error(), false})
			continue
		}
		for _, r := range e.Result.Refused {
			dead = append(dead, deadRecord{from.group.Number, from.number, from.origin[r.Row], r.Reason, false})
		}
	}
	return dead
}

// results encodes what becomes of the batch: nil if every record is stored.
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

// groupOf returns where in the batch the group of a held record is.
func (b *drainBatch) groupOf(h *Held) int {
	for i, e := range b.Requests {
		if e == h.entry {
			return int(b.entries[i].group.Number - b.groups[0].Number)
		}
	}
	return 0
}

// deadLogEvery is the least time between two lines of the log about dead letters.
const deadLogEvery = time.Minute

// deadLetters returns the dead letters of records of the batch.
func (s *Spooled) deadLetters(b *drainBatch, dead []deadRecord) []queue.DeadLetter {
	var letters []queue.DeadLetter
	sources := make(map[*queue.Entry]*Records)
	for _, d := range dead {
		g := b.group(d.Number)
		if g == nil || d.Entry < 0 || d.Entry >= len(g.Entries) { // repaired since: what was left of it is a dead letter
			s.cfg.Log.Warn("record that the database refused is no longer in the spool",
				"stream", s.name, "group", d.Number, "reason", d.Reason)
			continue
		}
		e := &g.Entries[d.Entry]
		source, known := sources[e]
		if !known {
			source, _, _ = decodeRecords(e.Payload) // nil: the letter keeps the payload
			sources[e] = source
		}
		letter := queue.DeadLetter{
			Name: s.schema.def.Name, Sequence: g.Sequence, At: e.At, Rows: e.Rows, Reason: d.Reason, Payload: e.Payload, Raw: source == nil,
			InDoubt: d.InDoubt,
		}
		if source != nil && d.Row >= 0 && d.Row < source.Len() {
			letter.Rows = 1
			letter.Payload, _ = appendRecords(nil, source, d.Row, d.Row+1, nil) // cannot fail without refusals
		}
		letters = append(letters, letter)
	}
	if now := time.Now(); len(letters) > 0 && now.Sub(s.deadAt) >= deadLogEvery {
		s.deadAt = now
		s.cfg.Log.Warn("records became dead letters: spillway spool export shows them", "stream", s.name, "letters", len(letters),
			"reason", letters[0].Reason)
	}
	return letters
}

// inDoubt returns all entries of a group.
func inDoubt(g *queue.Group, reason string) []deadRecord {
	var dead []deadRecord
	for number := range g.Entries {
		dead = append(dead, deadRecord{g.Number, number, wholeEntry, reason, true})
	}
	return dead
}

// group returns the group with that number; nil if it is not in the batch.
func (b *drainBatch) group(number uint64) *queue.Group {
	if n := number - b.groups[0].Number; n < uint64(len(b.groups)) {
		return &b.groups[n]
	}
	return nil
}
