package database

import "sync/atomic"

// Logins counts the users with which the connections of a pool are opened one after the other: rows read before a change may be
// none that the next user may see.
type Logins struct {
	user  atomic.Pointer[string]
	count atomic.Uint64
}

// Count returns the number of changes.
func (l *Logins) Count() uint64 { return l.count.Load() }

// Opened is called with the user of each new connection before it is used. If that is another user than the last one, replace
// must replace the connections that there are.
func (l *Logins) Opened(user string, replace func()) {
	if last := l.user.Swap(&user); last != nil && *last != user {
		replace()
		l.count.Add(1)
	}
}
