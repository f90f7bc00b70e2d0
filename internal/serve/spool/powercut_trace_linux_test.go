package spool

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// recording is what processes did to the storage, one after the other.
type recording struct {
	Base    map[string][]byte // what the storage held at first; directories end with a slash
	History []mark            // of the time before
	Events  []event
	Opens   []int // the first events of processes that found what another has left
}

// tracedCalls are the system calls that change storage. strace ignores those with a question
// mark that the machine does not have.
const tracedCalls = "?open,openat,?creat,?mkdir,mkdirat,?unlink,unlinkat,?rename,?renameat,renameat2,?link,linkat," +
	"write,writev,pwrite64,pwritev,?ftruncate,?truncate,fallocate,fsync,fdatasync,?sync_file_range"

// record runs processes of TestPowerCutWorkload on a directory, one after the other, and
// returns what they did to it. Of a process that is to fail, the last sync is one that failed.
// The directory is named as the kernel names it. As with childCommand, the test does not call
// t.Parallel before.
func record(t *testing.T, dir string, base map[string][]byte, history []mark, works []string) *recording {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil {
		t.Fatal("this test needs strace: apt-get install strace")
	}
	root, marks := filepath.Join(dir, "disk"), filepath.Join(dir, "marks")
	if err := os.Mkdir(root, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := writeImage(root, base); err != nil {
		t.Fatal(err)
	}
	var lines []byte
	for i := range history {
		lines = append(lines, history[i].line()...)
	}
	if err := os.WriteFile(marks, lines, 0o600); err != nil {
		t.Fatal(err)
	}
	p := newParser(root, marks, base)
	var opens, failed []int
	for i, work := range works {
		trace := filepath.Join(dir, fmt.Sprint("trace", i))
		cmd := exec.CommandContext(t.Context(), "strace", "-f", "-y", "-xx", "-s", "1048576", "--seccomp-bpf", "-e", "trace="+tracedCalls, "-e", "signal=none",
			"-o", trace, os.Args[0], "-test.run=^TestPowerCutWorkload$", "-test.count=1")
		cmd.Env = append(os.Environ(), workloadVariable+"="+work+" "+dir)
		out, err := cmd.CombinedOutput()
		fail := strings.HasPrefix(work, "fail")
		if killed := fail || strings.HasPrefix(work, "kill"); (err != nil) != killed {
			t.Fatalf("strace (it needs the right to trace its children) of %s: %v\n%s", work, err, out)
		}
		if i > 0 || base != nil {
			opens = append(opens, len(p.events))
		}
		if err := p.file(trace); err != nil {
			t.Fatalf("read the trace of %s: %v", work, err)
		}
		if fail {
			failed = append(failed, lastSync(t, p.events))
		}
	}
	if err := p.verify(base); err != nil {
		t.Fatal(err)
	}
	for _, at := range failed {
		p.events[at].Kind = eventFail
	}
	return &recording{Base: base, History: history, Events: p.events, Opens: opens}
}

// lastSync returns the event that made the log durable last.
func lastSync(t *testing.T, events []event) int {
	for i := len(events) - 1; i >= 0; i-- {
		switch e := &events[i]; {
		case e.Kind == eventMark:
		case e.Kind == eventSync && strings.HasSuffix(e.Path, "-wal"):
			return i
		default:
			t.Fatalf("the process was not killed behind a sync of the log, but after: %s", e)
		}
	}
	t.Fatal("the log was not synced")
	return 0
}

// parser reads traces of strace.
type parser struct {
	root, marks string
	names       map[string]int // files and directories as the processes see them
	nodes       int
	events      []event
	unfinished  map[string]call // by thread
}

// call is a system call that has begun.
type call struct {
	text  string
	since int // events before it
}

func newParser(root, marks string, base map[string][]byte) *parser {
	p := &parser{root: root, marks: marks, unfinished: map[string]call{}}
	p.names = newDisk(base).names
	p.nodes = len(base)
	return p
}

// file appends the events of a trace.
func (p *parser) file(name string) error {
	trace, err := os.Open(name)
	if err != nil {
		return err
	}
	defer trace.Close()
	lines := bufio.NewScanner(trace)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if err := p.line(lines.Text()); err != nil {
			return fmt.Errorf("%.300s: %w", lines.Text(), err)
		}
	}
	clear(p.unfinished) // reads, and marks of threads that were killed
	return lines.Err()
}

