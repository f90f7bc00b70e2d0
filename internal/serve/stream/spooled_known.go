package stream

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"spillway/internal/serve/queue"
)

// The reasons of dead letters that are in doubt.
const (
	reasonUnread  = "an earlier run stored this, in whole or in part: compare with the table before you retry it"
	reasonAnother = "the database has another group under this number: the spool's file is an older copy, or the disk lost writes; " +
		"compare with the table before you retry it"
)

// known returns what became of the first groups of a batch, which the database has, or had.
// Nothing of the batch was stored now.
//
// A group with the same content was stored, and its dead letters are those of its batch. Of
// another group under the same number it cannot be told what the database has: all of it
// becomes dead letters in doubt. The comment of the package queue explains the words.
func (s *Spooled) known(b *drainBatch, took time.Duration) queue.Stored {
	s.checkOlder(b.Mark, b.groups[0].EpochLast)
	results := make(map[*queue.StoredBatch]*drainResults)
	var dead []deadRecord
	rows, others := 0, 0
	for i, k := range b.Mark.Known {
		g := &b.groups[i]
		rows += g.Rows
		switch {
		case !k.Same:
			others++
			dead = append(dead, inDoubt(g, reasonAnother)...)
		default:
			found, ok := results[k.Stored]
			if !ok {
				found = s.decodeResults(k.Stored)
				results[k.Stored] = found
			}
			dead = append(dead, found.of(g)...)
		}
	}
	if others > 0 {
		s.cfg.Log.Error("database has other groups under these numbers: their records become dead letters in doubt", "stream", s.name,
			"epoch", fmt.Sprintf("%x", b.Mark.Epoch), "first", b.Mark.First, "groups", others)
	}
	letters := s.deadLetters(b, dead)
	s.count(rows, min(rows, len(letters)), len(letters), took)
	return queue.Stored{Groups: len(b.Mark.Known), Dead: letters}
}

// checkPrevious asks what the database has of the epoch before that of a group, once: groups
// of it may no longer wait, and the file may be older than their last one.
func (s *Spooled) checkPrevious(g *queue.Group) error {
	if g.PreviousLast == 0 || g.PreviousEpoch == s.asked {
		return nil
	}
	b := &Batch{KeyTTL: s.cfg.KeyTTL, Mark: &queue.Mark{Spool: g.Spool, Name: s.name, Epoch: g.PreviousEpoch}}
	err := s.commit(b)
	if err == nil {
		s.asked = g.PreviousEpoch
		s.checkOlder(b.Mark, g.PreviousLast)
	}
	return err
}

// checkOlder reports, until the process ends, that the database has more of a mark's epoch
// than the spool's file ever had.
func (s *Spooled) checkOlder(m *queue.Mark, has uint64) {
	if has == 0 || m.Last <= has {
		return
	}
	why := fmt.Errorf("the spool file is older than what the database has of it: "+
		"epoch %x of %s has %d groups in the file and %d in the database",
		m.Epoch, s.name, has, m.Last)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.older == nil {
		s.cfg.Log.Error("spool is an older copy", "stream", s.name, "error", why)
	}
	s.older = &queue.Unready{Why: why}
}

// decodeResults decodes what became of a batch; nil if it cannot.
func (s *Spooled) decodeResults(stored *queue.StoredBatch) *drainResults {
	r := &drainResults{}
	if len(stored.Results) == 0 {
		return r
	}
	if err := json.Unmarshal(stored.Results, r); err != nil {
		s.cfg.Log.Error("results of groups that an earlier run stored cannot be decoded: all of their records become dead letters in doubt",
			"stream", s.name, "first", stored.First, "last", stored.Last, "error", err)
		return nil
	}
	return r
}

// of returns the dead records of a group; all of the group if r is nil.
func (r *drainResults) of(g *queue.Group) []deadRecord {
	if r == nil {
		return inDoubt(g, reasonUnread)
	}
	return slices.DeleteFunc(slices.Clone(r.Dead), func(d deadRecord) bool { return d.Number != g.Number })
}
