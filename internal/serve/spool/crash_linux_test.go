package spool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
	"zombiezen.com/go/sqlite/sqlitex"

	"spillway/internal/apptest"
	"spillway/internal/serve/queue"
)

// childWork is the environment variable that makes TestChild do work of another test
// in a process of its own: the work and the file.
const childWork = "SPILLWAY_SPOOL_CHILD"

// TestChild runs in the child processes of other tests.
func TestChild(t *testing.T) {
	work, file, _ := strings.Cut(os.Getenv(childWork), " ")
	switch work {
	case "append":
		appendForever(t, file)
	case "ack", "unsynced":
		appendOneByOne(t, file, work == "unsynced")
	case "open":
		holdOpen(t, file)
	case "full":
		fillDisk(t, file)
	}
}

// childCommand returns the command of a child process. A test must not call t.Parallel before it
// has started the last one: until a child runs its program, it also holds the locks of the
// files that other tests have just closed.
func childCommand(t *testing.T, wrap []string, work, file string) *exec.Cmd {
	t.Helper()
	args := slices.Concat(wrap, []string{os.Args[0], "-test.run=^TestChild$", "-test.count=1"})
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), childWork+"="+work+" "+file)
	return cmd
}

// appendForever appends from several writers, drains one of two names, and prints what was
// acknowledged and drained, until it is killed.
func appendForever(t *testing.T, file string) {
	s := openAt(t, file, testConfig())
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	go func() {
		_ = s.Drain(context.Background(), "/a", 200, destination(func(_ context.Context, groups []queue.Group) (queue.Stored, error) {
			for _, e := range groups[0].Entries {
				say("drained %s", e.Payload)
			}
			return queue.Stored{Groups: 1}, nil
		}))
	}()
	start := s.Stats().Entries
	for w := range 6 {
		go func() {
			for i := 0; ; i++ {
				text := fmt.Sprintf("%d-%d-%d-%d", os.Getpid(), w, start, i)
				for _, name := range []string{"/a", "/b"} {
					if _, err := s.Append(context.Background(), name, queue.Entry{Payload: []byte(text), Rows: 1}); err != nil {
						say("error %v", err)
					}
					say("acked %s %s", name, text)
				}
			}
		}()
	}
	select {}
}

// A process that is killed repeatedly on one file loses no acknowledged entries and does not
// drain deleted ones again.
func TestKill(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.db")
	acked, drained := map[string]bool{}, map[string]int{}
	for round := range 6 {
		child := childCommand(t, nil, "append", file)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			word, rest, _ := strings.Cut(lines.Text(), " ")
			switch word {
			case "acked":
				acked[rest] = true
			case "drained":
				drained["/a "+rest]++
			case "error":
				t.Error(lines.Text())
			}
			if n == 50+137*round {
				if err := child.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = child.Wait() // killed
	}
	s := openAt(t, file, testConfig())
	defer closeSpool(t, s)
	left := map[string]int{}
	for _, name := range s.Stats().Names {
		for _, text := range drainSome(t, s, name.Name, int(name.Rows)) {
			left[name.Name+" "+text]++
		}
	}
	for text := range acked {
		if left[text]+drained[text] == 0 {
			t.Errorf("%s was acknowledged and is gone", text)
		}
		if left[text] > 1 {
			t.Errorf("%s is there %d times", text, left[text])
		}
	}
	twice := 0
	for _, n := range drained {
		if n > 1 {
			twice++ // taken, and the process was killed before the deletion was on disk
		}
	}
	t.Logf("%d acknowledged, %d drained before, %d of them twice, %d left", len(acked), len(drained), twice, len(left))
	if len(acked) < 1000 || len(drained) == 0 {
		t.Error("too little has happened")
	}
}

// TestModel compares a spool with a list during random operations, restarts, and crashes with
// complete and torn logs.
func TestModel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runs, most := 0, 40
	if testing.Short() {
		most = 10
	}
	rapid.Check(t, func(rt *rapid.T) {
		if runs++; runs > most { // opening files takes its time under the race detector
			return
		}
		m := &model{t: t, dir: dir, id: runs}
		m.start(m.file())
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"append", "append", "drain", "reopen", "crash", "torn"}).Draw(rt, "step") {
			case "append":
				m.append(rapid.IntRange(1, 4).Draw(rt, "entries"))
			case "drain":
				m.drain(rapid.IntRange(0, 3).Draw(rt, "drained"))
			case "reopen":
				closeSpool(t, m.s)
				m.start(m.file())
			case "crash":
				m.crash(rt, false)
			case "torn":
				m.crash(rt, true)
			}
		}
		m.drain(len(m.want))
		closeSpool(t, m.s)
	})
}

