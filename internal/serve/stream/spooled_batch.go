package stream

import (
	"encoding/json"
	"fmt"
	"slices"

	"spillway/internal/serve/queue"
)

// drainBatch is groups of a spool on their way into the sink.
type drainBatch struct {
	Batch
	groups  []queue.Group
	entries []drainEntry // of Requests, one by one
	unfit   []deadRecord // what does not fit the schema
	rows    int

	// before are the dead records of the batch as an earlier run has stored it, when the
	// stream may have had other columns.
	before *drainResults
	unread error // they cannot be decoded
}

// drainResults is what became of a drained batch, as SpoolTable keeps it. It counts groups,
// and entries and rows as they were accepted, because the stream's columns may have changed
// when it is read.
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

// drainEntry is the origin of a request of a batch.
type drainEntry struct {
	group  *queue.Group
	number int   // of the entry in the group
	origin []int // the row in the entry of each record
}

// newBatch makes a batch of as many groups as the limits allow: at least one, and none with
// a key that an earlier group of the batch has.
func (s *Spooled) newBatch(groups []queue.Group) *drainBatch {
	b := &drainBatch{}
	b.drained = b
	keys := make(map[string]bool)
	bytes := 0
	for i := range groups {
		g := &groups[i]
		full := b.rows+g.Rows > s.cfg.BatchRows || bytes+g.Bytes > s.cfg.BatchBytes || repeats(keys, g)
		if s.storedUpto > 0 {
			full = g.Sequence > s.storedUpto
		}
		if i > 0 && full {
			break
		}
		for j := range g.Entries {
			keys[g.Entries[j].Key] = true
			s.addEntry(b, g, j)
		}
		b.groups = groups[:i+1]
		b.rows += g.Rows
		bytes += g.Bytes
	}
	last := b.groups[len(b.groups)-1]
	b.Mark = &queue.Mark{Spool: last.Spool, Name: s.schema.def.Name, After: groups[0].Sequence - 1, Last: last.Sequence}
	return b
}

// repeats reports whether an entry of the group has one of the keys.
func repeats(keys map[string]bool, g *queue.Group) bool {
	for _, e := range g.Entries {
		if e.Key != "" && keys[e.Key] {
			return true
		}
	}
	return false
}

// addEntry adds an entry of a group to the batch.
func (s *Spooled) addEntry(b *drainBatch, g *queue.Group, number int) {
	e := &g.Entries[number]
	source, err := decodeRecords(e.Payload)
	if err != nil {
		b.unfit = append(b.unfit, deadRecord{g.Sequence, number, wholeEntry, err.Error()})
		return
	}
	records, origin, unfit := source.records(s.schema, e.At)
	for _, d := range unfit {
		b.unfit = append(b.unfit, deadRecord{g.Sequence, number, d.row, d.reason})
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
	dead := slices.Clip(b.unfit)
	for i, e := range b.Requests {
		from := b.entries[i]
		if e.Result.Reused {
			dead = append(dead, deadRecord{from.group.Sequence, from.number, wholeEntry, queue.ErrKeyReused.Error()})
			continue
		}
		for _, r := range e.Result.Refused {
			dead = append(dead, deadRecord{from.group.Sequence, from.number, from.origin[r.Row], r.Reason})
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

// setResults sets what became of the batch in an earlier run.
func (b *drainBatch) setResults(data []byte) {
	b.before = &drainResults{}
	if len(data) > 0 {
		b.unread = json.Unmarshal(data, b.before)
	}
}

// deadLetters returns the dead letters of a batch that was stored. If it cannot be decoded
// what the database refused in an earlier run, all of the batch become dead letters, so
// that nothing is lost and people can compare.
func (s *Spooled) deadLetters(b *drainBatch) []queue.DeadLetter {
	dead := b.dead()
	if b.unread != nil {
		s.cfg.Log.Error("results of groups that an earlier run stored cannot be decoded: all of their records become dead letters",
			"stream", s.schema.def.Name, "from", b.Mark.After+1, "to", b.Mark.Last, "error", b.unread)
		dead = b.everything("an earlier run stored this, in whole or in part: compare with the table before you retry it")
	}
	var letters []queue.DeadLetter
	sources := make(map[*queue.Entry]*spooledRecords)
	for _, d := range dead {
		g := b.group(d.Sequence)
		if g == nil || d.Entry < 0 || d.Entry >= len(g.Entries) { // repaired since: what was left of it is a dead letter
			s.cfg.Log.Warn("record that the database refused is no longer in the spool", "stream", s.schema.def.Name, "group", d.Sequence, "reason", d.Reason)
			continue
		}
		e := &g.Entries[d.Entry]
		source, known := sources[e]
		if !known {
			source, _ = decodeRecords(e.Payload) // nil: the letter keeps the payload
			sources[e] = source
		}
		letter := queue.DeadLetter{Name: g.Name, Sequence: g.Sequence, At: e.At, Rows: e.Rows, Reason: d.Reason, Payload: e.Payload, Raw: source == nil}
		if source != nil && d.Row >= 0 && d.Row < len(source.rows) {
			letter.Rows, letter.Payload = 1, source.one(d.Row)
		}
		letters = append(letters, letter)
	}
	return letters
}

// everything returns all entries of the batch.
func (b *drainBatch) everything(reason string) []deadRecord {
	var dead []deadRecord
	for _, g := range b.groups {
		for number := range g.Entries {
			dead = append(dead, deadRecord{g.Sequence, number, wholeEntry, reason})
		}
	}
	return dead
}

// group returns the group with that sequence; nil if it is not in the batch.
func (b *drainBatch) group(sequence uint64) *queue.Group {
	if n := sequence - b.groups[0].Sequence; n < uint64(len(b.groups)) {
		return &b.groups[n]
	}
	return nil
}
