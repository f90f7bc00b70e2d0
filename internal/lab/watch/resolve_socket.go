package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// lookupTimeout bounds the look-up of a host's name.
const lookupTimeout = 5 * time.Second

// listening returns the processes that hold a socket which listens on the target's address. Looking costs a reading of
// every process's open files, and is done at the start and after the process ended only.
func (t ProcessTarget) listening() ([]int, error) {
	sockets, err := t.listeningSockets()
	if err != nil {
		return nil, err
	}
	owners, denied, err := t.owners(sockets)
	if err != nil {
		return nil, fmt.Errorf("look for the owner of port %d: %w", t.port, err)
	}
	// systemd holds the sockets that it opens for its services, and is an ancestor of everything.
	services := slices.DeleteFunc(slices.Clone(owners), func(pid int) bool { return pid == 1 && t.command(1) == "systemd" })
	switch {
	case len(services) > 0:
		return services, nil
	case len(owners) > 0:
		return nil, fmt.Errorf("port %d is held by systemd for a service that has not been started yet: send it one request first", t.port)
	case denied > 0:
		return nil, fmt.Errorf("the process that listens on port %d belongs to another user: run as that user or as root, or name the process by its PID", t.port)
	}
	return nil, fmt.Errorf("no process owns the socket that listens on port %d: it belongs to the kernel or to another container; name the process by its PID", t.port)
}

// listeningSockets returns the inode numbers of the sockets that listen on the port, those of the address rather than
// those of all addresses.
func (t ProcessTarget) listeningSockets() ([]uint32, error) {
	addresses, err := t.addresses()
	if err != nil {
		return nil, err
	}
	d, err := openDiag()
	if err != nil {
		return nil, err
	}
	defer d.close()
	var exact, wildcard, other []uint32
	port := uint16(t.port)
	err = d.sockets(diagQuery{states: 1 << tcpListen, low: port, high: port}, func(s *diagSocket) {
		address := s.addrPort().Addr().Unmap()
		switch {
		case s.port != port || s.state != tcpListen:
		case address.IsUnspecified():
			wildcard = append(wildcard, s.inode)
		case len(addresses) == 0 || slices.Contains(addresses, address):
			exact = append(exact, s.inode)
		default:
			other = append(other, s.inode)
		}
	})
	switch {
	case err != nil:
		return nil, err
	case t.host == "":
		return t.some(append(exact, wildcard...))
	case len(exact) > 0:
		return exact, nil
	case len(wildcard) == 0 && len(other) > 0:
		return nil, fmt.Errorf("port %d is listened on, but not at %s: write :%d", t.port, t.host, t.port)
	}
	return t.some(wildcard)
}

func (t ProcessTarget) some(inodes []uint32) ([]uint32, error) {
	if len(inodes) == 0 {
		return nil, fmt.Errorf("nothing listens on port %d in this network namespace: start it first (ss -ltn lists what listens)", t.port)
	}
	return inodes, nil
}

// addresses of the target's host; none for any.
func (t ProcessTarget) addresses() ([]netip.Addr, error) {
	if t.host == "" {
		return nil, nil
	}
	if address, err := netip.ParseAddr(t.host); err == nil {
		return []netip.Addr{address.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", t.host)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w (a listener of this host is written :%d)", t.host, err, t.port)
	}
	for i := range addresses {
		addresses[i] = addresses[i].Unmap()
	}
	return addresses, nil
}

// owners returns the processes that have one of the sockets open, and how many did not show their open files.
func (t ProcessTarget) owners(inodes []uint32) (pids []int, denied int, err error) {
	links := make([]string, len(inodes))
	for i, inode := range inodes {
		links[i] = fmt.Sprintf("socket:[%d]", inode)
	}
	entries := make([]byte, 32<<10)
	err = list(t.proc, entries, func(_ uint64, name []byte) {
		pid, ok := pidNumber(name)
		if !ok {
			return
		}
		owns, err := t.owns(pid, links)
		switch {
		case owns:
			pids = append(pids, pid)
		case errors.Is(err, os.ErrPermission):
			denied++
		}
	})
	return pids, denied, err
}

func (t ProcessTarget) owns(pid int, links []string) (bool, error) {
	dir := filepath.Join(t.proc, strconv.Itoa(pid), "fd")
	found := false
	entries := make([]byte, 32<<10)
	err := list(dir, entries, func(_ uint64, name []byte) {
		if _, isFile := number(name); found || !isFile {
			return
		}
		link, err := os.Readlink(dir + "/" + string(name))
		found = err == nil && slices.Contains(links, link)
	})
	return found, err
}
