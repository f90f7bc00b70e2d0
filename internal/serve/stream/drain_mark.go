package stream

import "fmt"

// SpoolTable keeps, for each name of a spool, the groups that the last drained batch
// took: those behind after, up to sequence. Columns: id (Mark.Spool), stream, after,
// sequence, results (Batch.Results).
const SpoolTable = "spillway_spools"

// Mark says which groups of a spool a batch takes. A Sink stores it in the same
// transaction, so that no group is stored twice.
type Mark struct {
	Spool [16]byte // the id of the name in its spool
	Name  string   // of the stream, for people
	After uint64   // the group before the batch's first
	Last  uint64   // the batch's last group

	// Found is set by the Sink where the database stands further back than After: it
	// lacks groups that were stored, being an older copy, say.
	Found *uint64
}

// Moved is the error of a batch that was not stored because the database has groups
// of it already: the last batch that was stored took those behind After, up to Last.
type Moved struct{ After, Last uint64 }

// Error says where the database stands.
func (m *Moved) Error() string {
	return fmt.Sprintf("the database has the groups up to %d already, the last batch was those behind %d", m.Last, m.After)
}

// Meet compares the mark with what the table says. stored reports that the batch has
// been stored; then the row's results are the batch's. The error is a *Moved.
func (m *Mark) Meet(after, last uint64) (stored bool, err error) {
	switch {
	case last < m.After:
		m.Found = &last
		return false, nil
	case last == m.After:
		return false, nil
	case last == m.Last && after == m.After:
		return true, nil
	}
	return false, &Moved{After: after, Last: last}
}
