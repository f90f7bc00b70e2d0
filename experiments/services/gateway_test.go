package main

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/quick"
)

func TestSessions(t *testing.T) {
	for _, c := range []struct {
		header, want string
		found        bool
	}{
		{"", "", false},
		{"sid=abc", "abc", true},
		{"a=1; sid=abc; b=2", "abc", true},
		{"a=1;sid=abc", "abc", true},
		{"lastsid=no; sid=abc", "abc", true},
		{"a=sid; lastsid=no", "", false},
		{"sid=", "", true},
	} {
		for name, find := range map[string]func(string) (string, bool){"split": sessionBySplit, "search": sessionBySearch} {
			if got, found := find(c.header); got != c.want || found != c.found {
				t.Errorf("%s of %q: %q, %v, want %q, %v", name, c.header, got, found, c.want, c.found)
			}
		}
	}
}

// Both parsers find the same in every header whose names have no spaces behind them.
func TestParsersAgree(t *testing.T) {
	letters := []string{"sid", "sid=", "=", ";", "; ", "a", "x=1"}
	agree := func(picks []uint8) bool {
		var header strings.Builder
		for _, pick := range picks {
			header.WriteString(letters[int(pick)%len(letters)])
		}
		split, found := sessionBySplit(header.String())
		search, ok := sessionBySearch(header.String())
		if found != ok || split != search {
			t.Logf("%q: split %q %v, search %q %v", header.String(), split, found, search, ok)
			return false
		}
		return true
	}
	if err := quick.Check(agree, &quick.Config{MaxCount: 20_000}); err != nil {
		t.Error(err)
	}
}

func TestPoolKeeps(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	address := listener.Addr().String()
	for _, size := range []int{0, 2} {
		p := newPool(size)
		for range 3 {
			conn, err := p.take(address)
			if err != nil {
				t.Fatal(err)
			}
			defer p.put(address, conn, nil)
		}
		first, err := p.take(address)
		if err != nil {
			t.Fatal(err)
		}
		p.put(address, first, nil)
		second, err := p.take(address)
		if err != nil {
			t.Fatal(err)
		}
		if kept := first == second; kept != (size > 0) {
			t.Errorf("size %d: the same connection again: %v", size, kept)
		}
		p.put(address, second, fmt.Errorf("broken"))
		if n := len(p.idle[address]); n != 0 {
			t.Errorf("size %d: %d idle after a failed call", size, n)
		}
		p.close()
	}
}

// header is what the experiment sends.
const header = "lang=zh-CN; theme=dark; region=310000; device=b7c1e2f09a44d3118e5f60721c9ad8e3; _visit=GA1.2.1783023415.1543894842; _visit_first=1543894842.1.1543899999.0; campaign=winter-sale-2018-banner-17; tracker_a=9f2c1d07b6a84e35bd0e1f6a7c88d210; tracker_b=5e1b8c40d7f24a96a3b2c9d8e7f60514; consent=necessary|statistics|marketing; last_page=%2Fgoods%2F4711%3Ffrom%3Dhome; cart=12.3.7.45.8; sid=9f86d081884c7d659a2feaa0c55ad015"

func BenchmarkSplit(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		sessionBySplit(header)
	}
}

func BenchmarkSearch(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		sessionBySearch(header)
	}
}
