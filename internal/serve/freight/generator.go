package freight

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// Generator makes the rows of one Dataset in their final order. It holds four
// bytes a user and is read-only once made: Users, Orders and Day may be called
// concurrently.
type Generator struct {
	dataset    Dataset
	byDay      []uint32 // user ids, those registered on an earlier day first
	registered []int    // registered[d] users were registered before day d's midnight
	firstID    []int    // firstID[d] is the id of day d's first order; one more entry closes the list
}

// NewGenerator returns the generator of a valid data set.
func NewGenerator(dataset Dataset) *Generator {
	g := &Generator{
		dataset:    dataset,
		byDay:      make([]uint32, dataset.Users),
		registered: make([]int, max(dataset.Days, registerDays+2)+1),
		firstID:    make([]int, dataset.Days+1),
	}
	for user := range g.Users() {
		g.registered[registrationDay(user)+1]++
	}
	for day := 1; day < len(g.registered); day++ {
		g.registered[day] += g.registered[day-1]
	}
	next := slices.Clone(g.registered)
	for user := range g.Users() {
		day := registrationDay(user)
		g.byDay[next[day]] = uint32(user.ID)
		next[day]++
	}
	g.firstID[0] = 1
	for day := range dataset.Days {
		g.firstID[day+1] = g.firstID[day] + min(dataset.PerDay, g.registered[day])
	}
	return g
}

func registrationDay(u User) int { return int((u.Created - firstDay) / daySeconds) }

// OrderCount returns the number of orders.
func (g *Generator) OrderCount() int { return g.firstID[g.dataset.Days] - 1 }

// Users returns the users by id.
func (g *Generator) Users() iter.Seq[User] {
	return func(yield func(User) bool) {
		random := stream(g.dataset.Seed, 0)
		for id := 1; id <= g.dataset.Users; id++ {
			if !yield(User{ID: id, Created: firstDay + int64(below(random, registerRange))}) {
				return
			}
		}
	}
}

// Orders returns the orders by id, and so by time.
func (g *Generator) Orders() iter.Seq[Order] {
	return func(yield func(Order) bool) {
		var sample sampler
		for day := range g.dataset.Days {
			for order := range g.day(day, &sample) {
				if !yield(order) {
					return
				}
			}
		}
	}
}

// day returns one day's orders by id; those of the same second are ordered by user. Every
// day has its own random numbers, so days can be generated in any order and
// concurrently, each with its own sampler.
func (g *Generator) day(day int, sample *sampler) iter.Seq[Order] {
	random := stream(g.dataset.Seed, uint64(day)+1)
	picked := sample.pick(random, g.firstID[day+1]-g.firstID[day], g.registered[day])
	// The upper half is the second of the day, the lower half the user, so sorting the
	// numbers sorts the orders.
	for i, index := range picked {
		picked[i] = below(random, daySeconds)<<32 | uint64(g.byDay[index])
	}
	slices.Sort(picked)
	midnight := firstDay + int64(day)*daySeconds
	return func(yield func(Order) bool) {
		for i, p := range picked {
			order := Order{ID: g.firstID[day] + i, Created: midnight + int64(p>>32), UserID: int(uint32(p))}
			putHex(order.Goods[:16], random.Uint64())
			putHex(order.Goods[16:], random.Uint64())
			if !yield(order) {
				return
			}
		}
	}
}

// sampler draws without replacement. It keeps its memory between draws.
type sampler struct {
	picked []uint64
	taken  []uint64 // a bit for each number
}

// pick returns count different numbers below n, with every subset equally likely. It uses
// Floyd's method: one random number and one bit per number. The result is valid until the
// next pick.
func (s *sampler) pick(random *rand.PCG, count, n int) []uint64 {
	if words := (n + 63) / 64; len(s.taken) < words {
		s.taken = make([]uint64, words)
	}
	s.picked = s.picked[:0]
	for top := n - count; top < n; top++ {
		number := below(random, uint64(top)+1)
		if s.taken[number/64]&(1<<(number%64)) != 0 {
			number = uint64(top) // not taken yet: every number before was less
		}
		s.taken[number/64] |= 1 << (number % 64)
		s.picked = append(s.picked, number)
	}
	for _, number := range s.picked {
		s.taken[number/64] = 0
	}
	return s.picked
}