// model is a spool and what it must contain, oldest first.
type model struct {
	t       *testing.T
	dir     string
	id      int
	crashes int
	next    int
	want    []string
	s       *Spool
}

func (m *model) file() string {
	return filepath.Join(m.dir, fmt.Sprintf("%d-%d.db", m.id, m.crashes))
}

func (m *model) start(file string) { m.s = openAt(m.t, file, testConfig()) }

func (m *model) append(n int) {
	for range n {
		text := fmt.Sprintf("%d %s", m.next, strings.Repeat("x", m.next%7*300))
		m.next++
		put(m.t, m.s, "/a", text)
		m.want = append(m.want, text)
	}
}

// drain drains n entries. Each is a group of its own, because it was appended alone.
func (m *model) drain(n int) {
	n = min(n, len(m.want))
	if n == 0 {
		return
	}
	if got := drainSome(m.t, m.s, "/a", n); !slices.Equal(got, m.want[:n]) {
		m.t.Fatalf("drained %.200q, want %.200q", got, m.want[:n])
	}
	m.want = m.want[n:]
}

// crash continues with an image of the files as a crash leaves them. With torn, one more
// entry was being written: the image's log ends anywhere in it, or is wrong there.
func (m *model) crash(rt *rapid.T, torn bool) {
	before := m.image()
	synced := len(before["-wal"])
	image, extra := before, ""
	if torn {
		extra = "torn " + strconv.Itoa(m.next)
		put(m.t, m.s, "/a", extra)
		after := m.image()
		if log := after["-wal"]; len(log) > synced && bytes.HasPrefix(log, before["-wal"]) {
			image[""] = after[""]
			image["-wal"] = slices.Clone(log[:rapid.IntRange(synced, len(log)).Draw(rt, "length")])
			if tail := image["-wal"][synced:]; len(tail) > 0 && rapid.Bool().Draw(rt, "flip") {
				tail[rapid.IntRange(0, len(tail)-1).Draw(rt, "at")] ^= 0xff
			}
		}
	}
	closeSpool(m.t, m.s)
	m.crashes++
	for ending, data := range image {
		if err := os.WriteFile(m.file()+ending, data, 0o600); err != nil {
			m.t.Fatal(err)
		}
	}
	m.start(m.file())
	waiting := 0
	for _, name := range m.s.Stats().Names {
		waiting += int(name.Rows)
	}
	switch {
	case waiting == len(m.want):
	case torn && waiting == len(m.want)+1: // nobody knew: it is there
		m.want = append(m.want, extra)
	default:
		m.t.Fatalf("%d entries after a crash, want %d", waiting, len(m.want))
	}
}

// image reads the files while nothing is being written.
func (m *model) image() map[string][]byte {
	image := map[string][]byte{}
	for _, ending := range []string{"", "-wal"} {
		data, err := os.ReadFile(m.file() + ending)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			m.t.Fatal(err)
		}
		image[ending] = data
	}
	return image
}

