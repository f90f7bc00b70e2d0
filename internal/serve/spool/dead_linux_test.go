package spool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"spillway/internal/apptest"
)

// holdOpen has the spool open and retries all dead letters until the process is killed. Each
// letter takes a transaction of its own.
func holdOpen(t *testing.T, file string) {
	cfg := testConfig()
	cfg.GroupBytes = 1
	s := openAt(t, file, cfg)
	fmt.Println("open")
	_, _ = s.Do(t.Context(), Order{Work: WorkRetry})
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
		all, err := f.selects(ctx, Filter{})
		if err == nil {
			n, _, _, err = f.count(ctx, all)
		}
		return err
	})
	return n, err
}

// If the process that retries dead letters is killed in the middle, each of them is either still
// a dead letter or back in the queue. While it runs, the file tells who has it.
func TestKillRetry(t *testing.T) {
	file, want := deadFile(t, 150)
	child := startHolder(t, file)
	command, out := testCommand(file)
	left := func() int {
		n, err := countDead(t.Context(), command)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	if held, admin := Owner(file); !held || admin != testConfig().Admin {
		t.Errorf("held %v by %q", held, admin)
	}
	if err := command.Retry(t.Context(), Filter{}, false); !errors.Is(err, ErrInUse) {
		t.Errorf("retry beside the other process: %v", err)
	}
	apptest.Await(t, "the work has begun", func() bool { return left() < 150 })
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed
	n := left()
	t.Logf("%d dead letters when the process was killed", n)
	if held, _ := Owner(file); held {
		t.Error("held by a process that was killed")
	}
	out.Reset()
	if err := command.Retry(t.Context(), Filter{}, false); err != nil || out.String() != counted(n, "dead letter")+" put back\n" {
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
