package experiment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// prepareGrace is the time in which a command of prepare or fill may end when the run is stopped.
const prepareGrace = 10 * time.Second

// service is a started service.
type service struct {
	config  *Service
	process *process
	folder  string
	running *running
	record  ServiceRun
}

// startServices starts the services of a scope in order. It returns the started services also with an error.
func (e *engine) startServices(ctx context.Context, scope string, s *templateData, logs string) ([]*service, error) {
	var started []*service
	for _, name := range s.services {
		config := e.file.service(name)
		if config.Scope != scope {
			continue
		}
		one, err := e.startService(ctx, s, config, logs)
		if one != nil {
			started = append(started, one)
		}
		if err != nil {
			return started, fmt.Errorf("service %s: %w", name, err)
		}
	}
	return started, nil
}

// stopServices stops services in reverse order and records how they ended.
func stopServices(services []*service) {
	for _, s := range slices.Backward(services) {
		if s.running != nil && s.record.Ended == "" {
			s.record.Ended = s.running.stop(s.config.Stop.Grace)
			_ = s.running.spec.cgroup.remove() // the guard tries again
		}
	}
}

// makeFolders makes a new folder for each service of a scope, before templates use it.
func (e *engine) makeFolders(scope string, names []string) error {
	for _, name := range names {
		config := e.file.service(name)
		if config.Scope != scope {
			continue
		}
		e.starts++
		folder := filepath.Join(e.temp, fmt.Sprintf("%s-%d", name, e.starts))
		if err := makeFolder(folder, config.User); err != nil {
			return fmt.Errorf("service %s: %w", name, err)
		}
		e.layout.folders[name] = folder
	}
	return nil
}

// makeFolder makes a folder owned by the user.
func makeFolder(path, user string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	return chownTo(path, user)
}

// chownTo makes the user the owner of a file.
func chownTo(path, user string) error {
	credential, err := credentialOf(user)
	if err != nil || credential == nil {
		return err
	}
	return os.Chown(path, int(credential.Uid), int(credential.Gid))
}

func (e *engine) startService(ctx context.Context, s *templateData, config *Service, logs string) (*service, error) {
	process, err := s.process(config)
	if err != nil {
		return nil, err
	}
	one := &service{config: config, process: process, folder: e.layout.folders[config.Name]}
	one.record = ServiceRun{
		Name: config.Name, Watched: e.file.watchedAs(config.Name), Host: process.host, Scope: config.Scope,
		Command: unmarkAll(process.command), Ports: e.layout.ports[config.Name], Setting: s.settings(),
	}
	if err := s.writeFiles(config, one.folder); err != nil {
		return nil, err
	}
	log := filepath.Join(logs, config.Name+".log")
	folder := e.data[config.Name]
	if err := e.once(ctx, one, "prepare", process.prepare, &folder.prepared, log); err != nil {
		return nil, err
	}
	begin := time.Now()
	group, err := e.cgroups.create(filepath.Base(one.folder), process.host)
	if err != nil {
		return nil, err
	}
	spec := e.spec(one, process.command, log, unix.SignalNum("SIG"+config.Stop.Signal))
	spec.cgroup = group
	if one.running, err = start(spec); err != nil {
		return nil, errors.Join(err, group.remove())
	}
	one.record.PID = one.running.pid
	ready := func(ctx context.Context) error { return e.ready(ctx, one) }
	if err := one.running.await(ctx, config.Ready.Timeout, ready); err != nil {
		return one, fmt.Errorf("%w; %s", err, e.logTail(log))
	}
	one.record.Ready = time.Since(begin).Seconds()
	kept := folder.filled
	if err := e.once(ctx, one, "fill", process.fill, &folder.filled, log); err != nil || kept || folder.keep == "" {
		return one, err
	}
	return one, os.WriteFile(folder.keep, []byte(folder.key), 0o644)
}

// spec describes a process of a service, on its host and as its user.
func (e *engine) spec(s *service, command []string, log string, signal syscall.Signal) startSpec {
	return startSpec{
		command: e.layout.secrets.expandAll(command), env: e.layout.secrets.expandAll(s.process.env), directory: s.folder,
		user: s.config.User, namespace: e.network.namespace(s.process.host), log: log, signal: signal,
	}
}

