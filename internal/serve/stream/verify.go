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
func (b *Batch) TrialRows() []Row {
	var rows []Row
	for _, e := range b.Trial {
		for row := range e.Records.Len() {
			rows = append(rows, Row{Records: e.Records, Row: row, Entry: e})
		}
	}
	return rows
}

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

// Refused is the error of rows whose data the database refuses. The statement was undone;
// the transaction continues.
type Refused struct {
	Reason string // the database's message
}

// Error returns the reason.
func (r *Refused) Error() string { return "refused: " + r.Reason }

// Bisect inserts rows [0, n) in order if the database may refuse some of them. insert
// inserts rows [low, high) or none of them, and returns a *Refused if the database refuses
// their data. Any other error ends the work. A refused part of more than few rows is
// halved. A smaller one is given to singly, which inserts each row alone.
//
// It calls insert at most 4n/few+1 times, and singly at most once per row.
func Bisect(n, few int, insert func(low, high int) (*Refused, error), singly func(low, high int) error) error {
	if n == 0 {
		return nil
	}
	// The parts that are left, the next one last.
	type part struct{ low, high int }
	parts := []part{{0, n}}
	for len(parts) > 0 {
		p := parts[len(parts)-1]
		parts = parts[:len(parts)-1]
		refused, err := insert(p.low, p.high)
		switch {
		case err != nil:
			return err
		case refused == nil:
		case p.high-p.low <= max(1, few):
			if err := singly(p.low, p.high); err != nil {
				return err
			}
		default:
			middle := (p.low + p.high) / 2
			parts = append(parts, part{middle, p.high}, part{p.low, middle})
		}
	}
	return nil
}
