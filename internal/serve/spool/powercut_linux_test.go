package spool

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/gob"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"spillway/internal/apptest"
)

// The environment variables of TestPowerCut: the number of seeds; or one seed of a recording
// that an earlier run has kept.
const (
	seedsVariable     = "SPILLWAY_POWERCUT_SEEDS"
	seedVariable      = "SPILLWAY_POWERCUT_SEED"
	recordingVariable = "SPILLWAY_POWERCUT_RECORDING"
)

// TestPowerCut: what processes do to the spool's file is recorded with strace. Each seed
// picks a moment of a recording, and what the storage holds if the power fails then: all
// that was synced, and any part of the rest. The spool must work with that, and must have
// each acknowledged entry once.
func TestPowerCut(t *testing.T) {
	if file := os.Getenv(recordingVariable); file != "" {
		rec, err := loadRecording(file)
		if err != nil {
			t.Fatal(err)
		}
		seed, err := strconv.ParseUint(os.Getenv(seedVariable), 10, 64)
		if err != nil {
			t.Fatalf("%s must be the seed: %v", seedVariable, err)
		}
		for _, f := range cutPower(t, rec, []uint64{seed}) {
			t.Errorf("%s", f)
		}
		return
	}
	count := 300
	if testing.Short() {
		count = 40
	}
	if text := os.Getenv(seedsVariable); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	recordings := recordAll(t, count)
	t.Parallel()
	for i, rec := range recordings {
		var seeds []uint64
		for seed := i; seed < count; seed += len(recordings) {
			seeds = append(seeds, uint64(seed))
		}
		failures := cutPower(t, rec, seeds)
		if len(failures) == 0 {
			continue
		}
		file, err := saveRecording(rec)
		if err != nil {
			t.Error(err)
		}
		for _, f := range failures {
			t.Errorf("%s\nagain: %s=%s %s=%d go test -run '^TestPowerCut$' ./internal/serve/spool", f, recordingVariable, file, seedVariable, f.seed)
		}
	}
}

// TestPowerCutFinds: TestPowerCut finds losses on storage that does not sync, and if the spool
// or SQLite forgot one kind of sync.
func TestPowerCutFinds(t *testing.T) {
	rec := record(t, realDirectory(t), nil, nil, []string{"kill-90", "close-91", "kill-92"})
	t.Parallel()
	const enough = 5
	var seeds []uint64
	for seed := range uint64(50) {
		seeds = append(seeds, seed)
	}
	for forgotten, match := range map[string]func(e *event) bool{
		"any":           func(*event) bool { return true },
		"the log":       func(e *event) bool { return strings.HasSuffix(e.Path, "-wal") },
		"the file":      func(e *event) bool { return strings.HasSuffix(e.Path, ".db") },
		"the directory": func(e *event) bool { return e.Kind == eventSyncDir && e.Path == "data/spool" },
		"its parents":   func(e *event) bool { return e.Kind == eventSyncDir && e.Path != "data/spool" },
	} {
		careless := &recording{Base: rec.Base, Events: slices.Clone(rec.Events)}
		for i := range careless.Events {
			if e := &careless.Events[i]; (e.Kind == eventSync || e.Kind == eventSyncDir) && match(e) {
				careless.Events[i] = event{Kind: eventMark}
			}
		}
		tried, failed := 0, 0
		for tried < len(seeds) && failed < enough {
			failed += len(cutPower(t, careless, seeds[tried:tried+10]))
			tried += 10
		}
		t.Logf("without the syncs of %s, %d of %d seeds fail", forgotten, failed, tried)
		if failed < enough {
			t.Errorf("without the syncs of %s, only %d of %d seeds fail, want at least %d", forgotten, failed, tried, enough)
		}
	}
}