// appendOneByOne prints each acknowledgement. With unsynced, the spool does not fsync.
func appendOneByOne(t *testing.T, file string, unsynced bool) {
	s := openAt(t, file, testConfig())
	defer closeSpool(t, s)
	if unsynced {
		if err := sqlitex.ExecuteTransient(s.file.writer, "PRAGMA synchronous = OFF", nil); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 30 {
		put(t, s, "/a", fmt.Sprint(i))
		if _, err := fmt.Printf("ack %d\n", i); err != nil {
			t.Fatal(err)
		}
	}
}

// An fsync of the log comes between the write of a group and its acknowledgement. strace
// shows it, and also that the test would find its absence.
func TestSyncsBeforeAck(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Fatal("this test needs strace: apt-get install strace")
	}
	for _, work := range []string{"ack", "unsynced"} {
		dir := t.TempDir()
		trace := filepath.Join(dir, "trace")
		cmd := childCommand(t, []string{"strace", "-f", "-y", "-e", "trace=pwrite64,write,fsync,fdatasync", "-o", trace}, work, filepath.Join(dir, "s.db"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("strace (it needs the right to trace its children): %v\n%s", err, out)
		}
		text, err := os.ReadFile(trace)
		if err != nil {
			t.Fatal(err)
		}
		acks, unsynced := readTrace(string(text))
		if want := map[string]int{"ack": 0, "unsynced": 30}[work]; acks != 30 || unsynced != want {
			t.Errorf("%s: %d of %d acknowledgements came before the fsync, want %d", work, unsynced, acks, want)
		}
	}
}

var traced = regexp.MustCompile(`^(\d+) +(?:<\.\.\. )?(\w+)(.*)$`)

// readTrace returns how many acknowledgements were written, and how many of them while the
// log was not synced, or without an fsync since the last.
func readTrace(trace string) (acks, unsynced int) {
	dirty, synced := map[string]bool{}, false // by log
	syncing := map[string]string{}            // a thread's log
	path := regexp.MustCompile(`<([^>]*-wal)>`)
	for line := range strings.Lines(trace) {
		m := traced.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		thread, call, rest := m[1], m[2], m[3]
		log := ""
		if p := path.FindStringSubmatch(rest); p != nil {
			log = p[1]
		}
		switch {
		case call == "pwrite64" && log != "":
			dirty[log] = true
		case (call == "fsync" || call == "fdatasync") && strings.Contains(rest, "unfinished"):
			syncing[thread] = log
		case call == "fsync" || call == "fdatasync":
			if strings.Contains(rest, "resumed") {
				log = syncing[thread]
			}
			if log != "" && strings.HasSuffix(rest, "= 0") {
				dirty[log], synced = false, true
			}
		case call == "write" && strings.Contains(rest, `"ack `):
			acks++
			anything := false
			for _, d := range dirty {
				anything = anything || d
			}
			if anything || !synced {
				unsynced++
			}
			synced = false
		}
	}
	return acks, unsynced
}

// With a full disk, entries are refused with the limit's name, acknowledged ones stay, and
// the spool continues when there is space again.
func TestDiskFull(t *testing.T) {
	apptest.NeedRoot(t) // mounts a file system
	dir := t.TempDir()
	cmd := childCommand(t, nil, "full", filepath.Join(dir, "disk", "s.db"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("a process with a mount namespace of its own: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}

func fillDisk(t *testing.T, file string) {
	dir := filepath.Dir(file)
	if err := errors.Join(os.MkdirAll(dir, 0o750), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m")); err != nil {
		t.Fatalf("mount a small tmpfs: %v", err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, file, testConfig())
	s.file.reserve = 0 // as when others take what the spool leaves free
	var kept []string
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		text := fmt.Sprintf("%d %s", i, strings.Repeat("x", 20000))
		if _, err = s.Append(t.Context(), "/a", queue.Entry{Payload: []byte(text), Rows: 1}); err == nil {
			kept = append(kept, text)
		}
	}
	var over *queue.Overload
	if !errors.As(err, &over) || over.Limit != "disk" || !errors.Is(err, queue.ErrOverloaded) || len(kept) < 10 {
		t.Fatalf("%d kept, then %v", len(kept), err)
	}
	if ready := s.Ready(""); ready == nil {
		t.Error("ready with a full disk")
	}
	if _, err := s.Append(t.Context(), "/a", queue.Entry{Payload: make([]byte, 20000)}); !errors.Is(err, queue.ErrOverloaded) {
		t.Errorf("once more: %v", err)
	}
	// A start after that finds everything, as after a crash.
	if err := s.Close(); err != nil {
		t.Logf("close with a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, file, testConfig())
	s.file.reserve = 0
	put(t, s, "/a", "again")
	if got := drainSome(t, s, "/a", len(kept)+1); !slices.Equal(got, append(kept, "again")) {
		t.Errorf("drained %d, kept %d", len(got), len(kept))
	}
	closeSpool(t, s)
	fmt.Printf("%d kept, then: %v\n", len(kept), err)
}
