//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// serveWork answers / after so many rounds of arithmetic, and /cpu with the microseconds of CPU that the process has
// used. It ends with ctx.
func serveWork(ctx context.Context, rounds int, address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, work(rounds, uint64(r.ContentLength)))
	})
	mux.HandleFunc("/cpu", func(w http.ResponseWriter, _ *http.Request) {
		used, err := cpuUsed()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, strconv.FormatInt(used.Microseconds(), 10))
	})
	server := &http.Server{Handler: mux}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	err = server.Close()
	<-done
	return err
}

// work keeps a core busy; its result depends on every round, so that none is left out.
func work(rounds int, x uint64) uint64 {
	for range rounds {
		x = x*6364136223846793005 + 1442695040888963407
	}
	return x
}

func cpuUsed() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
