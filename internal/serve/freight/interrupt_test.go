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

	"spillway/internal/apptest"
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

// interrupt runs Seed until the meter says that the task is done.
func interrupt(t *testing.T, url database.URL, dataset Dataset, task string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	meter := progress.New(trigger{text: task + ":", do: cancel})
	wantInterrupted(ctx, t, url, dataset, meter, task)
}

// interruptOrders interrupts Seed soon after it has begun to load orders that would take many
// minutes.
func interruptOrders(t *testing.T, url database.URL) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	meter := progress.New(trigger{text: "users:", do: func() { time.AfterFunc(100*time.Millisecond, cancel) }})
	wantInterrupted(ctx, t, url, endless, meter, "100 ms of the orders")
}

// interruptPooled is interruptOrders for a pooler. It waits until the meter shows orders, because
// PgBouncer 1.18 ends if a statement is canceled while it connects to the server.
func interruptPooled(t *testing.T, url database.URL) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	wantInterrupted(ctx, t, url, endless, progress.New(trigger{text: "orders:", do: cancel}), "some of the orders")
}

func wantInterrupted(ctx context.Context, t *testing.T, url database.URL, dataset Dataset, meter *progress.Meter, after string) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := Seed(ctx, url, dataset, true, meter)
		ended <- err
	}()
	err := apptest.Receive(t, "the end of a load that is interrupted after "+after, ended)
	if want := "interrupted: nothing finished has been added to " + url.String(); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
		t.Fatalf("interrupted after %s: want %q, got %v", after, want, err)
	}
}

func (p place) testInterrupted(t *testing.T) {
	tasks := []string{"users", "orders", "indexes", "statistics"}
	url := p.fresh(t)
	for _, task := range tasks {
		interrupt(t, url, small, task)
		if got := p.tables(t, url); got != "" && !p.stepwise {
			t.Fatalf("interrupted after %s: tables %q are left", task, got)
		}
	}
	p.seed(t, url, small, false, true)
	p.complete(t, url, small)
	interruptOrders(t, url)
	p.before(t, url)
	for _, task := range tasks {
		interrupt(t, url, medium, task)
		p.before(t, url)
	}
}

// before checks that the small data set is there, which an interrupted load was to replace. Where each step is committed, it need
// not be, and is loaded again.
func (p place) before(t *testing.T, url database.URL) {
	t.Helper()
	if p.stepwise {
		p.seed(t, url, small, false, true)
	}
	p.complete(t, url, small)
}

// testInterruptedAnyTime cancels the context at random times, later and later until the load is
// complete.
func (p place) testInterruptedAnyTime(t *testing.T) {
	apptest.Long(t)
	url := p.fresh(t)
	for patience := time.Millisecond; ; patience *= 2 {
		ctx, cancel := context.WithCancel(context.Background())
		timer := time.AfterFunc(patience, cancel)
		_, err := Seed(ctx, url, medium, false, quiet())
		timer.Stop()
		cancel()
		if err == nil {
			t.Logf("complete with a patience of %s", patience)
			p.complete(t, url, medium)
			return
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		// The context may have ended while the server committed.
		if got := p.tables(t, url); got != "" && !p.stepwise {
			p.complete(t, url, medium)
			return
		}
	}
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
	p.before(t, url)
	p.seed(t, url, medium, true, true)
	p.complete(t, url, medium)
}
