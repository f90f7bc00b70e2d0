package watch

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	for name, want := range map[string]procStat{
		"process_stat_6.18.txt": {
			pid: 26764, ppid: 1, command: []byte("postgres"), state: 'S', threads: 1, start: 1118440,
			own: ticks{4, 69}, reaped: ticks{7979, 8563},
		},
		"process_stat_odd.txt": {
			pid: 1234, ppid: 1, command: []byte("a) b (c\n"), state: 'S', threads: 5, start: 987654,
			own: ticks{11, 22}, reaped: ticks{33, 44},
		},
	} {
		got, err := parseStat(fixture(t, name))
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(procStat{}, ticks{})); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", name, err, diff)
		}
	}
	whole := fixture(t, "process_stat_6.18.txt")
	for _, absurd := range []string{
		"", "1", "(a) S", "x (a) S 1", "0 (a) S 1", "1 )a( S 1", string(whole[:60]),
		strings.Replace(string(whole), " 7979 ", " -5 ", 1), strings.Replace(string(whole), " 7979 ", " 99999999999999999999 ", 1),
	} {
		if got, err := parseStat([]byte(absurd)); err == nil {
			t.Errorf("%q is taken for %+v", absurd, got)
		}
	}
}

func TestParseStatus(t *testing.T) {
	for name, want := range map[string]procStatus{
		"process_status_6.18.txt": {
			resident: 61644 << 10, anonymous: 2316 << 10, shared: 42976 << 10, split: true, voluntary: 1139, involuntary: 560, told: true,
		},
		"process_status_4.4.txt": {resident: 1708 << 10, voluntary: 3, involuntary: 4, told: true},
		"process_status_cut.txt": {resident: 61644 << 10, anonymous: 2316 << 10, shared: 42976 << 10, split: true},
	} {
		got := parseStatus(fixture(t, name))
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(procStatus{})); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	waited, slices, err := parseSchedstat(fixture(t, "process_schedstat_6.18.txt"))
	if waited != 1251091344 || slices != 1686 || err != nil {
		t.Errorf("schedstat %d, %d, %v", waited, slices, err)
	}
	if files, ok := parseLimits(fixture(t, "process_limits_6.18.txt")); files != 20000 || !ok {
		t.Errorf("limit %d, %v", files, ok)
	}
	if files, ok := parseLimits([]byte("Max open files            unlimited            unlimited            files\n")); ok {
		t.Errorf("no limit is taken for %d", files)
	}
}

