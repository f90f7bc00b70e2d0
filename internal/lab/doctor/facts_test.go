package doctor

import (
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// hostRoot writes the files of a host to a temporary directory. Process 43 is this one, 42 its parent.
func hostRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	tree := fstest.MapFS{
		"proc/self":        {Data: []byte("43"), Mode: fs.ModeSymlink},
		"proc/thread-self": {Data: []byte("43/task/43"), Mode: fs.ModeSymlink},
		"proc/43/stat":     {Data: []byte("43 (doctor) S 42" + strings.Repeat(" 0", 48) + "\n")},
	}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	root := t.TempDir()
	if err := os.CopyFS(root, tree); err != nil {
		t.Fatal(err)
	}
	return root
}

// Truncated and invalid files of /proc give no invalid number.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"32768\t60999\n", "8080,9148-9150,1-", "TCP: inuse 5 orphan 0 tw 12 alloc", "TcpExt: A ListenOverflows\nTcpExt: 1 99999999999999999999\n",
		"Max open files            1024                 unlimited            files\n", "MemTotal:       24684092 kB\n", "max 100000", "-1 100000",
		"some avg10=1e400 avg60=0\n", "always [madvise] never", "0-3,8,65536-99999999", "6.18.44-fc", "..", "9223372036854771712", "\x00", "PPid:\t-5\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		soft, hard := parseFileLimits(text)
		for _, n := range []int64{parseNumber(text), soft, hard} {
			if n < absent {
				t.Errorf("%q: %d", text, n)
			}
		}
		parseKernel(text)
		parseChoice(text)
		files := map[string]string{"proc/sys/kernel/osrelease": text}
		for _, name := range []string{
			"proc/sys/net/ipv4/ip_local_port_range", "proc/sys/net/ipv4/ip_local_reserved_ports", "proc/43/task/43/net/sockstat",
			"proc/43/task/43/net/netstat", "proc/43/cgroup", "proc/stat", "proc/meminfo", "sys/fs/cgroup/cpu.max", "sys/fs/cgroup/memory.max",
			"proc/pressure/cpu", "proc/sys/net/ipv4/tcp_max_tw_buckets",
		} {
			files[name] = text
		}
		facts, err := ReadFacts(hostRoot(t, files))
		if err != nil {
			t.Fatal(err)
		}
		if facts.PortFirst < 0 || facts.PortLast < facts.PortFirst || facts.PortLast > portMax || facts.PortsReserved > portMax {
			t.Errorf("%q: ports %d to %d, %d reserved", text, facts.PortFirst, facts.PortLast, facts.PortsReserved)
		}
		if q := facts.CPUQuota; q < 0 || math.IsInf(q, 0) || math.IsNaN(q) || facts.MemoryLimit < 0 {
			t.Errorf("%q: quota %v, at most %d bytes", text, q, facts.MemoryLimit)
		}
		for _, n := range []int64{facts.TimeWait, facts.ListenOverflow, facts.MemoryBytes, facts.MaxTWBuckets} {
			if n < absent {
				t.Errorf("%q: %+v", text, facts)
			}
		}
		CheckHost(facts)
		Predict(facts, &Workload{Rate: 1, PerConnection: 1, Addresses: 1, Targets: 1, Closes: Client, Service: 1, Stall: 1})
	})
}

// Facts of this host are plausible, and those of a made host are exact.
func TestReadFacts(t *testing.T) {
	here, err := ReadFacts("/")
	if err != nil {
		t.Fatal(err)
	}
	if here.Ports() < 100 || here.Cores < 1 || here.MemoryBytes < 1<<20 || here.FilesSoft < 3 || here.TimeWait < 0 || here.Somaxconn < 1 {
		t.Errorf("%+v", here)
	}
	facts, err := ReadFacts(hostRoot(t, map[string]string{
		"proc/sys/kernel/osrelease":                  "5.10.0\n",
		"proc/sys/net/ipv4/ip_local_port_range":      "1024\t65535\n",
		"proc/sys/net/ipv4/ip_local_reserved_ports":  "80,5432,6379-6380,65530-70000\n",
		"proc/sys/net/ipv4/tcp_tw_reuse":             "2\n",
		"proc/43/task/43/net/sockstat":               "sockets: used 5\nTCP: inuse 1 orphan 0 tw 77 alloc 3 mem 1\n",
		"proc/43/task/43/net/netstat":                "TcpExt: A ListenOverflows B\nTcpExt: 1 9 3\nIpExt: C\nIpExt: 4\n",
		"proc/42/comm":                               "zsh\n",
		"proc/42/limits":                             "Limit   Soft Limit  Hard Limit Units\nMax open files   1024   unlimited   files\n",
		"proc/43/limits":                             "Limit   Soft Limit  Hard Limit Units\nMax open files   4096   4096   files\n",
		"proc/43/cgroup":                             "0::/a/b\n3:cpu,cpuacct:/c\n",
		"sys/fs/cgroup/a/cpu.max":                    "150000 100000\n",
		"sys/fs/cgroup/a/b/cpu.max":                  "max 100000\n",
		"sys/fs/cgroup/a/memory.max":                 "1073741824\n",
		"sys/fs/cgroup/cpu/c/cpu.cfs_quota_us":       "50000\n",
		"sys/fs/cgroup/cpu/c/cpu.cfs_period_us":      "100000\n",
		"proc/stat":                                  "cpu  9 9 9 9 0 0 0 0 0 0\ncpu0 1 1 1 1 0 0 0 0 0 0\ncpu1 1 1 1 1 0 0 0 0 0 0\ncpu8 1 1 1 1 0 0 0 0 0 0\n",
		"proc/pressure/cpu":                          "some avg10=12.50 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"proc/meminfo":                               "MemTotal: 1000 kB\nMemAvailable: 500 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n",
		"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
		"sys/block/sda/queue/rotational":             "1\n",
		"sys/block/nvme0n1/queue/rotational":         "0\n",
		"sys/block/loop0/queue/rotational":           "1\n",
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := &Facts{
		Kernel: "5.10.0", PortFirst: 1024, PortLast: 65535, PortsReserved: 3, TWReuse: 2, TWReuseDelay: -1, TWRecycle: -1, MaxTWBuckets: -1, Timestamps: -1,
		FinTimeout: -1, Somaxconn: -1, MaxSynBacklog: -1, Syncookies: -1, TimeWait: 77, ListenOverflow: 9, FilesOf: "zsh (pid 42)", FilesSoft: 1024,
		FilesHard: math.MaxInt64, FilesOfLoad: 4096, FilesInUse: -1, FileMax: -1, NrOpen: -1, Conntracks: -1, ConntrackMx: -1, ConntrackTW: -1, Cores: 3, CPUQuota: 0.5,
		Pressure: true, CPUPressure: 12.5, MemoryBytes: 1000 << 10, AvailableBytes: 500 << 10, MemoryLimit: 1 << 30, SwapBytes: 10 << 10, SwapUsedBytes: 6 << 10,
		Swappiness: -1, HugePages: "madvise", RotationalDisks: 1, Disks: 2,
	}
	if diff := cmp.Diff(want, facts); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	if _, err := ReadFacts(t.TempDir()); err == nil || !strings.Contains(err.Error(), "Linux") {
		t.Errorf("a host without /proc: %v", err)
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
