package spool

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"spillway/internal/serve/queue"
)

// request is a file beside the spool with which a process asks the one that has the spool
// open for work on dead letters. The answer replaces the request.
//
// It is not a table of the spool, because only one process writes that: a process that is
// stopped in the middle of a transaction would stop the other one. A request that is
// executed again after a crash finds the letters gone.
type request struct {
	Work string `json:"work"` // of a task
	selection
	Answered bool   `json:"answered"`
	Error    string `json:"error,omitempty"`
}

const (
	requestEnding = "-request-"
	requestNew    = ".new" // of a request that is being written
	requestEvery  = 250 * time.Millisecond
	requestMax    = 4096             // bytes of a request
	requestStale  = 10 * time.Minute // its process has gone
)

// requests returns the files of requests and answers.
func requests(path string) []string {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil // read again soon
	}
	var files []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+requestEnding) {
			files = append(files, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return files
}

// deleteRequests deletes the files of requests and answers.
func deleteRequests(path string) error {
	for _, file := range requests(path) {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("delete a request: %w", err)
		}
	}
	return nil
}

// writeRequest writes or replaces a request, in whole or not at all.
func writeRequest(file string, r request) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	fresh := file + requestNew
	if err := os.WriteFile(fresh, data, 0o644); err != nil {
		return fmt.Errorf("write a request: %w", err)
	}
	if err := os.Chmod(fresh, 0o644); err != nil { // whatever the umask, the server must read it
		return fmt.Errorf("write a request: %w", err)
	}
	if err := os.Rename(fresh, file); err != nil {
		return fmt.Errorf("write a request: %w", err)
	}
	return nil
}

func readRequest(file string) (r request, err error) {
	info, err := os.Stat(file)
	if err != nil {
		return r, fmt.Errorf("read a request: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > requestMax {
		return r, fmt.Errorf("read a request: %s is no request", file)
	}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read a request: %w", err)
	}
	return r, nil
}

// listen executes the requests of other processes until ctx ends.
func (s *Spool) listen(ctx context.Context) {
	for ctx.Err() == nil {
		for _, file := range requests(s.file.path) {
			s.execute(ctx, file)
		}
		queue.Sleep(ctx, requestEvery)
	}
}

// execute executes one request, and deletes one whose process has gone.
func (s *Spool) execute(ctx context.Context, file string) {
	info, err := os.Stat(file)
	if err != nil {
		return // its process has deleted it
	}
	if time.Since(info.ModTime()) > requestStale {
		_ = os.Remove(file) // tried again soon
		return
	}
	if strings.HasSuffix(file, requestNew) {
		return
	}
	r, err := readRequest(file)
	if err != nil || r.Answered || r.Work != workRetry && r.Work != workDiscard {
		return
	}
	err = s.do(ctx, r.Work, r.selection)
	if errors.Is(err, queue.ErrClosed) || ctx.Err() != nil {
		return // the next process that opens the spool executes it
	}
	r.Answered = true
	if err != nil {
		r.Error = err.Error()
		s.cfg.Log.Warn("request on dead letters failed", "work", r.Work, "name", r.Name, "error", err)
	} else {
		s.cfg.Log.Info("request on dead letters executed", "work", r.Work, "name", r.Name, "in_doubt", r.InDoubt)
	}
	if err := writeRequest(file, r); err != nil {
		s.cfg.Log.Warn("request on dead letters not answered", "error", err)
	}
}

const (
	lookEvery   = 100 * time.Millisecond // for an answer
	openEvery   = 20                     // looks
	answerAfter = time.Minute            // at the latest, without progress
)

// perform does work on the dead letters of a spool's file: itself, or if another process has
// the file open, by a request to that one. Errors wrap ErrInUse.
func perform(ctx context.Context, path string, groupBytes int, work string, what selection, left func() (int, error)) error {
	inUse := performAlone(ctx, path, groupBytes, work, what)
	if !errors.Is(inUse, ErrInUse) {
		return inUse
	}
	file := fmt.Sprintf("%s%s%s", path, requestEnding, rand.Text())
	if err := writeRequest(file, request{Work: work, selection: what}); err != nil {
		return errors.Join(inUse, err)
	}
	defer func() { _ = os.Remove(file) }() // else it is deleted when it is stale
	progress, before := time.Now(), -1
	for look := 1; ; look++ {
		queue.Sleep(ctx, lookEvery)
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the process that has the spool: %w", context.Cause(ctx))
		}
		if r, err := readRequest(file); err == nil && r.Answered {
			if r.Error != "" {
				return fmt.Errorf("the process that has the spool says: %s", r.Error)
			}
			return nil
		}
		if look%openEvery != 0 {
			continue
		}
		if err := performAlone(ctx, path, groupBytes, work, what); !errors.Is(err, ErrInUse) {
			return err // the other process has ended
		}
		if now, err := left(); err == nil && now != before {
			progress, before = time.Now(), now
		}
		if time.Since(progress) > answerAfter {
			return fmt.Errorf("it has not answered the request: %w", inUse)
		}
	}
}

// performAlone does work on the dead letters of a spool's file that no other process has open.
func performAlone(ctx context.Context, path string, groupBytes int, work string, what selection) error {
	s, err := Open(ctx, path, commandConfig(groupBytes))
	if err != nil {
		return err
	}
	return errors.Join(s.do(ctx, work, what), s.Close())
}
