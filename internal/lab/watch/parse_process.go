package watch

import (
	"bytes"
	"errors"
	"math"
)

// ticksPerSecond is the kernel's USER_HZ, the unit of CPU times in /proc: 100 on every Linux that Go runs on, whatever
// the timer's frequency.
const ticksPerSecond = 100

// ticks are the user and the system CPU time of something, in clock ticks.
type ticks struct{ user, system uint64 }

func (t ticks) add(o ticks) ticks { return ticks{t.user + o.user, t.system + o.system} }

// less takes o away, down to zero.
func (t ticks) less(o ticks) ticks {
	return ticks{t.user - min(t.user, o.user), t.system - min(t.system, o.system)}
}

func (t ticks) most(o ticks) ticks { return ticks{max(t.user, o.user), max(t.system, o.system)} }

// procStat is what /proc/PID/stat tells of a process.
type procStat struct {
	pid, ppid int
	command   []byte // part of the bytes that were parsed
	state     byte
	threads   int
	start     uint64 // clock ticks since boot; with the pid it names one process
	own       ticks  // of its threads, the ended ones too
	reaped    ticks  // of the children that it has waited for, and of theirs
}

// zombie reports whether the process has ended and waits to be reaped. One whose first thread has ended and whose
// others run is none.
func (s *procStat) zombie() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

// parseStat reads /proc/PID/stat. The command may hold blanks and parentheses.
func parseStat(b []byte) (procStat, error) {
	begin, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if begin < 0 || end < begin {
		return procStat{}, errors.New("stat: no command")
	}
	s := procStat{command: b[begin+1 : end]}
	first, _ := word(b[:begin])
	pid, ok := pidNumber(first)
	if !ok {
		return procStat{}, errors.New("stat: no process id")
	}
	s.pid = pid
	state, rest := word(b[end+1:])
	if len(state) != 1 {
		return procStat{}, errors.New("stat: no state")
	}
	s.state = state[0]
	for field := 4; field <= 22; field++ {
		var text []byte
		text, rest = word(rest)
		n, ok := number(text)
		switch field {
		case 4:
			s.ppid = int(min(n, math.MaxInt32))
		case 14:
			s.own.user = n
		case 15:
			s.own.system = n
		case 16:
			s.reaped.user = n
		case 17:
			s.reaped.system = n
		case 20:
			s.threads = int(min(n, math.MaxInt32))
		case 22:
			s.start = n
		default:
			continue // may be negative, and nobody asks
		}
		if !ok || n > math.MaxInt64 {
			return procStat{}, errors.New("stat: cut off or absurd")
		}
	}
	return s, nil
}

// procStatus is what /proc/PID/status and /proc/PID/task/TID/status tell.
type procStatus struct {
	resident, anonymous, shared uint64 // bytes: VmRSS, RssAnon, RssShmem
	split                       bool   // the kernel tells the last two (4.5 and later)
	voluntary, involuntary      uint64 // context switches of the one task
	told                        bool   // the switches are there
}

// parseStatus reads a status file. A kernel thread and a zombie have no memory lines.
func parseStatus(b []byte) procStatus {
	var s procStatus
	for len(b) > 0 {
		var text []byte
		text, b = line(b)
		key, rest, found := bytes.Cut(text, []byte{':'})
		if !found {
			continue
		}
		switch string(key) {
		case "VmRSS":
			s.resident, _ = kibibytes(rest)
		case "RssAnon":
			s.anonymous, s.split = kibibytes(rest)
		case "RssShmem":
			s.shared, _ = kibibytes(rest)
		case "voluntary_ctxt_switches":
			s.voluntary, _, _ = wordNumber(rest)
		case "nonvoluntary_ctxt_switches":
			s.involuntary, _, s.told = wordNumber(rest)
		}
	}
	return s
}

// kibibytes reads "  1708 kB" as bytes.
func kibibytes(b []byte) (bytes uint64, ok bool) {
	n, _, ok := wordNumber(b)
	if !ok || n > math.MaxInt64>>10 {
		return 0, false
	}
	return n << 10, true
}

// parseSchedstat reads /proc/PID/task/TID/schedstat: the nanoseconds that the task waited on a run queue, and how often
// it was put on a CPU.
func parseSchedstat(b []byte) (waited, slices uint64, err error) {
	_, rest, ranOK := wordNumber(b)
	waited, rest, waitedOK := wordNumber(rest)
	slices, _, slicesOK := wordNumber(rest)
	if !ranOK || !waitedOK || !slicesOK {
		return 0, 0, errors.New("schedstat: cut off or absurd")
	}
	return waited, slices, nil
}

// parseLimits returns the soft limit of open files in /proc/PID/limits; none for "unlimited".
func parseLimits(b []byte) (files uint64, limited bool) {
	for len(b) > 0 {
		var text []byte
		text, b = line(b)
		if rest, found := bytes.CutPrefix(text, []byte("Max open files")); found {
			files, _, limited = wordNumber(rest)
			return files, limited
		}
	}
	return 0, false
}
