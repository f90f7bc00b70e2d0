package stream

// Refused is the error of rows that the database refuses on data. The statement's
// effects are undone, the transaction goes on.
type Refused struct {
	Reason string // what the database says
}

// Error says why.
func (r *Refused) Error() string { return "refused: " + r.Reason }

// Bisect inserts rows [0, n) in order where the database refuses some of them.
// insert inserts rows [low, high) or none of them, and returns a *Refused when it is
// their data that the database does not take; any other error ends the work. refuse
// is told of each row that fails alone.
//
// It calls insert at most 2n+1 times; where k rows are at fault, about
// 2k(log2(n/k)+1) times.
func Bisect(n int, insert func(low, high int) (*Refused, error), refuse func(row int, reason string)) error {
	if n == 0 {
		return nil
	}
	// The halves that are still to be done, the next one last.
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
		case p.high-p.low == 1:
			refuse(p.low, refused.Reason)
		default:
			middle := (p.low + p.high) / 2
			parts = append(parts, part{middle, p.high}, part{p.low, middle})
		}
	}
	return nil
}