// commonPrefix returns how many bytes two slices have in common at their beginning.
func commonPrefix(a, b []byte) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// verify compares the files with what the events make of them.
func (p *parser) verify(base map[string][]byte) error {
	d := newDisk(base)
	for i := range p.events {
		d.apply(&p.events[i], i)
	}
	for i := range d.entries {
		enter(d.names, d.entries[i].event)
	}
	for name, node := range d.names {
		if node == directory {
			continue
		}
		want := slices.Clone(d.content[node])
		for _, w := range d.writes[node] {
			want = patched(want, w.event)
		}
		data, err := os.ReadFile(filepath.Join(p.root, name))
		if err != nil || !bytes.Equal(data, want) {
			at := commonPrefix(want, data)
			return fmt.Errorf("the events make %s a file of %d bytes; it has %d bytes and differs at %d: %w", name, len(want), len(data), at, err)
		}
	}
	return nil
}

// line reads a line: "THREAD NAME(ARGUMENTS) = RESULT", or its beginning or end, if a call
// of another thread came between.
func (p *parser) line(line string) error {
	thread, text, _ := strings.Cut(line, " ")
	text = strings.TrimSpace(text)
	begun := call{text, len(p.events)}
	switch {
	case strings.HasPrefix(text, "+++"), strings.HasPrefix(text, "---"), strings.HasSuffix(text, "<detached ...>"):
		return nil
	case strings.HasPrefix(text, "<... "):
		_, rest, _ := strings.Cut(text, "resumed>")
		begun = p.unfinished[thread]
		begun.text += rest
		delete(p.unfinished, thread)
	default:
		if err := p.mark(text); err != nil {
			return err
		}
	}
	if before, ok := strings.CutSuffix(begun.text, "<unfinished ...>"); ok {
		begun.text = before
		p.unfinished[thread] = begun
		return nil
	}
	return p.call(begun)
}

// mark adds a mark when its write begins.
func (p *parser) mark(text string) error {
	rest, ok := strings.CutPrefix(text, "write(")
	if !ok {
		return nil
	}
	arguments := strings.Split(rest, ", ")
	if path, err := descriptorPath(arguments[0]); err != nil || path != p.marks {
		return err
	}
	data, err := unescape(arguments[1])
	if err != nil {
		return err
	}
	m := &mark{}
	if err := json.Unmarshal(data, m); err != nil {
		return fmt.Errorf("a mark: %w", err)
	}
	p.events = append(p.events, event{Kind: eventMark, Mark: m})
	return nil
}

// call adds the event of a call that has ended.
func (p *parser) call(c call) error {
	name, rest, _ := strings.Cut(c.text, "(")
	end := strings.LastIndex(rest, " = ")
	if end < 0 {
		return fmt.Errorf("no result")
	}
	arguments := strings.Split(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest[:end]), ")")), ", ")
	result := strings.TrimSpace(rest[end+3:])
	if strings.HasPrefix(result, "-1 ") || strings.HasPrefix(result, "?") { // the process may have ended in the call
		return nil
	}
	switch name {
	case "write", "pwrite64", "ftruncate", "fsync", "fdatasync":
		return p.descriptorCall(name, arguments, result, c.since)
	case "writev", "pwritev", "fallocate", "sync_file_range", "truncate", "creat":
		return p.refuse(name, arguments)
	}
	var paths []string // of the calls that have names as arguments
	for _, a := range arguments {
		if !strings.HasPrefix(a, `"`) {
			continue
		}
		path, err := unescape(a)
		if err != nil {
			return err
		}
		if at, ok := p.relative(string(path)); ok {
			paths = append(paths, at)
		}
	}
	if len(paths) > 0 {
		return p.nameCall(strings.TrimSuffix(strings.TrimSuffix(name, "2"), "at"), c.text, paths)
	}
	return nil
}

