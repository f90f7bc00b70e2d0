package freight

import (
	"iter"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
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
	const digits = "0123456789abcdef"
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = digits[x&15]
		x >>= 4
	}
}

func appendInt(dst []byte, i int64) []byte { return strconv.AppendInt(dst, i, 10) }
