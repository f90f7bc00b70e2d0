package stream

import "slices"

// NoteFound adds rows to Result.Found. A Sink for a table with a key calls it for each
// statement of a batch with a Mark that has not, or not certainly, inserted all of its rows.
func NoteFound(rows []Row) {
	for _, r := range rows {
		r.Entry.Result.Found = append(r.Entry.Result.Found, r.Row)
	}
}

// Verify is called by a Sink before it commits a batch with a Mark. It returns a *Held if a
// row with an Unsure refusal has no row behind it in the batch that was inserted. A row that
// was found shows nothing: the table may refuse every new one.
func (b *Batch) Verify() error {
	unsure := false
	for _, e := range b.Requests {
		unsure = unsure || slices.ContainsFunc(e.Result.Refused, func(r RowRefusal) bool { return r.Unsure })
	}
	if !unsure {
		return nil
	}
	rows := b.Rows(nil)
	refusals, found := make(map[Row]RowRefusal), make(map[Row]bool)
	for _, e := range b.Requests {
		for _, row := range e.Result.Found {
			found[Row{Records: e.Records, Row: row, Entry: e}] = true
		}
		for _, r := range e.Result.Refused {
			refusals[Row{Records: e.Records, Row: r.Row, Entry: e}] = r
		}
	}
	var held *Held
	for i := len(rows) - 1; i >= 0; i-- {
		r, refused := refusals[rows[i]]
		if !refused && !found[rows[i]] {
			break
		}
		if r.Unsure {
			held = &Held{Row: i, Reason: r.Reason, entry: rows[i].Entry}
		}
	}
	if held == nil {
		return nil
	}
	return held
}

// VerifyTrial returns nil if a row of Trial was inserted, and else held, which Verify has
// returned. The Sink has inserted the rows of Trial, set their Results, and taken them back.
func (b *Batch) VerifyTrial(held error) error {
	for _, e := range b.Trial {
		if len(e.Result.Refused)+len(e.Result.Found) < e.Records.Len() {
			return nil
		}
	}
	return held
}

// TrialRows returns the rows of Trial, in order.
func (b *Batch) TrialRows() []Row { return (&Batch{Requests: b.Trial}).Rows(nil) }

// Held is the error of a batch with a Mark of which nothing was stored. A row was refused for a
// reason that may be the server's, and no later row was inserted, nor one of Trial. It wraps
// ErrHeld.
type Held struct {
	Row    int // the first such row, counted in Batch.Rows
	Reason string

	entry *Entry // of the row
}

// Error returns the reason of the row.
func (h *Held) Error() string { return ErrHeld.Error() + ": " + h.Reason }

// Unwrap returns ErrHeld.
func (h *Held) Unwrap() error { return ErrHeld }

// Bisect inserts rows of the batch, or of its Trial, in order if the database may refuse some of
// them. insert inserts all of some rows or none, and returns a refusal if the database refuses
// their data and the transaction continues. Any error ends the work. A refused part of more than
// few rows is halved. A smaller one is given to singly, which inserts each row alone. With
// RowByRow, insert counts as refused.
//
// It calls insert at most 4n/few+1 times for n rows, and singly at most once per row.
func (b *Batch) Bisect(rows []Row, few int, insert func([]Row) (*RowRefusal, error), singly func([]Row) error) error {
	if len(rows) == 0 {
		return nil
	}
	if !b.RowByRow {
		if refused, err := insert(rows); err != nil || refused == nil {
			return err
		}
	}
	if len(rows) <= max(1, few) {
		return singly(rows)
	}
	middle := len(rows) / 2
	if err := b.Bisect(rows[:middle], few, insert, singly); err != nil {
		return err
	}
	return b.Bisect(rows[middle:], few, insert, singly)
}
