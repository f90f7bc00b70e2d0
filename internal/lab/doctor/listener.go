package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Listener is a listening socket of this host.
type Listener struct {
	Port    int `json:"port"`
	Backlog int `json:"accept_backlog"` // what listen() asked for, cut at somaxconn
	Queued  int `json:"accept_queued"`  // connections that wait to be accepted
}

// schemePorts are the ports that a target's URL may leave out.
var schemePorts = map[string]string{
	"http": "80", "https": "443", "redis": "6379", "rediss": "6379",
	"postgres": "5432", "postgresql": "5432", "mysql": "3306",
}

// Target is the host and port of what will be loaded.
type Target struct {
	Port     int
	Loopback bool // its address is this host's loopback
}

// ParseTarget reads an http, redis, postgres or mysql URL, or HOST:PORT. It
// looks no name up but localhost.
func ParseTarget(text string) (Target, error) {
	if !strings.Contains(text, "://") {
		text = "tcp://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return Target{}, errors.New("is not a URL such as http://HOST:PORT/PATH") // url's own error may hold a password
	}
	port := u.Port()
	if port == "" {
		port = schemePorts[u.Scheme]
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > portMax || u.Hostname() == "" {
		return Target{}, errors.New("names no host and port; write http://HOST:PORT/PATH")
	}
	ip := net.ParseIP(u.Hostname())
	return Target{Port: n, Loopback: u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()}, nil
}

// sock_diag's request and answer, linux/inet_diag.h.
const (
	sockDiagByFamily = 20
	tcpListen        = 10
	diagRequestSize  = 56 // inet_diag_req_v2
	diagAnswerSize   = 72 // inet_diag_msg
)

// ReadListener asks the kernel for the listening sockets alone (never for those
// in TIME_WAIT) and adds the one on that port to the facts, with the open-file
// limits of the process that holds it. No such listener is no error.
func ReadListener(root fs.FS, f *Facts, port int) error {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		answer, err := askListeners(family)
		if err != nil {
			return fmt.Errorf("list listening sockets: %w", err)
		}
		found, inode := parseListeners(answer, port)
		if found == nil {
			continue
		}
		f.Listener = found
		if pid := socketOwner(root, inode); pid != "" {
			reader{root}.files(f, pid)
		}
		return nil
	}
	return nil
}

// askListeners dumps one family's listening TCP sockets.
func askListeners(family byte) ([]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	request := make([]byte, unix.SizeofNlMsghdr+diagRequestSize)
	binary.NativeEndian.PutUint32(request, uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := request[unix.SizeofNlMsghdr:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], 1<<tcpListen)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var all []byte
	part := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, part, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, part[:n]...)
		if n < unix.SizeofNlMsghdr || endsDump(part[:n]) {
			return all, nil
		}
	}
}

// endsDump reports whether a datagram holds the dump's last message or an error.
func endsDump(datagram []byte) bool {
	end := false
	eachMessage(datagram, func(kind uint16, _ []byte) {
		end = end || kind == unix.NLMSG_DONE || kind == unix.NLMSG_ERROR
	})
	return end
}

// eachMessage walks over netlink messages; what is cut off is left out.
func eachMessage(data []byte, visit func(kind uint16, body []byte)) {
	for len(data) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(data))
		if length < unix.SizeofNlMsghdr || length > len(data) {
			return
		}
		visit(binary.NativeEndian.Uint16(data[4:]), data[unix.SizeofNlMsghdr:length])
		data = data[min(len(data), (length+3)&^3):]
	}
}

// parseListeners finds the listener on a port and its inode.
func parseListeners(answer []byte, port int) (found *Listener, inode uint32) {
	eachMessage(answer, func(kind uint16, body []byte) {
		if kind != sockDiagByFamily || len(body) < diagAnswerSize || body[1] != tcpListen {
			return
		}
		if int(binary.BigEndian.Uint16(body[4:])) != port || found != nil {
			return
		}
		found = &Listener{
			Port:    port,
			Queued:  int(binary.NativeEndian.Uint32(body[56:])),
			Backlog: int(binary.NativeEndian.Uint32(body[60:])),
		}
		inode = binary.NativeEndian.Uint32(body[68:])
	})
	return found, inode
}

// socketOwner returns the pid of a process that holds a socket, "" when there
// is none that this user may look into.
func socketOwner(root fs.FS, inode uint32) string {
	want := fmt.Sprintf("socket:[%d]", inode)
	processes, _ := fs.ReadDir(root, "proc")
	for _, process := range processes {
		if parseNumber(process.Name()) < 0 {
			continue
		}
		dir := path.Join("proc", process.Name(), "fd")
		files, _ := fs.ReadDir(root, dir)
		for _, file := range files {
			if link, err := os.Readlink("/" + path.Join(dir, file.Name())); err == nil && link == want {
				return process.Name()
			}
		}
	}
	return ""
}