// stream returns the random number generator with a number. Seed and number are mixed
// first, because neighbouring states of a PCG start with related numbers.
func stream(seed, number uint64) *rand.PCG {
	const golden = 0x9e3779b97f4a7c15
	a := mix(seed + golden)
	return rand.NewPCG(a, mix(a^(number+1)*golden))
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// below returns a number from 0 to n-1 from exactly one random number: the high half of a
// product. Its bias of n in 2^64 cannot be measured. The data set must not depend on a
// library's method.
func below(random *rand.PCG, n uint64) uint64 {
	high, _ := bits.Mul64(random.Uint64(), n)
	return high
}

func putHex(dst []byte, x uint64) {
	hex.Encode(dst, binary.BigEndian.AppendUint64(nil, x))
}

func appendInt(dst []byte, i int64) []byte { return strconv.AppendInt(dst, i, 10) }

// Bounds of a Dataset. Mobile numbers start at 13800000001 and have eleven digits, ids fit
// a 32-bit integer, and a data set can be loaded within a day.
const (
	MaxUsers  = 100_000_000
	MaxDays   = 3660
	MaxOrders = 2_000_000_000 // Days x PerDay
)

// Dataset identifies one data set. Equal values give equal rows on every database.
type Dataset struct {
	Users  int    `help:"Registered users, 1 to 100000000." default:"1000000"`
	Days   int    `help:"Days with orders from 2015-12-01 on, 1 to 3660." default:"366"`
	PerDay int    `help:"Orders per day at most, one per user; 0 to the number of users." default:"30000"`
	Seed   uint64 `name:"random-seed" help:"Equal random seeds and sizes give equal rows, on every database." default:"1"` // at most 1<<63-1
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

// table holds the rows of one table.
type table struct {
	name    string
	columns []string
	total   int
	lines   func() iter.Seq[chunk] // tabs between values, a newline after each row; no value has one, a quote or a backslash
}

const chunkSize = 64 << 10

// chunk is a run of encoded rows. Its bytes are valid until the next chunk.
type chunk struct {
	data []byte
	rows int
}

// chunks encodes rows into chunks.
func chunks[Row any](rows iter.Seq[Row], encode func([]byte, Row) []byte) iter.Seq[chunk] {
	return func(yield func(chunk) bool) {
		c := chunk{data: make([]byte, 0, chunkSize+1024)}
		for row := range rows {
			c.data = encode(c.data, row)
			c.rows++
			if len(c.data) < chunkSize {
				continue
			}
			if !yield(c) {
				return
			}
			c = chunk{data: c.data[:0]}
		}
		if c.rows > 0 {
			yield(c)
		}
	}
}

// tables returns the tables of the freight app that have rows.
func (g *Generator) tables() []table {
	return []table{
		{
			name: "users", columns: []string{"id", "nickname", "mobileno", "createtime"}, total: g.dataset.Users,
			lines: func() iter.Seq[chunk] { return chunks(g.Users(), lineOfUser) },
		},
		{
			name: "orders", columns: []string{"id", "createtime", "users_id", "goods_name"}, total: g.OrderCount(),
			lines: func() iter.Seq[chunk] { return chunks(g.Orders(), lineOfOrder) },
		},
	}
}

func lineOfUser(dst []byte, u User) []byte {
	dst = append(appendInt(dst, int64(u.ID)), '\t')
	dst = append(u.Mobile(dst), '\t')
	dst = append(u.Mobile(dst), '\t')
	return append(appendTime(dst, u.Created), '\n')
}

func lineOfOrder(dst []byte, o Order) []byte {
	dst = append(appendInt(dst, int64(o.ID)), '\t')
	dst = append(appendTime(dst, o.Created), '\t')
	dst = append(appendInt(dst, int64(o.UserID)), '\t')
	return append(append(dst, o.Goods[:]...), '\n')
}

func appendTime(dst []byte, unix int64) []byte {
	return time.Unix(unix, 0).UTC().AppendFormat(dst, time.DateTime)
}
