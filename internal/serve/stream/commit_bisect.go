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
// their data that the database does not take; any other error ends the work. A refused
// part of more than few rows is halved; one of fewer is given to singly, which inserts
// its rows each alone.
//
// It calls insert at most 4n/few+1 times, and singly for each row once at most.
func Bisect(n, few int, insert func(low, high int) (*Refused, error), singly func(low, high int) error) error {
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
