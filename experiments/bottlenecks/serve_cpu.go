//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// burnRounds take some microseconds, between two looks at the clock.
const burnRounds = 5000

// multiply keeps a core busy; its result depends on every round, so that none is left out.
func multiply(rounds int, x uint64) uint64 {
	for range rounds {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic("bug: CLOCK_THREAD_CPUTIME_ID: " + err.Error())
	}
	return time.Duration(t.Nano())
}

// spend uses that much CPU time, however fast the core is and whoever else uses it.
func spend(work time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	x := uint64(1)
	for until := threadTime() + work; threadTime() < until; {
		x = multiply(burnRounds, x)
	}
	runtime.KeepAlive(x) // otherwise the compiler leaves the work out
}

// burn answers after that much CPU time.
func burn(work time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		spend(work)
		fmt.Fprintln(w, "ok")
	})
}

// readFile spends its time in the kernel: it reads a file, which the page cache has, in small pieces.
func readFile(size int) (http.Handler, func(), error) {
	file, err := os.CreateTemp("", "bottlenecks-read-")
	if err != nil {
		return nil, nil, err
	}
	end := func() {
		file.Close()
		_ = os.Remove(file.Name())
	}
	if err := file.Truncate(int64(size)); err != nil {
		end()
		return nil, nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		piece := make([]byte, 4096)
		for at := 0; at < size; at += len(piece) {
			if _, err := file.ReadAt(piece, int64(at)); err != nil && err != io.EOF {
				answer(w, err)
				return
			}
		}
		answer(w, nil)
	}), end, nil
}

// spin keeps k threads busy until ctx ends.
func spin(ctx context.Context, k int) error {
	var threads sync.WaitGroup
	for range k {
		threads.Go(func() {
			runtime.LockOSThread()
			x := uint64(1)
			for ctx.Err() == nil {
				x = multiply(1_000_000, x)
			}
			runtime.KeepAlive(x)
		})
	}
	threads.Wait()
	return nil
}
