package compress

import (
	"bytes"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"spillway/internal/apptest"
)

// The tests of forms share the process's encoders, so they run one after the other.

// inflate returns the plain body of a form.
func inflate(t *testing.T, coding Coding, form []byte) []byte {
	t.Helper()
	var r io.Reader = bytes.NewReader(form)
	switch coding {
	case Gzip:
		z, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		r = z
	case Zstd:
		z, err := zstd.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		r = z
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

func body(n int) []byte { return []byte(strings.Repeat(`{"id":7,"name":"Ann"},`, n)) }

func TestForms(t *testing.T) {
	by, plain := New(1<<20), body(1000)
	var f Forms
	if coding, form := f.Find(Accept{}); coding != Identity || form != nil {
		t.Errorf("nothing accepted: %v", coding)
	}
	total := 0
	for _, accept := range []Accept{{Zstd, Gzip}, {Gzip}} {
		coding, form := f.Find(accept)
		if coding != accept[0] || form != nil {
			t.Fatalf("not prepared: %v, %d bytes", coding, len(form))
		}
		coding, form = f.Prepare(by, coding, len(plain), func() []byte { return plain })
		if coding != accept[0] || !bytes.Equal(inflate(t, coding, form), plain) {
			t.Fatalf("prepared: %v", coding)
		}
		again, same := f.Find(accept)
		if again != coding || &same[0] != &form[0] {
			t.Errorf("%v is not kept", coding)
		}
		if again, same = f.Prepare(by, coding, len(plain), func() []byte { return plain }); again != coding || &same[0] != &form[0] {
			t.Errorf("%v is prepared twice", coding)
		}
		total += len(form)
	}
	if used, refused := by.Usage(); used != int64(total) || refused != 0 {
		t.Errorf("%d bytes used, %d refused, want %d and 0", used, refused, total)
	}
	if n := testing.AllocsPerRun(100, func() { f.Find(Accept{Zstd, Gzip}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	f.Release()
	f.Release()
	if used, _ := by.Usage(); used != 0 {
		t.Errorf("%d bytes used after the release", used)
	}
	if coding, _ := f.Prepare(by, Zstd, len(plain), func() []byte { return plain }); coding != Identity {
		t.Errorf("prepared after the release: %v", coding)
	}
}

func TestPlainIsBetter(t *testing.T) {
	random := make([]byte, 4*Least)
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(random) // never fails
	for name, plain := range map[string][]byte{"small": body(100)[:Least-1], "random": random} {
		by := New(1 << 20)
		var f Forms
		for range codings {
			coding, form := f.Find(Accept{Zstd, Gzip})
			if coding == Identity || form != nil {
				t.Fatalf("%s: %v", name, coding)
			}
			if coding, form = f.Prepare(by, coding, len(plain), func() []byte { return plain }); coding != Identity || form != nil {
				t.Errorf("%s: %v, %d bytes", name, coding, len(form))
			}
		}
		if coding, _ := f.Find(Accept{Zstd, Gzip}); coding != Identity {
			t.Errorf("%s: tried again", name)
		}
		if used, refused := by.Usage(); used != 0 || refused != 0 {
			t.Errorf("%s: %d bytes used, %d refused", name, used, refused)
		}
	}
}

func TestLimit(t *testing.T) { synctest.Test(t, testLimit) }

func testLimit(t *testing.T) {
	plain := body(1000)
	by := New(len(plain) + 10)
	var first, second Forms
	if coding, _ := first.Prepare(by, Gzip, len(plain), func() []byte { return plain }); coding != Gzip {
		t.Fatal("the first form does not fit")
	}
	if coding, _ := second.Prepare(by, Gzip, len(plain), func() []byte { return plain }); coding != Identity {
		t.Error("the second form is beyond the limit")
	}
	used, refused := by.Usage()
	if used == 0 || used > int64(len(plain)) || refused != 1 {
		t.Errorf("%d bytes used, %d refused", used, refused)
	}
	first.Release()
	if coding, _ := second.Prepare(by, Gzip, len(plain), func() []byte { return plain }); coding != Gzip {
		t.Error("the limit stays used after the release")
	}
}

// TestUnusedForms: at the limit, forms that nobody uses leave for others, and the others stay.
func TestUnusedForms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := body(1000)
		by := New(2 * len(plain))
		prepare := func(f *Forms) bool {
			coding, _ := f.Prepare(by, Gzip, len(plain), func() []byte { return plain })
			return coding == Gzip
		}
		has := func(f *Forms) bool {
			_, form := f.Find(Accept{Gzip})
			return form != nil
		}
		var hot Forms
		if !prepare(&hot) {
			t.Fatal("the first form does not fit")
		}
		var cold []*Forms
		for len(cold) < 1000 {
			f := &Forms{}
			if !prepare(f) {
				break
			}
			cold = append(cold, f)
		}
		_, refused := by.Usage()
		if n := len(cold); n < 2 || n == 1000 || refused != 1 {
			t.Fatalf("%d forms fit, %d refused", n+1, refused)
		}
		for second := range 60 {
			if !has(&hot) {
				t.Fatalf("a form that is used was dropped after %d s", second)
			}
			<-time.After(time.Second)
			f := &Forms{}
			if second%11 == 10 && !prepare(f) { // 10 s after the last
				t.Errorf("no form is dropped for another one after %d s", second)
			}
		}
		left := 0
		for _, f := range cold {
			if has(f) {
				left++
			}
		}
		if left == 0 || left == len(cold) {
			t.Errorf("%d of %d forms that nobody uses are left", left, len(cold))
		}
		if used, _ := by.Usage(); used == 0 || used > int64(2*len(plain)) {
			t.Errorf("%d bytes used", used)
		}
	})
}

// TestConcurrentForms: every request gets the plain body or a whole form, and no bytes stay
// counted whenever the forms are released.
func TestConcurrentForms(t *testing.T) {
	by, plain := New(1<<20), body(200)
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	for range 50 {
		var f Forms
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				coding, form := f.Find(Accept{Zstd})
				if form == nil && coding != Identity {
					coding, form = f.Prepare(by, coding, len(plain), func() []byte { return plain })
				}
				if coding == Identity {
					return
				}
				if got, err := decoder.DecodeAll(form, nil); err != nil || !bytes.Equal(got, plain) {
					t.Errorf("a form of %d bytes: %v", len(form), err)
				}
			})
		}
		all.Go(f.Release)
		all.Wait()
		if used, _ := by.Usage(); used != 0 {
			t.Fatalf("%d bytes used after the release", used)
		}
	}
}