// realDirectory returns a temporary directory as the kernel names it.
func realDirectory(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// recordAll makes recordings, two for few seeds and four for many. Every second one begins with
// what a power cut has left.
func recordAll(t *testing.T, seeds int) []*recording {
	var recordings []*recording
	for i := range min(2, 1+seeds/100) {
		number := 10 * i
		works := []string{fmt.Sprint("fail-", number+1), fmt.Sprint("close-", number+2), fmt.Sprint("kill-", number+3), fmt.Sprint("repair-", number+4), fmt.Sprint("kill-", number+5)}
		first := record(t, realDirectory(t), nil, nil, works)
		r := rand.New(rand.NewPCG(uint64(i), 5))
		at := len(first.Events)/2 + r.IntN(len(first.Events)/2)
		d := newDisk(first.Base)
		var history []mark
		for j := range first.Events[:at] {
			e := &first.Events[j]
			d.apply(e, j)
			if e.Mark != nil {
				history = append(history, *e.Mark)
			}
		}
		image, _ := d.cut(r)
		works = []string{fmt.Sprint("fail-", number+6), fmt.Sprint("kill-", number+7)}
		recordings = append(recordings, first, record(t, realDirectory(t), image, history, works))
	}
	return recordings
}

// cutFailure is a seed with which the spool lost something, or did not work.
type cutFailure struct {
	seed  uint64
	at    int
	story []string
	err   error
}

// String describes the failure.
func (f cutFailure) String() string {
	return fmt.Sprintf("seed %d, power cut before event %d: %v\n\t%s", f.seed, f.at, f.err, strings.Join(f.story, "\n\t"))
}

// powerCut is a state of the storage that is to be checked.
type powerCut struct {
	cutFailure
	image map[string][]byte
}

// cutPower checks the storage as each seed leaves it, and returns the first failures.
func cutPower(t *testing.T, rec *recording, seeds []uint64) []cutFailure {
	t.Helper()
	x, err := expect(rec)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(x.summary(rec))
	source := func(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 6)) }
	place := func(seed uint64) int { return rec.place(source(seed)) }
	seeds = slices.Clone(seeds)
	slices.SortStableFunc(seeds, func(a, b uint64) int { return cmp.Compare(place(a), place(b)) })
	cuts := make(chan powerCut)
	var mu sync.Mutex
	var failures []cutFailure
	var checks sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		dir := apptest.Directory(t)
		checks.Go(func() {
			for c := range cuts {
				if c.err = checkImage(t, x, dir, c); c.err != nil {
					mu.Lock()
					failures = append(failures, c.cutFailure)
					mu.Unlock()
				}
			}
		})
	}
	d, done := newDisk(rec.Base), 0
	for _, seed := range seeds {
		r := source(seed)
		at := rec.place(r)
		for ; done < at; done++ {
			d.apply(&rec.Events[done], done)
		}
		image, story := d.cut(r)
		cuts <- powerCut{cutFailure{seed: seed, at: at, story: story}, image}
	}
	close(cuts)
	checks.Wait()
	slices.SortFunc(failures, func(a, b cutFailure) int { return cmp.Compare(a.seed, b.seed) })
	return failures
}

// place draws the event before which the power is cut. Every third is shortly behind a change
// of a directory, and every sixth behind the start of a process, because these are few.
func (rec *recording) place(r *rand.Rand) int {
	var changes []int
	for i := range rec.Events {
		switch rec.Events[i].Kind {
		case eventCreate, eventMkdir, eventUnlink, eventRename, eventLink:
			changes = append(changes, i)
		}
	}
	if len(changes) > 0 && r.IntN(3) == 0 {
		return rec.after(changes[r.IntN(len(changes))] + 1 + r.IntN(4))
	}
	if len(rec.Opens) > 0 && r.IntN(4) == 0 {
		return rec.after(rec.Opens[r.IntN(len(rec.Opens))] + 1 + r.IntN(30))
	}
	return rec.after(r.IntN(len(rec.Events) + 1))
}

// after returns an event, or a later one if what a failed sync has left is being copied into
// the file: the spool may not survive a power cut then.
func (rec *recording) after(at int) int {
	failed, copying := false, false
	for i := range rec.Events {
		e := &rec.Events[i]
		if i >= at && !copying {
			return i
		}
		switch log := strings.HasSuffix(e.Path, "-wal"); {
		case e.Kind == eventFail:
			failed = true
		case e.Kind == eventWrite && !log:
			copying = failed
		case e.Kind == eventSync && log && copying:
			failed, copying = false, false
		}
	}
	return len(rec.Events)
}

func checkImage(t *testing.T, x *expectation, dir string, c powerCut) error {
	root := filepath.Join(dir, fmt.Sprint(c.seed))
	err := os.Mkdir(root, 0o750)
	if err == nil {
		err = writeImage(root, c.image)
	}
	if err != nil {
		t.Error(err) // not the spool's
		return nil
	}
	return errors.Join(x.check(t.Context(), root, c.at), os.RemoveAll(root))
}

// saveRecording keeps a recording for replays, and returns the file.
func saveRecording(rec *recording) (string, error) {
	var data bytes.Buffer
	packed := gzip.NewWriter(&data)
	if err := errors.Join(gob.NewEncoder(packed).Encode(rec), packed.Close()); err != nil {
		return "", fmt.Errorf("encode a recording: %w", err)
	}
	file, err := os.CreateTemp("", "spillway-powercut-*.gob.gz")
	if err != nil {
		return "", fmt.Errorf("keep a recording: %w", err)
	}
	_, err = file.Write(data.Bytes())
	return file.Name(), errors.Join(err, file.Close())
}

func loadRecording(name string) (*recording, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open a recording: %w", err)
	}
	defer file.Close()
	packed, err := gzip.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("read a recording: %w", err)
	}
	rec := &recording{}
	if err := gob.NewDecoder(packed).Decode(rec); err != nil {
		return nil, fmt.Errorf("decode a recording: %w", err)
	}
	return rec, nil
}
