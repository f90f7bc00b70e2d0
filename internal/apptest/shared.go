package apptest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Shared is a server that the tests of a package use together, because starting one takes
// longer than most tests. It starts with the first Get. Closing stops it. A test that stops,
// kills or configures a server needs one of its own.
type Shared[S server] struct {
	Start func() (S, error) // starts the server; called once

	mu      sync.Mutex
	started bool
	value   S
	err     error
}

// server is what Shared needs of the types that the Start functions return.
type server interface {
	Close() error
	keepLog(owner string) (string, error)
}

// Get returns the server, and starts it if it does not run yet.
func (s *Shared[S]) Get(t testing.TB) S {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.started = true
		s.value, s.err = s.Start()
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.value
}

// finish stops the server. It keeps the log if a test failed.
func (s *Shared[S]) finish(failed bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started || s.err != nil {
		return nil
	}
	var err error
	if failed {
		_, err = s.value.keepLog("shared")
	}
	return errors.Join(err, s.value.Close())
}

// Tests runs the tests of a package and then stops the servers that they shared. It is made
// by Closing.
type Tests struct {
	run     func() int
	servers []finisher
}

type finisher interface{ finish(failed bool) error }

// Closing returns the tests of m, to be run in TestMain:
// goleak.VerifyTestMain(apptest.Closing(m, &shared)). The servers are of type Shared.
func Closing(m *testing.M, servers ...finisher) *Tests { return &Tests{m.Run, servers} }

// Run returns the exit code.
func (tests *Tests) Run() int {
	code := tests.run()
	for _, s := range tests.servers {
		if err := s.finish(code != 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

// LogsVariable names the directory for the logs of servers of failed tests.
const LogsVariable = "SPILLWAY_TEST_LOGS"

// LogDirectory returns the directory where the logs of servers are kept: those of a failed
// test, and those that a package's tests share.
func LogDirectory() string {
	if dir := os.Getenv(LogsVariable); dir != "" {
		return dir
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("%slogs-%d", directoryPrefix, os.Getuid()))
}

// keepLog copies the server's log to LogDirectory and returns the name of the copy.
func (s *Server) keepLog(owner string) (string, error) {
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return "", err
	}
	dir := LogDirectory()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	owner = strings.NewReplacer("/", "-", " ", "-").Replace(owner)
	file := filepath.Join(dir, fmt.Sprintf("%s-%s-%s.log", owner, s.name, portOf(s.addr)))
	return file, os.WriteFile(file, text, 0o600)
}

// closeAfter closes the server at the end of the test, and keeps its log if the test failed.
func (s *Server) closeAfter(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			file, err := s.keepLog(t.Name())
			t.Logf("the log of %s is kept in %s %v; its end:\n%s", s.name, file, err, s.logTail())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