func TestParseHost(t *testing.T) {
	for name, want := range map[string]hostStat{
		"host_stat_2.6.txt": {
			user: 120, system: 30, idle: 4000, iowait: 50, softirq: 13, steal: 8, cores: 1, switches: 999, running: 2, runningOK: true,
		},
		"host_stat_6.18.txt": {
			user: 679228, system: 525067, idle: 1301066, iowait: 8663, softirq: 172443, steal: 2028, cores: 2, runningOK: true,
		},
	} {
		got, err := parseHostStat(fixture(t, name))
		if strings.Contains(name, "6.18") {
			if got.switches == 0 || got.running == 0 {
				t.Errorf("%s: %+v", name, got)
			}
			got.switches, got.running = 0, 0
		}
		if got != want || err != nil {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
	if got, err := parseHostStat(fixture(t, "host_stat_cut.txt")); err == nil {
		t.Errorf("a cut line is taken for %+v", got)
	}
	some, full, err := parsePressure(fixture(t, "host_pressure_io_6.18.txt"))
	if some != 102713954 || full != 57359557 || err != nil {
		t.Errorf("pressure %d, %d, %v", some, full, err)
	}
	if _, full, err := parsePressure([]byte("some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n")); full != 0 || err != nil { // CPU, 4.20
		t.Errorf("pressure without full: %d, %v", full, err)
	}
	if available, ok := parseAvailable(fixture(t, "host_meminfo_6.18.txt")); available != 22744248<<10 || !ok {
		t.Errorf("available %d, %v", available, ok)
	}
	if load, err := parseLoad(fixture(t, "host_loadavg_6.18.txt")); load != 12.51 || err != nil {
		t.Errorf("load %g, %v", load, err)
	}
}

func TestParseTCP(t *testing.T) {
	collect := func(parse func([]byte, string, func([]byte, float64)) error, name, protocol string) map[string]float64 {
		values := map[string]float64{}
		err := parse(fixture(t, name), protocol, func(name []byte, value float64) { values[string(name)] = value })
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return values
	}
	old := collect(parseSockstat, "net_sockstat_4.4.txt", "TCP")
	if diff := cmp.Diff(map[string]float64{"inuse": 25, "orphan": 1, "tw": 4811, "alloc": 31, "mem": 3}, old); diff != "" {
		t.Error(diff)
	}
	expectAll(t, collect(parseSockstat, "net_sockstat_6.18.txt", "TCP"), map[string]float64{"inuse": 12, "tw": 3, "alloc": 936})
	snmp := collect(parseMIB, "net_snmp_6.18.txt", "Tcp")
	if snmp["MaxConn"] != -1 || snmp["ActiveOpens"] != 13903130 || snmp["RetransSegs"] != 17982 || snmp["OutRsts"] != 189985 {
		t.Errorf("snmp %v", snmp)
	}
	netstat := collect(parseMIB, "net_netstat_3.10.txt", "TcpExt")
	if netstat["TW"] != 4811 || netstat["ListenDrops"] != 31 || len(netstat) != 22 {
		t.Errorf("netstat of 3.10: %v", netstat)
	}
	netstat = collect(parseMIB, "net_netstat_6.18.txt", "TcpExt")
	for column := range netstatNames {
		if _, told := netstat[column]; !told {
			t.Errorf("netstat of 6.18 has no column %s", column)
		}
	}
	whole := fixture(t, "net_netstat_6.18.txt")
	cut := whole[:bytes.Index(whole, []byte("\nIpExt"))-20]
	if err := parseMIB(cut, "TcpExt", func([]byte, float64) {}); err == nil {
		t.Error("cut values are not told")
	}
}

func TestPortRange(t *testing.T) {
	r, err := parsePortRange([]byte("32768\t60999\n"))
	if err != nil || r.count() != 28232 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := r.reserve([]byte("8080,32768,40000-40009,60999-65535\n")); err != nil || r.count() != 28232-12 {
		t.Errorf("%d ports, %v", r.count(), err)
	}
	if err := r.reserve([]byte("\n")); err != nil || r.count() != 28232 {
		t.Errorf("%d ports, %v", r.count(), err)
	}
	for _, absurd := range []string{"", "5", "9 8", "0 7", "1 65536", "-1 5", "a b"} {
		if r, err := parsePortRange([]byte(absurd)); err == nil {
			t.Errorf("%q is taken for %+v", absurd, r)
		}
	}
	for _, absurd := range []string{"a", "5-", "9-8", "70000"} {
		if err := r.reserve([]byte(absurd)); err == nil {
			t.Errorf("%q is taken", absurd)
		}
	}
}

func TestReadFrom(t *testing.T) {
	path := t.TempDir() + "/long"
	content := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	got, err := readOnce(path, &buf)
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v, want %d", len(got), err, len(content))
	}
	if err := os.Truncate(path, maxProcFile*4); err != nil {
		t.Fatal(err)
	}
	if _, err := readOnce(path, &buf); err == nil {
		t.Error("a file without end is read")
	}
}

func FuzzParseProcess(f *testing.F) {
	for _, content := range fixtures(f, "process_") {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseStat(b); err == nil && (s.pid <= 0 || s.ppid < 0 || s.threads < 0 || s.own.user > math.MaxInt64) {
			t.Errorf("%q is taken for %+v", b, s)
		}
		if s := parseStatus(b); s.resident > math.MaxInt64 || s.anonymous > math.MaxInt64 || s.shared > math.MaxInt64 {
			t.Errorf("%q is taken for %+v", b, s)
		}
		_, _, _ = parseSchedstat(b)
		_, _ = parseLimits(b)
	})
}

func FuzzParseHost(f *testing.F) {
	for _, content := range fixtures(f, "host_") {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseHostStat(b); err == nil && s.cores > len(b) {
			t.Errorf("%q has %d cores", b, s.cores)
		}
		if load, err := parseLoad(b); err == nil && !(load >= 0 && load < 1e9) {
			t.Errorf("%q is a load of %g", b, load)
		}
		_, _, _ = parsePressure(b)
		_, _ = parseAvailable(b)
	})
}

func FuzzParseEntries(f *testing.F) {
	entry := binary.NativeEndian.AppendUint64(nil, 7)
	entry = binary.NativeEndian.AppendUint64(entry, 1)
	entry = binary.NativeEndian.AppendUint16(entry, 24)
	entry = append(entry, 4, '1', '2', 0, 0, 0)
	f.Add(entry)
	f.Add(append(entry, entry...))
	f.Add(entry[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		entries := 0
		err := parseEntries(b, func(_ uint64, name []byte) {
			entries++
			if bytes.IndexByte(name, 0) >= 0 {
				t.Errorf("name %q", name)
			}
		})
		if entries*20 > len(b) || (err == nil && len(b) > 0 && entries == 0) {
			t.Errorf("%d entries in %d bytes, %v", entries, len(b), err)
		}
	})
}
