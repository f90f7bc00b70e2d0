package watch

import (
	"bytes"
	"errors"
	"strconv"
)

// hostStat is what /proc/stat tells of the whole host: CPU times in clock ticks, from boot.
type hostStat struct {
	user, system, idle, iowait, softirq, steal uint64
	cores                                      int
	switches, running                          uint64
	runningOK                                  bool
}

// parseHostStat reads /proc/stat. Times that an old kernel does not have stay 0.
func parseHostStat(b []byte) (hostStat, error) {
	var s hostStat
	first, b := line(b)
	times, found := bytes.CutPrefix(first, []byte("cpu "))
	if !found {
		return s, errors.New("/proc/stat: no line of all CPUs")
	}
	var fields [8]uint64 // user nice system idle iowait irq softirq steal; guests are in user already
	told := 0
	for told < len(fields) {
		n, rest, ok := wordNumber(times)
		if !ok {
			break
		}
		fields[told], times = n, rest
		told++
	}
	if told < 4 {
		return s, errors.New("/proc/stat: the line of all CPUs is cut off")
	}
	s.user, s.system, s.idle, s.iowait = fields[0]+fields[1], fields[2], fields[3], fields[4]
	s.softirq, s.steal = fields[5]+fields[6], fields[7]
	for len(b) > 0 {
		var text []byte
		text, b = line(b)
		key, rest := word(text)
		switch {
		case bytes.HasPrefix(key, []byte("cpu")):
			s.cores++
		case string(key) == "ctxt":
			s.switches, _, _ = wordNumber(rest)
		case string(key) == "procs_running":
			s.running, _, s.runningOK = wordNumber(rest)
		}
	}
	return s, nil
}

// parseLoad returns the first figure of /proc/loadavg.
func parseLoad(b []byte) (load1 float64, err error) {
	first, _ := word(b)
	load1, err = strconv.ParseFloat(string(first), 64)
	if err != nil || !(load1 >= 0 && load1 < 1e9) {
		return 0, errors.New("/proc/loadavg: absurd")
	}
	return load1, nil
}

// parsePressure returns the stall times of /proc/pressure/*, in microseconds from boot. The CPU has no "full" before
// Linux 5.13.
func parsePressure(b []byte) (some, full uint64, err error) {
	err = errors.New("pressure: no line of \"some\"")
	for len(b) > 0 {
		var text []byte
		text, b = line(b)
		kind, rest := word(text)
		_, total, found := bytes.Cut(rest, []byte("total="))
		if !found {
			continue
		}
		n, _, ok := wordNumber(total)
		switch {
		case !ok:
		case string(kind) == "some":
			some, err = n, nil
		case string(kind) == "full":
			full = n
		}
	}
	return some, full, err
}

// parseAvailable returns MemAvailable of /proc/meminfo in bytes; none before Linux 3.14.
func parseAvailable(b []byte) (bytes uint64, ok bool) {
	for len(b) > 0 {
		var text []byte
		text, b = line(b)
		if key, rest := word(text); string(key) == "MemAvailable:" {
			return kibibytes(rest)
		}
	}
	return 0, false
}
