package experiment

import (
	"context"
	"fmt"
	"path/filepath"
	"syscall"
	"time"
)

// watchPort is where the watch of a host is read; hosts have nothing else there.
const watchPort = 9191

// watchGrace is what a watch gets to end.
const watchGrace = 5 * time.Second

// watchHosts starts a watch in every host but the one that the load comes from, which the load watches itself, and has
// the load read them. The watches end with stop, which is never nil.
func (e *engine) watchHosts(ctx context.Context, t *turn, host string, command *[]string) (stop func(), err error) {
	var watches []*running
	stop = func() {
		for _, w := range watches {
			w.stop(watchGrace)
		}
	}
	for _, name := range e.network.names {
		if name == host || !e.file.Watch.any() {
			continue
		}
		address := fmt.Sprintf("%s:%d", e.layout.address(name), watchPort)
		w, err := start(startSpec{
			command: []string{e.layout.spillway, "watch", "--listen=" + address}, env: e.watchEnv(),
			directory: e.temp, namespace: e.network.namespace(name), log: filepath.Join(t.dir, "watch-"+name+".log"), signal: syscall.SIGINT,
		})
		if err != nil {
			return stop, fmt.Errorf("watch host %s: %w", name, err)
		}
		watches = append(watches, w)
		if err := awaitPort(ctx, e.network.namespace(host), address, w); err != nil {
			return stop, fmt.Errorf("watch host %s: %w; %s", name, err, logTail(w.spec.log))
		}
		*command = append(*command, fmt.Sprintf("--watch-from=http://%s", address))
	}
	return stop, nil
}

// watchEnv gives a watch and its reader their token, which a command line would show.
func (e *engine) watchEnv() []string { return []string{"SPILLWAY_WATCH_TOKEN=" + e.token} }

// any says whether anything is watched.
func (w *Watch) any() bool { return w.Processes == nil || len(w.Processes)+len(w.Databases) > 0 }

// awaitPort waits until a process accepts connections.
func awaitPort(ctx context.Context, namespace, address string, r *running) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	poll := time.NewTicker(readyPoll)
	defer poll.Stop()
	for {
		conn, err := dial(ctx, namespace, address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-r.done:
			return fmt.Errorf("it ended: %s", exitText(r.state))
		case <-ctx.Done():
			return err
		case <-poll.C:
		}
	}
}
