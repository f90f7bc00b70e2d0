package app

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"spillway/internal/serve/queue"
)

// delayStop returns when no connection has to be accepted any more: after http.stop_delay, at a second signal or when running has
// ended. Until then load balancers find out from readiness that the process stops, and responses close their connections. why is
// the cause of the stop; nil: it has ended by itself.
func (a *app) delayStop(running context.Context, why error) {
	delay := a.stopDelay(why)
	if delay == 0 {
		return
	}
	a.public.PrepareStop()
	a.log.Info("stopping: connections are accepted until load balancers have seen it; a second signal ends the wait", "stop_delay", delay)
	wait, end := signal.NotifyContext(running, os.Interrupt, syscall.SIGTERM)
	defer end()
	queue.Sleep(wait, delay)
}

// stopDelay returns the delay of a stop with a cause. Only SIGTERM has one: at an interrupt, somebody waits.
func (a *app) stopDelay(why error) time.Duration {
	if why == nil || !strings.HasPrefix(why.Error(), syscall.SIGTERM.String()) { // the cause of signal.NotifyContext
		return 0
	}
	return a.cfg.StopDelay()
}
