package spool

import (
	"zombiezen.com/go/sqlite"
)

// epoch is the groups of a name that one open of the file has written. The comment of the package
// queue says what epochs, places and marks are for.
type epoch struct {
	id    [16]byte // random
	first uint64   // sequence of the first group
}

// place is where a group is in its epoch.
type place struct {
	epoch  [16]byte
	number uint64
}

// place returns the place of the group with a sequence, as the file's table says. If the table
// is damaged, that is epoch zero.
func (h *head) place(sequence uint64) place {
	at := place{number: sequence}
	for _, e := range h.epochs {
		if e.first <= sequence {
			at = place{epoch: e.id, number: sequence - e.first + 1}
		}
	}
	return at
}

// epochLast returns the last number of a group's epoch.
func (h *head) epochLast(of place) uint64 {
	end := h.last // sequence of the last group of the epoch
	for i := len(h.epochs) - 1; i >= 0; i-- {
		if e := h.epochs[i]; e.id == of.epoch {
			return max(of.number, end-e.first+1)
		}
		end = h.epochs[i].first - 1
	}
	return of.number
}

// previous returns the epoch before that of a group, and its last number; 0 if there is none.
func (h *head) previous(of place) (id [16]byte, last uint64) {
	for i := 1; i < len(h.epochs); i++ {
		if before := h.epochs[i-1]; h.epochs[i].id == of.epoch {
			return before.id, h.epochs[i].first - before.first
		}
	}
	return id, 0
}

// next returns the place of the next group that is written in an epoch, and whether it is
// the first one.
func (h *head) next(id [16]byte) (at place, first bool) {
	if n := len(h.epochs); n > 0 && h.epochs[n-1].id == id {
		return place{epoch: id, number: h.last - h.epochs[n-1].first + 2}, false
	}
	return place{epoch: id, number: 1}, true
}

// current returns the epochs without those whose groups were all drained.
func current(epochs []epoch, drained uint64) []epoch {
	for len(epochs) > 1 && epochs[1].first <= drained+1 {
		epochs = epochs[1:]
	}
	return epochs
}

// readEpochs reads the epochs of the name.
func (h *head) readEpochs(conn *sqlite.Conn) error {
	return each(conn, "SELECT epoch, first FROM epochs WHERE number = "+ofName+" ORDER BY first", []any{h.name}, func(stmt *sqlite.Stmt) {
		e := epoch{first: uint64(stmt.ColumnInt64(1))}
		stmt.ColumnBytes(0, e.id[:])
		h.epochs = append(h.epochs, e)
	})
}

// addEpoch adds an epoch of a name.
func (t *transaction) addEpoch(name string, e epoch) error {
	return t.exec("INSERT INTO epochs (number, first, epoch) VALUES ("+ofName+", ?2, ?3)", name, int64(e.first), e.id[:])
}

// deleteEpochs deletes the epochs of a name whose groups were all drained, as current does.
func (t *transaction) deleteEpochs(name string, drained uint64) error {
	return t.exec("DELETE FROM epochs WHERE number = "+ofName+
		" AND first < (SELECT max(first) FROM epochs WHERE number = "+ofName+" AND first <= ?2)", name, int64(drained+1))
}
