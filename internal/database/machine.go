package database

import (
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
)

// machine identifies this host: by /etc/machine-id, if there is one, and by its name, because a
// copy of a host can have the same machine-id.
func machine() string {
	id, _ := os.ReadFile("/etc/machine-id") // the name is enough
	name, _ := os.Hostname()
	return strings.TrimSpace(string(id)) + "@" + name
}

// Here identifies what an address on this host means now, better than Identity, but for as long as
// the host runs: its copies have another identity, and each network in it. It is empty if the
// address means the same everywhere.
func (u URL) Here() string {
	if !u.local {
		return ""
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // both are Linux's; elsewhere Identity must do
	network, _ := os.Readlink("/proc/self/ns/net")
	return string(boot) + network
}

// isLocal reports whether the address can mean another server on another host: it has a socket,
// a loopback address, or no host at all.
func (a server) isLocal() bool {
	hosts := slices.Clone(a.hosts)
	for _, pair := range a.query {
		if name, value, _ := strings.Cut(pair, "="); name == "host" || name == "hostaddr" {
			plain, _ := url.QueryUnescape(value) // checked by parseServer
			hosts = append(hosts, strings.Split(plain, ",")...)
		}
	}
	return len(hosts) == 0 || slices.ContainsFunc(hosts, isLoopback)
}

// isLoopback reports whether a host, with or without a port, is a socket or a loopback address.
func isLoopback(host string) bool {
	host = strings.ToLower(host)
	if host == "" || strings.ContainsAny(host[:1], "/@") || strings.HasPrefix(host, "127.") || strings.Contains(host, "localhost") {
		return true
	}
	plain := host
	if inside, ok := strings.CutPrefix(host, "["); ok {
		plain, _, _ = strings.Cut(inside, "]")
	} else if before, _, found := strings.Cut(host, ":"); found && !strings.Contains(host[len(before)+1:], ":") {
		plain = before
	}
	addr, err := netip.ParseAddr(plain)
	return err == nil && (addr.Unmap().IsLoopback() || addr.IsUnspecified())
}
