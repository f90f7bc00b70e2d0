package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"spillway/internal/exit"
	"spillway/internal/serve/admin"
	"spillway/internal/serve/config"
	"spillway/internal/yaml"
)

// reloadTimeout bounds the start of the feeds and queries that a reload brings.
const reloadTimeout = 30 * time.Second

// leftoverEvery is how often it is checked whether what earlier reloads have replaced can be
// closed.
const leftoverEvery = time.Second

// reloadOnSignal reloads the configuration at each signal until ctx ends. It also closes what
// reloads could not close in time.
func (a *app) reloadOnSignal(ctx context.Context, hangups <-chan os.Signal) {
	ticker := time.Tick(leftoverEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker:
			if a.reloading.TryLock() {
				a.closeLeftover(ctx, 0)
				a.reloading.Unlock()
			}
			continue
		case <-hangups:
		}
		if err := a.reload(ctx); err != nil && ctx.Err() == nil {
			a.log.Error("configuration not reloaded: nothing has changed", "error", err)
		}
	}
}

// reload applies the configuration file as it is now, or returns an error and changes nothing.
// Feeds and queries that are new or changed are started beside the others, and have to succeed.
// Then all routes are switched at once, and those that are gone are closed when their requests
// are answered. A second reload waits for the first.
func (a *app) reload(ctx context.Context) error {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	if a.closed || !a.public.Serving() || a.public.Draining() {
		return errors.New("the process is starting or stopping")
	}
	if a.options.File == "" {
		return exit.UsageError(errors.New("the process has no configuration file: start it with spillway serve FILE"))
	}
	notify(a.log, daemon.SdNotifyReloading+"\n"+daemon.SdNotifyMonotonicUsec()) // it waits for ready
	defer notify(a.log, ready)
	cfg, _, err := a.options.load()
	if err != nil {
		return err
	}
	before := a.current()
	if names := fixedChanges(before.cfg, cfg); len(names) > 0 {
		return exit.UsageError(fmt.Errorf("%s cannot change while the process runs: restart it", strings.Join(names, ", ")))
	}
	if a.certificate != nil {
		a.certificate.renew(time.Now())
	}
	next, err := a.startReads(ctx, cfg, &before)
	if err != nil {
		return err
	}
	a.level.Set(logLevel(cfg.Log))
	a.warnOfOpenReads(&cfg)
	gone := without(&before, next)
	a.leftover = append(a.leftover, gone)
	a.log.Info("configuration reloaded", "file", a.options.File, "started", len(without(next, &before).parts), "closed", len(gone.parts))
	if !a.closeLeftover(ctx, a.cfg.HTTP.DrainTimeout) {
		a.log.Warn("requests of the configuration before are not answered yet: its feeds and queries stay open until they are")
	}
	return nil
}

// startReads starts the feeds and queries of cfg that are not among those before, and puts
// cfg in force.
func (a *app) startReads(ctx context.Context, cfg config.Config, before *reads) (*reads, error) {
	next, err := a.newReads(cfg)
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(ctx, reloadTimeout, fmt.Errorf("feeds and queries have not started within %s", reloadTimeout))
		defer cancel()
		err = a.startParts(ctx, without(next, before).all(), true, func() {})
	}
	if err != nil {
		without(next, before).close()
		a.retainStores()
		return nil, err
	}
	a.mu.Lock()
	a.reads = *next
	a.mu.Unlock()
	a.publish()
	return next, nil
}

// without returns those feeds and queries of r that other does not have.
func without(r, other *reads) *reads {
	has := func(p *readPart) bool { return slices.Contains(other.parts, p) }
	return &reads{parts: slices.DeleteFunc(slices.Clone(r.parts), has)}
}

// closeLeftover closes the feeds and queries that are served no more, and the databases that
// only they used. It waits that long for the answers to their requests. If some are missing
// then, it closes nothing and returns false.
func (a *app) closeLeftover(ctx context.Context, wait time.Duration) bool {
	if len(a.leftover) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if !a.public.AwaitRetired(ctx) {
		return false
	}
	for _, r := range a.leftover {
		r.close()
	}
	a.leftover = nil
	a.retainStores()
	return true
}

// retainStores closes the databases that no part uses.
func (a *app) retainStores() {
	used := map[*store]bool{a.defaultStore: true}
	if a.replica != nil {
		used[a.replica.store] = true
	}
	for _, p := range a.parts() {
		used[p.store] = true
	}
	for _, r := range a.leftover {
		for _, p := range r.parts {
			used[p.store] = true
		}
	}
	a.stores.retain(used)
}

// fixedChanges names the settings that differ and that a reload cannot change.
func fixedChanges(now, next config.Config) []string {
	for _, c := range []*config.Config{&now, &next} {
		c.Feeds, c.Queries, c.Keys = nil, nil, nil
		c.Auth.Reads, c.Auth.Keys, c.Auth.Cookie = "", nil, ""
		c.HTTP.CORSOrigins, c.HTTP.TrustedProxies, c.HTTP.OpenAPI = nil, nil, false
		c.HTTP.UnknownParams = ""
		c.Log.Access, c.Log.Level = false, ""
	}
	var names []string
	for _, d := range differences("", reflect.ValueOf(now), reflect.ValueOf(next)) {
		names = append(names, d.path)
	}
	return names
}

// configuration returns what is in force, and what the file would change.
func (a *app) configuration() admin.Configuration {
	now := a.current().cfg
	var text strings.Builder
	_ = now.Print(&text) // a builder takes all
	c := admin.Configuration{File: a.options.File, Effective: text.String(), Changes: []admin.SettingChange{}}
	if c.File == "" {
		return c
	}
	next, _, err := a.options.load()
	if err != nil {
		c.Problem = err.Error()
		return c
	}
	fixed := fixedChanges(now, next)
	for _, d := range differences("", reflect.ValueOf(now), reflect.ValueOf(next)) {
		c.Changes = append(c.Changes, admin.SettingChange{
			Setting: d.path, Fixed: slices.Contains(fixed, d.path), Now: config.Text(d.now), Next: config.Text(d.next),
		})
	}
	return c
}

// difference is a value in which two configurations differ, and its path.
type difference struct {
	path      string
	now, next reflect.Value
}

// differences returns the values in which two configurations differ.
func differences(path string, a, b reflect.Value) []difference {
	var found []difference
	switch {
	case config.IsBlock(a.Type()):
		for i := range a.NumField() {
			name := a.Type().Field(i).Tag.Get("yaml")
			found = append(found, differences(yaml.Join(path, name), a.Field(i), b.Field(i))...)
		}
	case a.Kind() == reflect.Slice && a.Type().Elem().Kind() == reflect.Struct && a.Len() == b.Len():
		for i := range a.Len() {
			found = append(found, differences(yaml.Index(path, i), a.Index(i), b.Index(i))...)
		}
	case !reflect.DeepEqual(a.Interface(), b.Interface()):
		found = append(found, difference{path, a, b})
	}
	return found
}
