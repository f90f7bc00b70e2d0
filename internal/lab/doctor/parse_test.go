package doctor

import (
	"encoding/binary"
	"math"
	"net"
	"os"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

// Truncated and absurd files of /proc give no number that makes no sense.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"32768\t60999\n", "8080,9148-9150,1-", "TCP: inuse 5 orphan 0 tw 12 alloc", "TcpExt: A ListenOverflows\nTcpExt: 1 99999999999999999999\n",
		"Max open files            1024                 unlimited            files\n", "MemTotal:       24684092 kB\n", "max 100000", "-1 100000",
		"some avg10=1e400 avg60=0\n", "always [madvise] never", "0-3,8,65536-99999999", "6.18.44-fc", "..", "9223372036854771712", "\x00", "PPid:\t-5\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		first, last := parsePortRange(text)
		if first < 0 || last < first || last > portMax {
			t.Errorf("ports %d to %d", first, last)
		}
		if n := countReserved(text, 1024, 65535); n < 0 || n > 64512 {
			t.Errorf("%d reserved", n)
		}
		soft, hard := parseFileLimits(text)
		for _, n := range []int64{parseNumber(text), parseSockstat(text, "tw"), parseNetstat(text, "ListenOverflows"), soft, hard, parseMeminfo(text, "MemTotal")} {
			if n < absent {
				t.Errorf("%q: %d", text, n)
			}
		}
		if q, p := parseQuota(text), parsePressure(text); q < 0 || math.IsInf(q, 0) || p < 0 || p > 100 {
			t.Errorf("%q: quota %v, pressure %v", text, q, p)
		}
		if n := countList(text); n < 0 || n > 1<<16 {
			t.Errorf("%q: %d members", text, n)
		}
		parseKernel(text)
		parseChoice(text)
		file := &fstest.MapFile{Data: []byte(text)}
		root := fstest.MapFS{"proc/sys/kernel/osrelease": file}
		for _, name := range []string{
			"proc/sys/net/ipv4/ip_local_port_range", "proc/sys/net/ipv4/ip_local_reserved_ports", "proc/thread-self/net/sockstat", "proc/self/cgroup",
			"proc/meminfo", "sys/devices/system/cpu/online", "sys/fs/cgroup/cpu.max", "sys/fs/cgroup/memory.max", "proc/pressure/cpu", "proc/sys/net/ipv4/tcp_max_tw_buckets",
		} {
			root[name] = file
		}
		if facts, err := ReadFacts(root); err == nil {
			CheckHost(facts)
			Predict(facts, &Workload{Rate: 1, PerConnection: 1, Addresses: 1, Targets: 1, Closes: Client, Service: 1, Stall: 1})
		}
	})
}

// sock_diag's answer may be cut off anywhere.
func FuzzParseListeners(f *testing.F) {
	answer, err := askListeners(unix.AF_INET)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(answer, 22)
	f.Add(answer[:len(answer)/2], 8080)
	f.Add(binary.NativeEndian.AppendUint32(nil, math.MaxUint32), 1)
	f.Fuzz(func(_ *testing.T, data []byte, port int) {
		parseListeners(data, port)
		endsDump(data)
	})
}

// A listener of this process is found with its backlog, what waits in it, and
// this process's limits.
func TestReadListener(t *testing.T) {
	fd, err := listen([4]byte{127, 0, 0, 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Listen(fd, 7); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := address.(*unix.SockaddrInet4).Port
	for range 3 {
		conn, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	root := os.DirFS("/")
	facts, err := ReadFacts(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := ReadListener(root, facts, port); err != nil {
		t.Fatal(err)
	}
	if l := facts.Listener; l == nil || *l != (Listener{Port: port, Backlog: 7, Queued: 3}) {
		t.Errorf("listener %+v", facts.Listener)
	}
	if facts.FilesOf != "doctor.test (pid "+digits(int64(os.Getpid()))+")" {
		t.Errorf("limits of %s", facts.FilesOf)
	}
}

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"http://127.0.0.1:8080/goodslist": {8080, true},
		"http://app.example/":             {80, false},
		"https://[::1]/":                  {443, true},
		"redis://u:p@localhost":           {6379, true},
		"10.0.0.1:99":                     {99, false},
	} {
		if got, err := ParseTarget(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "host", "http://:80", "http://h:0", "http://h:99999", "http://u:s3cr3t@%zz/"} {
		if got, err := ParseTarget(text); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
