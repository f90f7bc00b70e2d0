package popup

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

// ForgetPage is the number of events that are searched for those of one user at once.
const ForgetPage = 4000

// EventPages calls page for ranges of ids, above after and up to upto, which together hold
// all events, in ascending order. end returns the id of the ForgetPage-th event above after,
// and whether there is one.
func EventPages(end func(after [16]byte) (upto [16]byte, found bool, err error), page func(after, upto [16]byte) error) error {
	var after [16]byte
	for {
		upto, found, err := end(after)
		if err != nil {
			return fmt.Errorf("search the events: %w", err)
		}
		if !found {
			upto = [16]byte(bytes.Repeat([]byte{0xff}, 16))
		}
		if err := page(after, upto); err != nil {
			return fmt.Errorf("delete events: %w", err)
		}
		if !found {
			return nil
		}
		after = upto
	}
}

// FirstEventID returns the least id that an event of a show at t can have. Events of earlier
// shows have lower ids.
func FirstEventID(t time.Time) (id [16]byte) {
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(t.UnixMilli(), 0)))
	copy(id[:6], ms[2:])
	return id
}
