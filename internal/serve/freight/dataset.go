package freight

import "fmt"

// Bounds of a Dataset. Mobile numbers start at 13800000001 and have eleven digits, ids fit
// a 32-bit integer, and a data set can be loaded within a day.
const (
	MaxUsers  = 100_000_000
	MaxDays   = 3660
	MaxOrders = 2_000_000_000 // Days x PerDay
)

// Dataset identifies one data set. Equal values give equal rows on every database.
type Dataset struct {
	Users  int    // registered users, 1 to MaxUsers
	Days   int    // days with orders from 2015-12-01 on, 1 to MaxDays
	PerDay int    // maximum orders per day, 0 to Users
	Seed   uint64 // of the random numbers; at most 1<<63-1, so that every database can store it
}

// Validate returns an error that names the first parameter out of bounds by its flag.
func (d Dataset) Validate() error {
	switch {
	case d.Users < 1 || d.Users > MaxUsers:
		return fmt.Errorf("--users must be 1 to %d, not %d", MaxUsers, d.Users)
	case d.Days < 1 || d.Days > MaxDays:
		return fmt.Errorf("--days must be 1 to %d, not %d", MaxDays, d.Days)
	case d.PerDay < 0 || d.PerDay > d.Users:
		return fmt.Errorf("--per-day must be 0 to the number of users (%d), not %d", d.Users, d.PerDay)
	case d.Days*d.PerDay > MaxOrders:
		return fmt.Errorf("--days x --per-day must be at most %d, not %d", MaxOrders, d.Days*d.PerDay)
	case d.Seed > 1<<63-1:
		return fmt.Errorf("--random-seed must be 0 to %d, not %d", uint64(1<<63-1), d.Seed)
	}
	return nil
}

// String writes the parameters as flags.
func (d Dataset) String() string {
	return fmt.Sprintf("--users %d --days %d --per-day %d --random-seed %d", d.Users, d.Days, d.PerDay, d.Seed)
}

// User is one row of users. The nickname is the mobile number.
type User struct {
	ID      int   // 1 to Dataset.Users
	Created int64 // Unix seconds
}

// Mobile appends the user's mobile number, 13800000000 + ID.
func (u User) Mobile(dst []byte) []byte { return appendInt(dst, firstMobile+int64(u.ID)) }

// Order is one row of orders.
type Order struct {
	ID      int      // 1 for the oldest, without gaps
	Created int64    // Unix seconds; never less than that of the order before
	UserID  int      // a user registered before the order's day
	Goods   [32]byte // lowercase hexadecimal digits
}

const (
	firstMobile   = 13_800_000_000
	firstDay      = 1_448_928_000 // midnight, 2015-12-01, in Unix seconds
	daySeconds    = 24 * 60 * 60
	registerDays  = 364 // users register from the first midnight to the one so many days later, both included
	registerRange = registerDays*daySeconds + 1
)
