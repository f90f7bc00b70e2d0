package apptest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// SetClock makes the clock of a server ahead by offset, with libfaketime, which cannot do that
// to Go programs. The first call restarts the server, later ones take effect within a second.
// Its monotonic clock is not changed.
func (s *Server) SetClock(t testing.TB, offset time.Duration) {
	t.Helper()
	file := filepath.Join(s.dir, "clock")
	written, err := s.writeFile("clock.new", fmt.Sprintf("%+d\n", int64(offset.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(written, file); err != nil {
		t.Fatal(err)
	}
	if s.env != nil {
		return
	}
	library, err := findBinary("libfaketime.so.1", "faketime", "/usr/lib/*/faketime/libfaketime.so.1")
	if err != nil {
		t.Fatal(err)
	}
	// its malloc, because jemalloc asks for the time before libfaketime is ready
	libc, err := findBinary("libc.so.6", "libc6", "/lib/*/libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s.env = []string{
		"LD_PRELOAD=" + library + ":" + libc, "FAKETIME_TIMESTAMP_FILE=" + file, "FAKETIME_CACHE_DURATION=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}
