package watch

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// tasks adds up what the kernel counts per thread (task) only: time on run queues and context switches. When a task ends,
// its last known figures stay in the totals. What it did after that is missed, as are tasks that lived between two readings.
//
// The busiest thread is the one that ran the most since the window began. A reading that comes too early (busiestWindow) does not
// end the window, because a border of a step may follow another reading at once.
//
// It reads the files of tasks itself: a database may have a thread per connection, and procfs takes twice the CPU time.
type tasks struct {
	known                  map[int]*task // by task id, which is unique on the host
	reading                int           // number of the present reading
	waited                 uint64        // nanoseconds
	voluntary, involuntary uint64
	window                 time.Time // when the window began; zero before the first reading
	buf                    [4 << 10]byte
}

// busiestWindow is the shortest time over which the busiest thread is judged.
const busiestWindow = 500 * time.Millisecond

// A task is what is known of a thread.
type task struct {
	reading                int // the last one that saw it
	counted                bool
	waited, slices         uint64 // nanoseconds on run queues, and how often it was put on a CPU
	voluntary, involuntary uint64
	ran, ranBefore         uint64 // nanoseconds on a CPU, now and when the window began
}

// increase is how far a counter of a task came. A lower value belongs to a new task with the same id.
func increase(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// read adds the tasks of a process. Tasks of an older process count from now, others from their start. status is that of the
// process, which is its first task's.
func (k *tasks) read(proc procfs.FS, s *procfs.ProcStat, status *procfs.ProcStatus, older bool) {
	if s.NumThreads <= 1 {
		k.readTask(s.PID, s.PID, status, older)
		return
	}
	threads, err := proc.AllThreads(s.PID)
	if err != nil { // ended
		return
	}
	for _, thread := range threads {
		k.readTask(s.PID, thread.PID, nil, older)
	}
}

// readTask adds a task. It reads the task's status, the most expensive file, only if the task has run.
func (k *tasks) readTask(pid, id int, status *procfs.ProcStatus, older bool) {
	known := k.known[id]
	if known == nil {
		known = &task{}
		k.known[id] = known
	} else {
		older = false
	}
	known.reading = k.reading
	now := task{reading: k.reading, counted: true, ranBefore: known.ranBefore}
	if content, err := k.readFile(pid, id, "schedstat"); err == nil {
		now.ran, now.waited, now.slices, err = parseSchedstat(content)
		if older || now.ran < now.ranBefore {
			now.ranBefore = now.ran
		}
		if err == nil && now.slices == known.slices && known.counted {
			known.ran, known.ranBefore = now.ran, now.ranBefore
			return
		}
	}
	if status != nil {
		now.voluntary, now.involuntary = status.VoluntaryCtxtSwitches, status.NonVoluntaryCtxtSwitches
	} else {
		content, err := k.readFile(pid, id, "status")
		if err != nil { // ended
			return
		}
		now.voluntary, now.involuntary = parseSwitches(content)
	}
	if !older {
		k.waited += increase(known.waited, now.waited)
		k.voluntary += increase(known.voluntary, now.voluntary)
		k.involuntary += increase(known.involuntary, now.involuntary)
	}
	*known = now
}

// readFile returns a file of a task, valid until the next call. The kernel writes such a file in one piece.
func (k *tasks) readFile(pid, id int, name string) ([]byte, error) {
	path := fmt.Appendf(k.buf[:0], "%s/%d/task/%d/%s", procfs.DefaultMountPoint, pid, id, name)
	fd, err := unix.Open(string(path), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, k.buf[:])
	return k.buf[:max(n, 0)], err
}

// parseSchedstat reads how many nanoseconds a task ran and waited on a run queue, and how often it was put on a CPU.
func parseSchedstat(content []byte) (ran, waited, slices uint64, err error) {
	fields := bytes.Fields(content)
	if len(fields) != 3 {
		return 0, 0, 0, errors.New("schedstat: want three numbers")
	}
	ran, ranErr := strconv.ParseUint(string(fields[0]), 10, 64)
	waited, err = strconv.ParseUint(string(fields[1]), 10, 64)
	slices, slicesErr := strconv.ParseUint(string(fields[2]), 10, 64)
	return ran, waited, slices, errors.Join(ranErr, err, slicesErr)
}

// parseSwitches reads the context switches in a task's status, which are its last lines.
func parseSwitches(content []byte) (voluntary, involuntary uint64) {
	i := bytes.LastIndex(content, []byte("\nvoluntary_ctxt_switches:"))
	if i < 0 {
		return 0, 0
	}
	fields := bytes.Fields(content[i:]) // name, number, name, number
	if len(fields) >= 4 {
		voluntary, _ = strconv.ParseUint(string(fields[1]), 10, 64)
		involuntary, _ = strconv.ParseUint(string(fields[3]), 10, 64)
	}
	return voluntary, involuntary
}

// sweep ends a reading: it forgets the tasks that have not been seen, and returns how much of the time since the window began the
// busiest of the others ran; not ok if the window goes on.
func (k *tasks) sweep(now time.Time) (busiest float64, ok bool) {
	elapsed := now.Sub(k.window)
	ok = elapsed >= busiestWindow
	for id, one := range k.known {
		if one.reading != k.reading {
			delete(k.known, id)
			continue
		}
		if ok {
			busiest = max(busiest, float64(one.ran-one.ranBefore)/float64(elapsed))
			one.ranBefore = one.ran
		}
	}
	first := k.window.IsZero()
	if ok {
		k.window = now
	}
	k.reading++
	return min(busiest, 1), ok && !first
}