// writeFiles fills in the template files of a service.
func (s *templateData) writeFiles(config *Service, folder string) error {
	for _, name := range slices.Sorted(maps.Keys(config.Files)) {
		text, source, err := s.template(config, name)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if info, err := os.Stat(source); err == nil {
			mode = info.Mode().Perm() | 0o444
		}
		path := folder
		for part := range strings.SplitSeq(filepath.Dir(name), "/") {
			path = filepath.Join(path, part)
			if err := makeFolder(path, config.User); err != nil {
				return err
			}
		}
		path = filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(s.layout.secrets.expand(text)), mode); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
		if err := chownTo(path, config.User); err != nil {
			return err
		}
	}
	return nil
}

// logTail returns the end of a log in one line, without secrets.
func (e *engine) logTail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil || len(text) == 0 {
		return "it printed nothing to " + path
	}
	clean := e.layout.secrets.hide(string(text))
	lines := strings.Split(strings.TrimSpace(clean[max(0, len(clean)-2000):]), "\n")
	lines = lines[max(0, len(lines)-3):]
	return "it printed: " + strings.Join(lines, " | ") + " (" + path + ")"
}

// once runs the commands of prepare or fill, once per data folder: done says that they were run.
func (e *engine) once(ctx context.Context, s *service, what string, commands [][]string, done *bool, log string) error {
	if *done {
		return nil
	}
	for _, command := range commands {
		e.logf("%s: %s", s.config.Name, strings.Join(unmarkAll(command), " "))
		if err := run(ctx, e.spec(s, command, log, syscall.SIGTERM), prepareGrace); err != nil {
			return fmt.Errorf("%s: %s: %s; %s", what, command[0], exitText(err), e.logTail(log))
		}
	}
	*done = true
	return nil
}

// dataFolder is the data folder of a service.
type dataFolder struct {
	path             string
	keep             string   // file that marks kept data as complete; "" if the data is removed with the run
	key              string   // hash of what fills the folder
	lock             *os.File // held while the run uses kept data; nil without
	prepared, filled bool
}

// openData makes the data folder of each service. It removes kept data that was filled differently.
func (e *engine) openData() error {
	kept, err := filepath.Abs(filepath.Join(e.command.Data, "experiments", e.file.Name))
	if err != nil {
		return err
	}
	for _, s := range e.file.Services {
		d := &dataFolder{path: filepath.Join(e.temp, "data", s.Name)}
		if s.Keep != "" {
			if err := e.openKept(d, &s, filepath.Join(kept, s.Name)); err != nil {
				return fmt.Errorf("service %s: data: %w", s.Name, err)
			}
		}
		e.data[s.Name] = d
		e.layout.data[s.Name] = d.path
		if err := makeFolder(d.path, s.User); err != nil {
			return fmt.Errorf("service %s: data: %w", s.Name, err)
		}
	}
	return nil
}

func (e *engine) openKept(d *dataFolder, s *Service, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	d.path, d.keep = filepath.Join(folder, "data"), filepath.Join(folder, "stamp")
	var err error
	if d.lock, err = os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return err
	}
	if err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.New("in use by another experiment: " + folder)
	}
	if d.key, err = e.file.dataKey(e.layout.source, s); err != nil {
		return err
	}
	stamp, err := os.ReadFile(d.keep)
	if err == nil && string(stamp) == d.key {
		d.prepared, d.filled = true, true
		return nil
	}
	e.logf("%s: filling %s, which later runs reuse", s.Name, d.path)
	return errors.Join(os.RemoveAll(d.keep), os.RemoveAll(d.path))
}

// dataKey returns a hash of what fills a service's data folder, with references, because a secret could be guessed from its hash.
func (f *File) dataKey(source string, s *Service) (string, error) {
	data, err := f.fixedData(f.placeholders(source))
	if err != nil {
		return "", err
	}
	process, err := data.process(s)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %q %q %q %q\n", s.Keep, s.User, process.prepare, process.fill, process.env)
	for _, name := range slices.Sorted(maps.Keys(s.Files)) {
		text, _, err := data.template(s, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%q %q\n", name, text)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
