//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// pages maps a file of size bytes and touches k random pages of it for each request. If the process may keep less than the file
// in memory, most of the pages come from the disk.
func pages(size, k int) (handler http.Handler, end func(), err error) {
	file, err := os.CreateTemp("", "bottlenecks-pages-")
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	defer os.Remove(file.Name())
	piece := make([]byte, 1<<20)
	for i := range piece {
		piece[i] = byte(i)
	}
	for range size / len(piece) {
		if _, err := file.Write(piece); err != nil {
			return nil, nil, err
		}
	}
	if err := file.Sync(); err != nil { // dirty pages cannot be reclaimed
		return nil, nil, err
	}
	data, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.Madvise(data, unix.MADV_RANDOM); err != nil {
		return nil, nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		sum := 0
		for range k {
			sum += int(data[rand.IntN(size)])
		}
		fmt.Fprintln(w, sum)
	}), func() { _ = unix.Munmap(data) }, nil
}

// garbage allocates size bytes for each request, beside a live heap of k MiB full of pointers. With a memory limit just above
// the live heap, the garbage collector runs all the time.
func garbage(live, size int) http.Handler {
	type node struct {
		next *node
		_    [56]byte
	}
	var keep *node
	for range live << 20 / 64 {
		keep = &node{next: keep}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var list *node
		for range size / 64 {
			list = &node{next: list}
		}
		runtime.KeepAlive(list)
		runtime.KeepAlive(keep)
		answer(w, nil)
	})
}
