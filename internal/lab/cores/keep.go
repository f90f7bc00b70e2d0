package cores

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
)

// An order tells the keeper what to restore.
type order struct {
	Target Set     `json:"target,omitempty"` // the cores of the target, in the first order
	Save   []saved `json:"save,omitempty"`
}

// saved is a thread of the target and the cores that it could use before.
type saved struct {
	PID     int    `json:"pid"`
	TID     int    `json:"tid"`
	Start   uint64 `json:"start"` // in ticks since boot
	Session int    `json:"session"`
	Cores   Set    `json:"cores"`
}

// save describes a thread; not ok if it has ended.
func save(pid, tid int) (s saved, ok bool) {
	stat, err := statOf(tid)
	if err != nil {
		return saved{}, false
	}
	set, err := AffinityOf(tid)
	return saved{PID: pid, TID: tid, Start: stat.Starttime, Session: stat.Session, Cores: set}, err == nil
}

// Keep reads orders until the process that sends them ends, for whatever reason, and then restores the threads. It ignores the
// signals that end that process. Start starts it.
func Keep(orders io.Reader, acks io.Writer) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	self, err := statOf(os.Getpid())
	if err != nil {
		return err
	}
	k := keeper{threads: map[int]saved{}, begin: self.Starttime}
	for decoder := json.NewDecoder(orders); ; {
		var o order
		if err := decoder.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = nil
			}
			return errors.Join(err, k.restore())
		}
		if o.Target != nil {
			k.target = o.Target
		}
		for _, s := range o.Save {
			k.threads[s.TID] = s
		}
		fmt.Fprintln(acks, "ok") // a sender that is gone ends the input too
	}
}

// keeper knows the threads of a target and what they could use before.
type keeper struct {
	begin   uint64 // when the keeper started, before anything was moved
	target  Set
	threads map[int]saved
}

// restore lets all threads of the target use their former cores. It looks again until it finds no more, because a thread that
// has not been restored yet may start another.
func (k *keeper) restore() error {
	var errs []error
	refused := map[int]bool{}
	for range passes {
		found := false
		for tid, former := range k.pinned() {
			if refused[tid] {
				continue
			}
			found = true
			if err := setAffinity(tid, former); err != nil {
				refused[tid] = true
				errs = append(errs, fmt.Errorf("let thread %d use cores %s again: %w", tid, former, err))
			}
		}
		if !found {
			break
		}
	}
	return errors.Join(errs...)
}

// pinned returns the target's threads that are on the target's cores, and the cores that they could use before.
func (k *keeper) pinned() map[int]Set {
	processes, sessions := map[int]Set{}, map[int]Set{}
	for _, s := range k.threads {
		if s.PID == s.TID || processes[s.PID] == nil {
			processes[s.PID], sessions[s.Session] = s.Cores, s.Cores
		}
	}
	found := map[int]Set{}
	paths, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	for _, path := range paths {
		tid, _ := strconv.Atoi(filepath.Base(path))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		set, err := AffinityOf(tid)
		if err != nil || set.String() != k.target.String() {
			continue
		}
		if former := k.former(pid, tid, processes, sessions); former != nil && former.String() != k.target.String() {
			found[tid] = former
		}
	}
	return found
}

// former returns the cores that a thread could use before, nil if it is not the target's. It is the target's if it was moved, if
// its process or an ancestor was, or if it was started later in a session of the target, as a process that has left its parent.
func (k *keeper) former(pid, tid int, processes, sessions map[int]Set) Set {
	stat, err := statOf(tid)
	if err != nil {
		return nil
	}
	if s, known := k.threads[tid]; known && s.Start == stat.Starttime {
		return s.Cores
	}
	const deepest = 1000 // ends the search if parents change while they are read
	for range deepest {
		if set := processes[pid]; set != nil {
			return set
		}
		stat, err := statOf(pid)
		if err != nil || stat.PPID <= 1 {
			break
		}
		pid = stat.PPID
	}
	if stat.Starttime < k.begin {
		return nil
	}
	return sessions[stat.Session]
}