// refuse returns an error if a call that the model does not know is about the storage.
func (p *parser) refuse(name string, arguments []string) error {
	for _, a := range arguments {
		path, err := descriptorPath(a)
		if strings.HasPrefix(a, `"`) {
			var text []byte
			text, err = unescape(a)
			path = string(text)
		}
		if err != nil {
			return err
		}
		if _, ok := p.relative(path); ok {
			return fmt.Errorf("%s is not part of the model of storage", name)
		}
	}
	return nil
}

// relative returns a path below the root. SQLite's shared memory is left out, because the first
// process that opens the file writes it again, and the lock, because its content is not read.
func (p *parser) relative(path string) (string, bool) {
	at, ok := strings.CutPrefix(path, p.root+"/")
	return at, ok && !strings.HasSuffix(at, "-shm") && !strings.HasSuffix(at, "-lock")
}

func (p *parser) descriptorCall(name string, arguments []string, result string, since int) error {
	path, err := descriptorPath(arguments[0])
	if err != nil {
		return err
	}
	at, ok := p.relative(path)
	if !ok {
		if path == p.root && name == "fsync" {
			p.events = append(p.events, event{Kind: eventSyncDir, Path: ".", Since: since})
		}
		return nil
	}
	node, ok := p.names[at]
	if !ok {
		return fmt.Errorf("%s is about %s, which has no name", name, at)
	}
	e := event{Path: at, Node: node, Since: since}
	switch {
	case name == "ftruncate":
		e.Kind = eventTruncate
		e.Offset, err = strconv.ParseInt(arguments[1], 10, 64)
	case name == "pwrite64" || name == "write":
		e.Kind = eventWrite
		e.Data, err = unescape(arguments[1])
		if err == nil && result != strconv.Itoa(len(e.Data)) {
			err = fmt.Errorf("%s bytes of %d were written", result, len(e.Data))
		}
		if err == nil && name == "pwrite64" {
			e.Offset, err = strconv.ParseInt(arguments[3], 10, 64)
		}
	case node == directory:
		e.Kind = eventSyncDir
	default:
		e.Kind = eventSync
	}
	p.events = append(p.events, e)
	return err
}

// nameCall adds the event of a call that changes a directory.
func (p *parser) nameCall(name, text string, paths []string) error {
	e := event{Path: paths[0]}
	node, known := p.names[e.Path]
	switch name {
	case "open":
		switch {
		case strings.Contains(text, "O_TRUNC") && known:
			e.Kind, e.Node = eventTruncate, node
		case strings.Contains(text, "O_CREAT") && !known:
			p.nodes++
			e.Kind, e.Node = eventCreate, p.nodes
		default:
			return nil
		}
	case "mkdir":
		e.Kind, e.Node = eventMkdir, directory
	case "unlink":
		e.Kind, e.Node = eventUnlink, node
	case "rename", "link":
		if len(paths) != 2 {
			return fmt.Errorf("%s between the storage and another directory", name)
		}
		e.Kind, e.To, e.Node = name, paths[1], node
	default:
		return fmt.Errorf("%s is not part of the model of storage", name)
	}
	enter(p.names, &e)
	p.events = append(p.events, e)
	return nil
}

// descriptorPath returns the path in "7<PATH>"; "" if there is none.
func descriptorPath(argument string) (string, error) {
	_, rest, ok := strings.Cut(argument, "<")
	escaped, _, closed := strings.Cut(rest, ">")
	if !ok || !closed || !strings.HasPrefix(escaped, `\x`) {
		return "", nil
	}
	path, err := unescape(`"` + escaped + `"`)
	return string(path), err
}

// unescape decodes a string of strace -xx.
func unescape(quoted string) ([]byte, error) {
	inner, ok := strings.CutPrefix(quoted, `"`)
	inner, end := strings.CutSuffix(inner, `"`)
	if !ok || !end {
		return nil, fmt.Errorf("%.40s is not a whole string", quoted)
	}
	data, err := hex.AppendDecode(nil, bytes.ReplaceAll([]byte(inner), []byte(`\x`), nil))
	if err != nil {
		return nil, fmt.Errorf("decode %.40s: %w", quoted, err)
	}
	return data, nil
}
