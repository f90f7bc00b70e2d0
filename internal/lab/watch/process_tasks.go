package watch

import (
	"strconv"
)

// tasks adds up what the kernel counts for each task (thread) and for no process: the time on run queues and the context
// switches. A task that ends takes its figures along: what was last seen of it stays in the totals, and what it did
// after that, and tasks that lived between two readings altogether, are missed.
type tasks struct {
	known                  map[int]*task // by task id, which is unique on the host
	turn                   int
	waited                 uint64 // nanoseconds
	voluntary, involuntary uint64
}

type task struct {
	turn                           int // that saw it last
	waited, slices                 uint64
	voluntary, involuntary, counts uint64
}

// since is how far a counter of a task came; a lower one is that of a new task with the same id.
func since(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

// read takes the tasks of a process in. Those of a foreign one count from now, others from their start.
func (k *tasks) read(t *tree, s *procStat, foreign bool) {
	dir := t.proc + "/" + strconv.Itoa(s.pid) + "/task/"
	if s.threads <= 1 {
		k.readTask(t, dir, s.pid, foreign)
		return
	}
	var ids []int
	_ = list(dir, t.entries, func(_ uint64, name []byte) { // the process may be gone
		if id, ok := pidNumber(name); ok {
			ids = append(ids, id)
		}
	})
	for _, id := range ids {
		k.readTask(t, dir, id, foreign)
	}
}

// readTask reads a task's context switches only when it ran: its status costs the most of all that is read.
func (k *tasks) readTask(t *tree, dir string, id int, foreign bool) {
	path := dir + strconv.Itoa(id)
	known := k.known[id]
	if known == nil {
		known = &task{}
		k.known[id] = known
	} else {
		foreign = false
	}
	known.turn = k.turn
	var now task
	now.turn = k.turn
	if content, err := readOnce(path+"/schedstat", &t.buf); err == nil {
		now.waited, now.slices, err = parseSchedstat(content)
		if err == nil && now.slices == known.slices && known.counts > 0 {
			return
		}
	}
	content, err := readOnce(path+"/status", &t.buf)
	if err != nil {
		return
	}
	status := parseStatus(content)
	now.voluntary, now.involuntary, now.counts = status.voluntary, status.involuntary, known.counts+1
	if !foreign {
		k.waited += since(known.waited, now.waited)
		k.voluntary += since(known.voluntary, now.voluntary)
		k.involuntary += since(known.involuntary, now.involuntary)
	}
	*known = now
}

// sweep forgets the tasks that the readings since the last sweep have not seen.
func (k *tasks) sweep() {
	for id, one := range k.known {
		if one.turn != k.turn {
			delete(k.known, id)
		}
	}
	k.turn++
}
