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

// answerWithin is how long Seed may continue after its context has ended: a second, and what two small loads take on this
// machine now.
func (p place) answerWithin(t *testing.T, empty database.URL) time.Duration {
	t.Helper()
	start := time.Now()
	p.seed(t, empty, small, false, true)
	return time.Second + 2*time.Since(start)
}

// interrupt runs Seed until the meter says that the task is done.
func interrupt(t *testing.T, url database.URL, dataset Dataset, task string, answerWithin time.Duration) {
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
	url, limit := p.fresh(t), p.answerWithin(t, p.fresh(t))
	for _, task := range tasks {
		interrupt(t, url, small, task, limit)
		if got := p.tables(t, url); got != "" {
			t.Fatalf("interrupted after %s: tables %q are left", task, got)
		}
	}
	p.seed(t, url, small, false, true)
	p.complete(t, url, small)
	for _, task := range tasks {
		interrupt(t, url, medium, task, limit)
		p.complete(t, url, small) // what was there before
	}
}

// testInterruptedAnyTime cancels the context at random times.
func (p place) testInterruptedAnyTime(t *testing.T) {
	url, limit := p.fresh(t), p.answerWithin(t, p.fresh(t))
	for patience := time.Millisecond; patience < 2*time.Minute; patience *= 2 {
		ctx, cancel := context.WithCancel(context.Background())
		start := time.Now()
		timer := time.AfterFunc(patience, cancel)
		_, err := Seed(ctx, url, medium, false, quiet())
		timer.Stop()
		cancel()
		if late := time.Since(start) - patience; late > limit {
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
