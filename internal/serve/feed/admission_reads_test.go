package feed

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A simulation of the rows that are read for requests: a window of 200 rows when a value gets one
// and every 100 ms while it is in use, and pages of 10 rows for values without one.
const (
	simWindows = 100
	simPerTick = 100 // requests, per 100 ms
	simTicks   = 600
	simFill    = 200
	simPage    = 10
	simIdle    = 20 // ticks
)

// simPolicy decides which values have windows.
type simPolicy interface {
	// ask notes a request, and reports whether the value has a window, and whether it just got it.
	ask(value uint64, tick int) (window, fresh bool)
	// active returns how many windows are in use.
	active(tick int) int
}

// frequency is the admission of feeds.
type frequency struct {
	a         admission
	values    []uint64
	at        map[uint64]int
	residents []resident
}

func (p *frequency) ask(value uint64, tick int) (window, fresh bool) {
	asked := int64(tick)
	if i, ok := p.at[value]; ok {
		p.residents[i].requests++
		p.residents[i].asked = asked
		return true, false
	}
	if len(p.values) < simWindows {
		p.at[value] = len(p.values)
		p.values, p.residents = append(p.values, value), append(p.residents, resident{requests: 1, asked: asked})
		p.a.created()
		return true, true
	}
	if halvings := p.a.age(time.Unix(100, 0).Add(time.Duration(tick) * 100 * time.Millisecond)); halvings > 0 {
		for i := range p.residents {
			p.residents[i].requests >>= halvings
		}
	}
	if p.a.wants(value) {
		requests := p.a.counts[value]
		if i, ok := p.a.replace(value, p.residents, false); ok {
			delete(p.at, p.values[i])
			p.values[i], p.at[value] = value, i
			p.residents[i] = resident{requests: requests, asked: asked}
			return true, true
		}
	}
	p.a.count(value)
	return false, false
}

func (p *frequency) active(tick int) (n int) {
	for _, r := range p.residents {
		if tick-int(r.asked) < simIdle {
			n++
		}
	}
	return n
}

// recency lets a value in at its first or second request of a period, for the one that was asked for longest ago.
type recency struct {
	second bool
	last   map[uint64]int // of windows
	seen   map[uint64]int // of other values
}

func (p *recency) ask(value uint64, tick int) (window, fresh bool) {
	if _, ok := p.last[value]; ok {
		p.last[value] = tick
		return true, false
	}
	if seen, ok := p.seen[value]; p.second && len(p.last) >= simWindows && (!ok || tick-seen > simIdle) {
		p.seen[value] = tick
		return false, false
	}
	delete(p.seen, value)
	if len(p.last) >= simWindows {
		var oldest uint64
		first := tick + 1
		for v, at := range p.last {
			if at < first {
				oldest, first = v, at
			}
		}
		delete(p.last, oldest)
	}
	p.last[value] = tick
	return true, true
}

func (p *recency) active(tick int) (n int) {
	for _, at := range p.last {
		if tick-at < simIdle {
			n++
		}
	}
	return n
}

// simLoads are the values of requests, one after another.
func simLoads() map[string]func(tick int) uint64 {
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 1, 20_000)
	next := uint64(1 << 40)
	scan := func(int) uint64 { next++; return next }
	turn := uint64(0)
	return map[string]func(int) uint64{
		"scan":  scan,
		"hot":   func(int) uint64 { return zipf.Uint64() },
		"turns": func(int) uint64 { turn++; return turn % (2 * simWindows) },
		"hot and a scan": func(tick int) uint64 {
			if random.IntN(2) == 0 {
				return zipf.Uint64()
			}
			return scan(tick)
		},
		"bursts": func(tick int) uint64 {
			if random.IntN(2) == 0 {
				return zipf.Uint64()
			}
			return 1<<50 + uint64(tick/10) // another value each second
		},
	}
}

// TestAdmissionReads compares the rows that are read per request with those of simpler policies.
// None of them reads fewer rows over all loads.
func TestAdmissionReads(t *testing.T) {
	t.Parallel()
	policies := map[string]func() simPolicy{
		"frequency": func() simPolicy { return &frequency{a: newAdmission(simWindows, 2*time.Second), at: map[uint64]int{}} },
		"recency":   func() simPolicy { return &recency{last: map[uint64]int{}, seen: map[uint64]int{}} },
		"recency, at the second": func() simPolicy {
			return &recency{second: true, last: map[uint64]int{}, seen: map[uint64]int{}}
		},
	}
	total := map[string]float64{}
	for name, open := range policies {
		for load, next := range simLoads() {
			p := open()
			read, requests, outside := 0, 0, 0
			for tick := range simTicks {
				for range simPerTick {
					window, fresh := p.ask(next(tick), tick)
					requests++
					switch {
					case fresh:
						read += simFill
					case !window:
						read += simPage
						outside++
					}
				}
				read += simFill * p.active(tick)
			}
			perRequest := float64(read) / float64(requests)
			total[name] += perRequest
			t.Logf("%-24s %-16s %7.1f rows per request, %5.1f %% without a window", name, load, perRequest, 100*float64(outside)/float64(requests))
		}
	}
	for name, rows := range total {
		if rows < total["frequency"] {
			t.Errorf("%s reads %.0f rows per request of each load, and the admission %.0f", name, rows, total["frequency"])
		}
	}
}
