package spool

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The kinds of events of a recording.
const (
	eventCreate   = "create" // a file
	eventMkdir    = "mkdir"
	eventUnlink   = "unlink"
	eventRename   = "rename"
	eventLink     = "link"
	eventWrite    = "write"
	eventTruncate = "truncate"
	eventSync     = "sync"        // of a file
	eventSyncDir  = "sync dir"    // of a directory
	eventFail     = "failed sync" // of a file
	eventMark     = "mark"        // written by the workload: see mark
)

// event is a system call that changes the storage, or a mark between two of them. Paths are
// relative to the directory that was recorded.
type event struct {
	Kind     string
	Path, To string
	Node     int // the file, whatever its name
	Offset   int64
	Data     []byte
	Since    int // a sync covers the events before this one
	Mark     *mark
}

// String describes an event for a failure.
func (e *event) String() string {
	switch e.Kind {
	case eventWrite:
		return fmt.Sprintf("write %s at %d, %d bytes", e.Path, e.Offset, len(e.Data))
	case eventTruncate:
		return fmt.Sprintf("truncate %s to %d", e.Path, e.Offset)
	case eventRename, eventLink:
		return fmt.Sprintf("%s %s to %s", e.Kind, e.Path, e.To)
	}
	return e.Kind + " " + e.Path
}

// pendingEvent is an event that no sync has covered yet, with its place in the recording.
type pendingEvent struct {
	*event
	at   int
	lost bool // its sync has failed: none covers it
	firm bool // a sync has covered it, and not a lost one before it
}

// disk is what a power cut cannot take from the storage, and what it can.
type disk struct {
	names   map[string]int // files and directories whose names are synced
	content map[int][]byte // what is synced of the files
	writes  map[int][]pendingEvent
	entries []pendingEvent // changes of directories
	failed  map[int]bool   // files with a sync that failed
}

// directory is the node of every directory.
const directory = -1

func newDisk(base map[string][]byte) *disk {
	d := &disk{names: map[string]int{}, content: map[int][]byte{}, writes: map[int][]pendingEvent{}, failed: map[int]bool{}}
	for i, path := range sortedPaths(base) {
		if strings.HasSuffix(path, "/") {
			d.names[strings.TrimSuffix(path, "/")] = directory
			continue
		}
		d.names[path], d.content[i] = i, base[path]
	}
	return d
}

