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

// tasks adds up what the kernel counts per thread (task) only: time on run queues. When a task ends,
// its last known figures stay in the totals. What it did after that is missed, as are tasks that lived between two readings.
//
// The busiest thread is the one that ran the most since the window began. A reading that comes too early (busiestWindow) does not
// end the window, because a border of a step may follow another reading at once.
//
// It reads the files of tasks itself: a database may have a thread per connection, and procfs takes twice the CPU time.
type tasks struct {
	known   map[int]*task // by task id, which is unique on the host
	reading int           // number of the present reading
	waited  uint64        // nanoseconds
	window  time.Time     // when the window began; zero before the first reading
	buf     [256]byte
}

// busiestWindow is the shortest time over which the busiest thread is judged.
const busiestWindow = 500 * time.Millisecond

// A task is what is known of a thread.
type task struct {
	reading        int    // the last one that saw it
	waited         uint64 // nanoseconds on run queues
	ran, ranBefore uint64 // nanoseconds on a CPU, now and when the window began
}

// increase is how far a counter of a task came. A lower value belongs to a new task with the same id.
func increase(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// read adds the tasks of a process. Tasks of an older process count from now, others from their start.
func (k *tasks) read(proc procfs.FS, s *procfs.ProcStat, older bool) {
	if s.NumThreads <= 1 {
		k.readTask(s.PID, s.PID, older)
		return
	}
	threads, err := proc.AllThreads(s.PID)
	if err != nil { // ended
		return
	}
	for _, thread := range threads {
		k.readTask(s.PID, thread.PID, older)
	}
}

// readTask adds a task.
func (k *tasks) readTask(pid, id int, older bool) {
	content, err := k.readSchedstat(pid, id)
	if err != nil { // ended
		return
	}
	ran, waited, err := parseSchedstat(content)
	if err != nil {
		return
	}
	known := k.known[id]
	switch {
	case known == nil && older:
		known = &task{waited: waited, ranBefore: ran}
	case known == nil:
		known = &task{}
	case ran < known.ranBefore:
		known.ranBefore = ran
	}
	k.known[id] = known
	k.waited += increase(known.waited, waited)
	known.reading, known.waited, known.ran = k.reading, waited, ran
}

// readSchedstat returns the file of a task, valid until the next call. The kernel writes it in one piece.
func (k *tasks) readSchedstat(pid, id int) ([]byte, error) {
	path := fmt.Appendf(k.buf[:0], "%s/%d/task/%d/schedstat", procfs.DefaultMountPoint, pid, id)
	fd, err := unix.Open(string(path), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, k.buf[:])
	return k.buf[:max(n, 0)], err
}

// parseSchedstat reads how many nanoseconds a task ran and waited on a run queue.
func parseSchedstat(content []byte) (ran, waited uint64, err error) {
	fields := bytes.Fields(content)
	if len(fields) != 3 {
		return 0, 0, errors.New("schedstat: want three numbers")
	}
	ran, ranErr := strconv.ParseUint(string(fields[0]), 10, 64)
	waited, err = strconv.ParseUint(string(fields[1]), 10, 64)
	return ran, waited, errors.Join(ranErr, err)
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
