package spool

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"spillway/internal/apptest"
)

// holdOpen has the spool open until the process is killed. Each dead letter that it works on
// takes a transaction of its own.
func holdOpen(t *testing.T, file string) {
	cfg := testConfig()
	cfg.GroupBytes = 1
	openAt(t, file, cfg)
	fmt.Println("open")
	select {}
}

// startHolder starts a process that has a spool open.
func startHolder(t *testing.T, file string) *exec.Cmd {
	t.Helper()
	child := childCommand(t, nil, "open", file)
	out, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("the process says %q, %v", line, err)
	}
	return child
}

// deadFile returns a spool's file with n dead letters, and their payloads.
func deadFile(t *testing.T, n int) (file string, texts []string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "s.db")
	s := openAt(t, file, testConfig())
	for i := range n {
		texts = append(texts, fmt.Sprintf("%04d", i))
		put(t, s, "/a", texts[i])
	}
	refuseAll(t, s, "/a")
	closeSpool(t, s)
	return file, texts
}

// countDead counts the dead letters of a file that another process may have open.
func countDead(ctx context.Context, c Command) (n int, err error) {
	err = c.inspect(func(f *file) error {
		all, err := f.everything(ctx, "")
		if err == nil {
			n, err = f.count(ctx, all)
		}
		return err
	})
	return n, err
}

// If the process that works on dead letters is killed in the middle, each of them is either
// still a dead letter or back in the queue. The command that waits does the rest itself.
func TestKillRetry(t *testing.T) {
	file, want := deadFile(t, 150)
	child := startHolder(t, file)
	command, _ := testCommand(file)
	left := func() int {
		n, err := countDead(t.Context(), command)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	done := make(chan error, 1)
	retry, out := testCommand(file)
	go func() { done <- retry.Retry(t.Context(), "", false) }()
	apptest.Await(t, "the work has begun", func() bool { return left() < 150 })
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed
	t.Logf("%d dead letters when the process was killed", left())
	if err := <-done; err != nil || out.String() != "150 dead letters put back\n" {
		t.Errorf("%v, %s", err, out)
	}
	s := openAt(t, file, testConfig())
	defer closeSpool(t, s)
	if got := drainSome(t, s, "/a", len(want)); !slices.Equal(got, want) {
		t.Errorf("drained %q", got)
	}
	if n := s.Stats().Names[0]; n.Groups != 0 || n.Dead != 0 {
		t.Errorf("stats %+v", n)
	}
}

// Another process that has the spool open executes Discard.
func TestDiscardOtherProcess(t *testing.T) {
	file, _ := deadFile(t, 20)
	child := startHolder(t, file)
	command, out := testCommand(file)
	if err := command.Discard(t.Context(), "/b", true); err != nil || out.String() != "0 dead letters deleted\n" {
		t.Errorf("another name: %v, %s", err, out)
	}
	out.Reset()
	if err := command.Discard(t.Context(), "", true); err != nil || out.String() != "20 dead letters deleted\n" {
		t.Errorf("%v, %s", err, out)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed
	s := openAt(t, file, testConfig())
	defer closeSpool(t, s)
	if n := s.Stats().Names[0]; n.Groups != 0 || n.Dead != 0 || n.UsedBytes != 0 {
		t.Errorf("stats %+v", n)
	}
}
