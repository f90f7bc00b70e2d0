// Package compress keeps compressed forms of bodies that many responses share, and selects
// the form for a request.
//
// A body is compressed by the first request that wants a form, once per coding. Requests that
// come meanwhile get the plain body, so that nobody waits. All forms of a Compressor together
// have a limit of memory. Beyond it, a form that was not used for 10 s is dropped for another
// one; if there is none, bodies are sent plain. So forms that few requests want do not displace
// those of most requests, and no more is compressed than fits into the limit in 10 s.
package compress

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"
)

// Least is the size of the smallest body that is compressed, in bytes. Smaller ones fit into
// one packet anyway.
const Least = 1024

const (
	// zstdWindow is how far a zstd decoder must be able to look back, in bytes. Browsers
	// allow 8 MiB.
	zstdWindow = 1 << 20
	// zstdEncoders is how many bodies zstd compresses at once at most. Each takes a few MiB.
	zstdEncoders = 4
	// unusedFor is how long a form is kept at least since it was made or used.
	unusedFor = 10 * time.Second
)

// Compressor compresses bodies within a limit of memory. Use New. Its methods may be called
// concurrently.
type Compressor struct {
	limit   int64
	used    atomic.Int64
	refused atomic.Uint64
	zstd    *zstd.Encoder
	free    *semaphore.Weighted // encoders of zstd that nobody uses
	gzip    sync.Pool           // of *gzip.Writer

	mu   sync.Mutex                       // guards what follows
	kept *simplelru.LRU[*slot, time.Time] // the forms, with the time since which slot.used counts
}

// New returns a Compressor whose forms together have at most limit bytes; nil if limit is 0.
func New(limit int) *Compressor {
	if limit == 0 {
		return nil
	}
	encoders := min(runtime.GOMAXPROCS(0), zstdEncoders)
	encoder, err := zstd.NewWriter(nil, zstd.WithWindowSize(zstdWindow), zstd.WithEncoderConcurrency(encoders))
	if err != nil {
		panic("bug: zstd does not accept its options: " + err.Error())
	}
	kept, _ := simplelru.NewLRU[*slot, time.Time](math.MaxInt, nil) // the memory limits it; any size is valid
	return &Compressor{limit: int64(limit), zstd: encoder, free: semaphore.NewWeighted(int64(encoders)), kept: kept}
}

// Usage returns the bytes of all forms, and how often a body was sent plain because of the
// limit.
func (c *Compressor) Usage() (bytes int64, refused uint64) {
	return c.used.Load(), c.refused.Load()
}

// reserve takes n bytes of the limit and reports whether they were left, or could be freed.
func (c *Compressor) reserve(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for c.used.Load()+int64(n) > c.limit {
		if int64(n) > c.limit || !c.dropLocked(now) {
			c.refused.Add(1)
			return false
		}
	}
	c.used.Add(int64(n))
	return true
}

// dropLocked drops the form that was not used for the longest time. It returns false if all
// were used lately. The first look at a form that was used only notes that, so that Find needs
// no lock.
func (c *Compressor) dropLocked(now time.Time) bool {
	for {
		s, since, ok := c.kept.GetOldest()
		if !ok || now.Sub(since) < unusedFor {
			return false
		}
		if s.used.Swap(false) {
			c.kept.Add(s, now)
			continue
		}
		c.kept.Remove(s)
		s.drop(c)
		return true
	}
}

// enter reports whether a body can be compressed now without waiting for another one. The caller then calls leave.
func (c *Compressor) enter(coding Coding) bool { return coding != Zstd || c.free.TryAcquire(1) }

func (c *Compressor) leave(coding Coding) {
	if coding == Zstd {
		c.free.Release(1)
	}
}

// compress returns a compressed form of plain; an empty one if it would not be smaller.
func (c *Compressor) compress(coding Coding, plain []byte) []byte {
	var form []byte
	if coding == Zstd {
		form = c.zstd.EncodeAll(plain, make([]byte, 0, len(plain)/2))
	} else {
		form = c.gzipped(plain)
	}
	if len(form) >= len(plain) {
		return []byte{}
	}
	return bytes.Clone(form) // without the memory that is left over
}