// sortedPaths returns the paths of a disk's image. Directories end with a slash.
func sortedPaths(image map[string][]byte) []string {
	paths := make([]string, 0, len(image))
	for path := range image {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// apply notes the event at an index of a recording.
func (d *disk) apply(e *event, at int) {
	switch e.Kind {
	case eventCreate, eventMkdir, eventUnlink, eventRename, eventLink:
		d.entries = append(d.entries, pendingEvent{event: e, at: at})
	case eventWrite, eventTruncate:
		d.writes[e.Node] = append(d.writes[e.Node], pendingEvent{event: e, at: at})
	case eventFail:
		d.failed[e.Node] = true
		for i := range d.writes[e.Node] {
			d.writes[e.Node][i].lost = true
		}
	case eventSync:
		if d.failed[e.Node] {
			for i := range d.writes[e.Node] {
				w := &d.writes[e.Node][i]
				w.firm = w.firm || !w.lost && w.at < e.Since
			}
			return
		}
		if len(d.writes[e.Node]) == 0 {
			return
		}
		data := slices.Clone(d.content[e.Node]) // images have the old content
		var left []pendingEvent
		for _, w := range d.writes[e.Node] {
			if w.at < e.Since {
				data = patched(data, w.event)
			} else {
				left = append(left, w)
			}
		}
		d.content[e.Node], d.writes[e.Node] = data, left
	case eventSyncDir:
		var left []pendingEvent
		for _, c := range d.entries {
			if c.at < e.Since && filepath.Dir(c.target()) == e.Path {
				enter(d.names, c.event)
			} else {
				left = append(left, c)
			}
		}
		d.entries = left
	}
}

// target is the name that an event is about.
func (e *event) target() string {
	if e.To != "" {
		return e.To
	}
	return e.Path
}

// enter makes a change of a directory.
func enter(names map[string]int, e *event) {
	switch e.Kind {
	case eventCreate:
		names[e.Path] = e.Node
	case eventMkdir:
		names[e.Path] = directory
	case eventUnlink:
		delete(names, e.Path)
	case eventRename:
		delete(names, e.Path)
		names[e.To] = e.Node
	case eventLink:
		names[e.To] = e.Node
	}
}

// patched makes a write or truncation in place, or in a larger copy.
func patched(data []byte, e *event) []byte {
	if e.Kind == eventTruncate {
		return resized(data, int(e.Offset))
	}
	data = resized(data, max(len(data), int(e.Offset)+len(e.Data)))
	copy(data[e.Offset:], e.Data)
	return data
}

// resized cuts data, or appends zeros to it.
func resized(data []byte, size int) []byte {
	if size <= len(data) {
		return data[:size]
	}
	return append(data, make([]byte, size-len(data))...)
}

// sectorBytes is the smallest part of a write that storage keeps or drops.
const sectorBytes = 512

// cut returns what the storage may hold after a power cut: all that was synced, and of each
// other change all, nothing or a part. It also describes the choice.
func (d *disk) cut(r *rand.Rand) (image map[string][]byte, story []string) {
	kept, torn := r.Float64(), r.Float64()/2
	switch r.IntN(6) { // the extremes are likely states of a real disk
	case 0:
		kept, torn = 0, 0
	case 1:
		kept, torn = 1, 0
	case 2:
		torn = 0
	}
	tell := func(fate string, c pendingEvent) {
		story = append(story, fmt.Sprintf("%s: event %d, %s", fate, c.at, c.event))
	}
	names := make(map[string]int, len(d.names))
	for name, node := range d.names {
		names[name] = node
	}
	for _, c := range d.entries {
		if r.Float64() >= kept {
			tell("dropped", c)
			continue
		}
		tell("kept", c)
		enter(names, c.event)
	}
	image = map[string][]byte{}
	for _, name := range sortedNames(names) {
		switch {
		case !reachable(names, name):
		case names[name] == directory:
			image[name+"/"] = nil
		default:
			image[name] = d.remains(r, names[name], kept, torn, tell)
		}
	}
	return image, story
}

func sortedNames(names map[string]int) []string {
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	return sorted
}

// reachable reports whether all directories above a name exist.
func reachable(names map[string]int, name string) bool {
	for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
		if node, ok := names[dir]; !ok || node != directory {
			return false
		}
	}
	return true
}

// remains returns what a file holds after a power cut.
func (d *disk) remains(r *rand.Rand, node int, kept, torn float64, tell func(string, pendingEvent)) []byte {
	if len(d.writes[node]) == 0 {
		return d.content[node]
	}
	data, largest := slices.Clone(d.content[node]), len(d.content[node])
	for _, w := range d.writes[node] {
		if w.Kind == eventWrite {
			largest = max(largest, int(w.Offset)+len(w.Data))
		}
		switch {
		case w.firm:
			data = patched(data, w.event)
		case w.Kind == eventWrite && r.Float64() < torn:
			tell("torn", w)
			data = tear(r, data, w.event)
		case r.Float64() < kept:
			tell("kept", w)
			data = patched(data, w.event)
		default:
			tell("dropped", w)
		}
	}
	if len(data) < largest && r.IntN(3) == 0 { // the size was stored, but not the data
		data = resized(data, len(data)+r.IntN(largest-len(data)+1))
	}
	return data
}

// tear makes a part of a write: the sectors before one, or any of them. In a few cases the
// sector at the end holds only some bytes, or garbage.
func tear(r *rand.Rand, data []byte, e *event) []byte {
	first, last := int(e.Offset)/sectorBytes, (int(e.Offset)+len(e.Data)-1)/sectorBytes
	limit, prefix, garbage := first+r.IntN(last-first+1), r.IntN(2) == 0, r.IntN(4)
	for sector := first; sector <= last; sector++ {
		low := max(sector*sectorBytes, int(e.Offset))
		high := min((sector+1)*sectorBytes, int(e.Offset)+len(e.Data))
		part := slices.Clone(e.Data[low-int(e.Offset) : high-int(e.Offset)])
		switch {
		case prefix && sector > limit, !prefix && r.IntN(2) == 0:
			continue
		case sector != limit:
		case garbage == 0:
			part = part[:r.IntN(len(part)+1)]
		case garbage == 1:
			for i := range part {
				part[i] = byte(r.Uint32())
			}
		}
		if len(part) > 0 {
			data = patched(data, &event{Kind: eventWrite, Offset: int64(low), Data: part})
		}
	}
	return data
}

// writeImage writes a disk's image into a directory.
func writeImage(dir string, image map[string][]byte) error {
	for _, path := range sortedPaths(image) {
		var err error
		if strings.HasSuffix(path, "/") {
			err = os.MkdirAll(filepath.Join(dir, path), 0o750)
		} else {
			err = os.WriteFile(filepath.Join(dir, path), image[path], 0o600)
		}
		if err != nil {
			return fmt.Errorf("write the image of a disk: %w", err)
		}
	}
	return nil
}