// TestNobodyWaitsForAnEncoder: while as many bodies as may are compressed by zstd, others are sent plain at once.
func TestNobodyWaitsForAnEncoder(t *testing.T) {
	by, plain := New(1<<20), body(1000)
	prepare := func(f *Forms, coding Coding, plain func() []byte) Coding {
		used, _ := f.Prepare(by, coding, 22_000, plain)
		return used
	}
	began, end := make(chan struct{}), make(chan struct{})
	slow := func() []byte {
		began <- struct{}{}
		<-end
		return plain
	}
	var group sync.WaitGroup
	n := min(runtime.GOMAXPROCS(0), zstdEncoders)
	for range n {
		group.Go(func() {
			if used := prepare(new(Forms), Zstd, slow); used != Zstd {
				t.Errorf("%v", used)
			}
		})
		apptest.Receive(t, "the beginning of a compression", began)
	}
	var late Forms
	if used := prepare(&late, Zstd, func() []byte { t.Error("the body is made"); return plain }); used != Identity {
		t.Errorf("with %d others: %v", n, used)
	}
	if used := prepare(&late, Gzip, func() []byte { return plain }); used != Gzip {
		t.Errorf("gzip with %d others: %v", n, used)
	}
	close(end)
	group.Wait()
	if used := prepare(&late, Zstd, func() []byte { return plain }); used != Zstd {
		t.Errorf("after them: %v", used)
	}
	if _, refused := by.Usage(); refused != 0 {
		t.Errorf("%d count as refused by the limit", refused)
	}
}