func (c *Compressor) gzipped(plain []byte) []byte {
	form := bytes.NewBuffer(make([]byte, 0, len(plain)/2))
	w, ok := c.gzip.Get().(*gzip.Writer)
	if !ok {
		w = gzip.NewWriter(nil)
	}
	defer c.gzip.Put(w)
	w.Reset(form)
	_, err := w.Write(plain)
	if closing := w.Close(); err == nil {
		err = closing
	}
	if err != nil {
		panic(fmt.Sprintf("bug: gzip into memory: %v", err))
	}
	return form.Bytes()
}

// Forms holds the compressed forms of one body. The zero value is ready to use. Whoever drops
// the body must call Release. Its methods may be called concurrently.
type Forms struct {
	slots [codings]slot // by Coding, from Gzip on

	mu       sync.Mutex // guards what follows, and changes of slots
	by       *Compressor
	released bool
}

// slot is the form of one coding.
type slot struct {
	form atomic.Pointer[[]byte] // nil: not prepared; empty: the plain body is better
	busy atomic.Bool            // being prepared
	used atomic.Bool            // found since Compressor.kept has looked
}

// drop forgets the form.
func (s *slot) drop(by *Compressor) {
	if form := s.form.Swap(nil); form != nil {
		by.used.Add(-int64(len(*form)))
	}
}

// Find returns the best coding of accept and the form in it, which must not be changed. The
// form is nil if the coding is Identity, or if the caller has to Prepare it.
func (f *Forms) Find(accept Accept) (Coding, []byte) {
	for _, coding := range accept {
		if coding == Identity {
			break
		}
		s := &f.slots[coding-1]
		form := s.form.Load()
		if form == nil {
			return coding, nil
		}
		if len(*form) > 0 {
			if !s.used.Load() { // not every request writes, because all cores share the cache line
				s.used.Store(true)
			}
			return coding, *form
		}
	}
	return Identity, nil
}

// Prepare returns the form of the body in a coding that Find has returned without one. plain
// returns the body, of size bytes, and is called only if the body is compressed now. Prepare
// returns Identity if the body has to be sent plain: it is small or does not get smaller,
// another request is preparing the form, the limit is reached, or f is released.
func (f *Forms) Prepare(by *Compressor, coding Coding, size int, plain func() []byte) (Coding, []byte) {
	s := &f.slots[coding-1]
	if size < Least {
		s.form.Store(&[]byte{})
		return Identity, nil
	}
	if !s.busy.CompareAndSwap(false, true) {
		return Identity, nil
	}
	defer s.busy.Store(false)
	if form := s.form.Load(); form != nil { // prepared since the caller looked
		if len(*form) == 0 {
			return Identity, nil
		}
		return coding, *form
	}
	if f.isReleased() || !by.enter(coding) {
		return Identity, nil
	}
	defer by.leave(coding)
	if !by.reserve(size) {
		return Identity, nil
	}
	form := by.compress(coding, plain())
	f.keep(by, s, form, size)
	if len(form) == 0 {
		return Identity, nil
	}
	return coding, form
}

func (f *Forms) isReleased() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.released
}

// keep stores a form, for which reserved bytes were taken, unless f has been released.
func (f *Forms) keep(by *Compressor, s *slot, form []byte, reserved int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by = by
	if f.released {
		by.used.Add(-int64(reserved))
		return
	}
	by.mu.Lock()
	defer by.mu.Unlock()
	by.used.Add(int64(len(form) - reserved))
	s.form.Store(&form)
	if len(form) > 0 {
		by.kept.Add(s, time.Now())
	}
}

// Release forgets the forms, because the body is not served any more. Responses that are
// still being written keep theirs. No more forms are kept after it.
func (f *Forms) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.released = true
	if f.by == nil {
		return
	}
	f.by.mu.Lock()
	defer f.by.mu.Unlock()
	for i := range f.slots {
		f.by.kept.Remove(&f.slots[i])
		f.slots[i].drop(f.by)
	}
}
