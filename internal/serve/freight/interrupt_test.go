package freight

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"spillway/internal/database"
	"spillway/internal/progress"
)

// trigger calls do when a line that starts with text is written.
type trigger struct {
	text string
	do   func()
}

func (w trigger) Write(p []byte) (int, error) {
	if strings.HasPrefix(string(p), w.text) {
		w.do()
	}
	return len(p), nil
}

// answerWithin limits how long Seed continues after its context has ended.
const answerWithin = 15 * time.Second

// interrupt runs Seed until the meter says that the task is done.
func interrupt(t *testing.T, url database.URL, dataset Dataset, task string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var at time.Time
	meter := progress.New(trigger{text: task + ":", do: func() { at = time.Now(); cancel() }})
	_, err := Seed(ctx, url, dataset, true, meter)
	took := time.Since(at)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted: nothing unfinished is left in "+url.String()) {
		t.Fatalf("interrupted after %s: %v", task, err)
	}
	if took > answerWithin {
		t.Errorf("interrupted after %s: answered in %s", task, took)
	}
}

func (p place) testInterrupted(t *testing.T) {
	tasks := []string{"users", "orders", "indexes", "statistics"}
	url := p.fresh(t)
	for _, task := range tasks {
		interrupt(t, url, small, task)
		if got := p.tables(t, url); got != "" {
			t.Fatalf("interrupted after %s: tables %q are left", task, got)
		}
	}
	p.seed(t, url, small, false, true)
	p.complete(t, url, small)
	for _, task := range tasks {
		interrupt(t, url, medium, task)
		p.complete(t, url, small) // what was there before
	}
}

// testInterruptedAnyTime cancels the context at random times.
func (p place) testInterruptedAnyTime(t *testing.T) {
	url := p.fresh(t)
	for patience := time.Millisecond; patience < 2*time.Minute; patience *= 2 {
		ctx, cancel := context.WithCancel(context.Background())
		start := time.Now()
		timer := time.AfterFunc(patience, cancel)
		_, err := Seed(ctx, url, medium, false, quiet())
		timer.Stop()
		cancel()
		if late := time.Since(start) - patience; late > answerWithin {
			t.Errorf("told to stop after %s, answered %s later", patience, late)
		}
		if err == nil {
			t.Logf("complete with a patience of %s", patience)
			p.complete(t, url, medium)
			return
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		// The context may have ended while the server committed.
		if got := p.tables(t, url); got != "" {
			p.complete(t, url, medium)
			return
		}
	}
	t.Error("never complete")
}

// testKilled kills a process while it loads the orders.
func (p place) testKilled(t *testing.T) {
	url := p.fresh(t)
	p.seed(t, url, small, false, true)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childURL+"="+url.Raw())
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "users:") {
		t.Errorf("the child wrote %q, %v", line, err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err == nil || child.ProcessState.ExitCode() != -1 {
		t.Errorf("the child ended by itself: %v", err)
	}
	p.complete(t, url, small) // what was there before
	p.seed(t, url, medium, true, true)
	p.complete(t, url, medium)
}
