//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"spillway/experiments/process"
)

const (
	linkDevice  = "far0"
	linkPackets = 1 << 16 // on their way in one direction; more are dropped, as by a router
	packetBytes = 1 << 16
)

// A packet is on its way.
type packet struct {
	due  time.Time
	data []byte
}

// forward is a link between the network namespaces of two processes: a device in each, and every packet that one of them sends
// arrives at the other after a delay. It makes the file marker when the devices exist, and ends with ctx. It is a substitute
// for netem, which not every kernel has.
func forward(ctx context.Context, pids string, delay time.Duration, marker string) error {
	from, to, _ := strings.Cut(pids, ",")
	a, err := openDevice(from)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := openDevice(to)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := os.WriteFile(marker, nil, 0o644); err != nil {
		return fmt.Errorf("write marker: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed [2]error
	var directions sync.WaitGroup
	for i, direction := range [2][2]*os.File{{a, b}, {b, a}} {
		directions.Go(func() {
			failed[i] = carry(direction[0], direction[1], delay)
			cancel()
		})
	}
	<-ctx.Done()
	a.Close() // ends the reads and writes
	b.Close()
	directions.Wait()
	for _, err := range failed {
		if err != nil && !errors.Is(err, os.ErrClosed) {
			return fmt.Errorf("forward packets: %w", err)
		}
	}
	return nil
}

// carry moves packets in one direction until a device is closed.
func carry(from, to *os.File, delay time.Duration) error {
	queue := make(chan packet, linkPackets)
	read := make(chan error, 1)
	go func() {
		defer close(queue)
		buffer := make([]byte, packetBytes)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				read <- err
				return
			}
			select {
			case queue <- packet{time.Now().Add(delay), append([]byte(nil), buffer[:n]...)}:
			default: // dropped
			}
		}
	}()
	for p := range queue {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); errors.Is(err, os.ErrClosed) {
			break
		}
	}
	for range queue { // until the reader has ended
	}
	return <-read
}

// openDevice makes a TUN device in the network namespace of a process. It exists until the file is closed.
func openDevice(pid string) (*os.File, error) {
	target, err := strconv.Atoi(pid)
	if err != nil {
		return nil, fmt.Errorf("network namespace of process %q: not a pid", pid)
	}
	type opened struct {
		file *os.File
		err  error
	}
	result := make(chan opened)
	go func() {
		runtime.LockOSThread() // never unlocked: it is in another namespace
		if err := (process.Command{Network: target}).Enter(); err != nil {
			result <- opened{err: err}
			return
		}
		file, err := newDevice()
		result <- opened{file, err}
	}()
	o := <-result
	return o.file, o.err
}

func newDevice() (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(linkDevice)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make device: %w", err)
	}
	return os.NewFile(uintptr(fd), linkDevice), nil
}
