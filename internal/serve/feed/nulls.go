package feed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/param"
)

// lookAgain is the time after which rows with NULL in the key are looked for again.
const lookAgain = 5 * time.Second

// ErrNullKey means that a row has NULL in the feed's key, so that the last rows cannot be told.
var ErrNullKey = errors.New("a row has NULL in the key")

// NullKeys looks for rows with NULL in a feed's key, which come behind no other row. Its zero value looks for
// none. Its methods can be called concurrently.
type NullKeys struct {
	columns atomic.Pointer[[]string] // that may be NULL; nil: none

	mu     sync.Mutex // guards what follows, also while Look looks
	values string     // the arguments that were looked at last
	looked time.Time
	err    error
}

// Expect sets the columns of the key that may be NULL.
func (n *NullKeys) Expect(columns []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.columns.Store(&columns)
	n.looked = time.Time{}
}

// Matter reports whether so many rows of r are the last rows of the feed, and not its first, so that Look is to be called. It does not
// wait.
func (n *NullKeys) Matter(r Range, rows int) bool {
	columns := n.columns.Load()
	return columns != nil && len(*columns) > 0 && r.After != "" && rows < r.Limit
}

// Look returns an error if find, which is called with the columns that may be NULL, finds a row. For the same
// arguments that is remembered for some seconds, except for nil.
func (n *NullKeys) Look(args []string, find func(columns []string) (found bool, err error)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	values, columns := string(param.AppendArgs(nil, args)), n.columns.Load()
	if columns == nil || len(*columns) == 0 {
		return nil
	}
	if values == n.values && time.Since(n.looked) < lookAgain {
		return n.err
	}
	found, err := find(*columns)
	if err != nil {
		return fmt.Errorf("look for NULL in the key: %w", err)
	}
	if n.err = nil; found {
		n.err = fmt.Errorf("%w (%s); exclude such rows from the statement, or declare the column NOT NULL",
			ErrNullKey, strings.Join(*columns, ", "))
	}
	if args != nil {
		n.values, n.looked = values, time.Now()
	}
	return n.err
}

// ReadEnd runs the statement for r. If it returns the last rows of the feed, and not its first, look is
// called too.
func ReadEnd(ctx context.Context, r Range, to RowHandler, run func(RowHandler) error, look func(context.Context, []string) error) error {
	if err := run(to); err != nil || r.After == "" || r.Until != "" || to.Len() == r.Limit {
		return err
	}
	return look(ctx, r.Args)
}
