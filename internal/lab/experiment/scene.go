package experiment

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// fixedScene is that of the services that live as long as the experiment: they see no setting that varies.
func (f *File) fixedScene(l *layout) (*scene, error) {
	settings := maps.Clone(f.Settings)
	for _, levels := range [][]Level{f.Levels, f.quickLevels()} {
		for _, level := range levels {
			for name := range level.Settings {
				delete(settings, name)
			}
		}
	}
	var fixed []string
	for _, name := range f.serviceNames() {
		if f.service(name).Scope == ScopeExperiment {
			fixed = append(fixed, name)
		}
	}
	order, err := f.startOrder(fixed)
	if err != nil {
		return nil, err
	}
	dropVarying(settings, order)
	return f.newScene(l, order, settings)
}

// dropVarying removes the settings that name, directly or through others, a setting or a service that is not fixed.
func dropVarying(settings map[string]string, services []string) {
	for dropped := true; dropped; {
		dropped = false
		for name, text := range settings {
			for _, use := range templateUse.FindAllStringSubmatch(text, -1) {
				known := use[1] == "setting" && hasKey(settings, use[2]) || use[1] == "service" && slices.Contains(services, use[2])
				if !known {
					delete(settings, name)
					dropped = true
				}
			}
		}
	}
}

// variantScene is that of a variant at a level; nil is no level.
func (f *File) variantScene(l *layout, facts *VariantFacts, level *Level) (*scene, error) {
	settings := maps.Clone(facts.Settings)
	if level != nil {
		maps.Copy(settings, level.Settings)
	}
	return f.newScene(l, facts.Services, settings)
}

var templateUse = regexp.MustCompile(`\.(setting|service)\.([a-z0-9_]+)`)

// watch is what is sampled beside a load.
type watch struct {
	processes map[string]string // service by name
	databases map[string]string // URL by name
}

func (s *scene) watched() (watch, error) {
	w := watch{processes: map[string]string{}, databases: map[string]string{}}
	for _, service := range s.services {
		if name := s.file.watchedAs(service); name != "" {
			w.processes[name] = service
		}
	}
	for name, url := range s.file.Watch.Databases {
		filled, err := s.text("watch.databases."+name, url, s.values)
		if err != nil {
			return w, err
		}
		w.databases[name] = filled
	}
	return w, nil
}

// process is a service's process, filled in.
type process struct {
	command []string
	env     []string
	host    string
	http    string   // ready
	probe   []string // ready
	prepare [][]string
	fill    [][]string
}

// process fills in a service's templates.
func (s *scene) process(service *Service) (*process, error) {
	v := s.of(service)
	path := "services." + service.Name
	p := &process{host: s.hosts[service.Name]}
	var err error
	if p.command, err = s.texts(path+".command", service.Command, v); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(service.Env)) {
		value, err := s.text(path+".env."+name, service.Env[name], v)
		if err != nil {
			return nil, err
		}
		p.env = append(p.env, name+"="+value)
	}
	if p.http, err = s.text(path+".ready.http", service.Ready.HTTP, v); err != nil {
		return nil, err
	}
	if p.probe, err = s.texts(path+".ready.command", service.Ready.Command, v); err != nil {
		return nil, err
	}
	if p.prepare, err = s.commands(path+".prepare", service.Prepare, v); err != nil {
		return nil, err
	}
	p.fill, err = s.commands(path+".fill", service.Fill, v)
	return p, err
}

func (s *scene) commands(path string, commands [][]string, v values) ([][]string, error) {
	filled := make([][]string, len(commands))
	for i, command := range commands {
		var err error
		if filled[i], err = s.texts(fmt.Sprintf("%s.%d", path, i), command, v); err != nil {
			return nil, err
		}
	}
	return filled, nil
}

// loadHost returns the host that a load comes from, "" for this one.
func (f *File) loadHost(load Load) string {
	if load.Host == "" && len(f.Hosts) > 0 {
		return f.Hosts[0].Name
	}
	return load.Host
}

// arguments are those of `spillway load`, filled in; the URL stands first.
func (s *scene) arguments(load Load) ([]string, error) {
	if load.URL == "" {
		return nil, s.file.mistake("load", "url is missing: what is loaded")
	}
	url, err := s.text(s.file.pathOf("url", load.URL), load.URL, s.values)
	if err != nil {
		return nil, err
	}
	arguments := []string{url}
	for _, flag := range load.list() {
		value, err := s.text(s.file.pathOf(flag.key, flag.value), flag.value, s.values)
		if err != nil {
			return nil, err
		}
		switch flag.key {
		case "http2", "insecure":
			if value == "true" {
				arguments = append(arguments, "--"+flag.key)
			}
			continue
		case "body_file", "requests_file":
			if !filepath.IsAbs(value) {
				value = filepath.Join(s.layout.source, value)
			}
		}
		arguments = append(arguments, "--"+strings.ReplaceAll(flag.key, "_", "-")+"="+value)
	}
	return arguments, nil
}

// flag is one flag of a load, as written.
type flag struct{ key, value string }

// list returns the flags that a load gives, repeated ones one by one; neither the URL nor the host is one.
func (l Load) list() []flag {
	var flags []flag
	v := reflect.ValueOf(l)
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("yaml")
		if key == "url" || key == "host" {
			continue
		}
		switch value := v.Field(i).Interface().(type) {
		case string:
			if value != "" {
				flags = append(flags, flag{key, value})
			}
		case []string:
			for _, one := range value {
				flags = append(flags, flag{key, one})
			}
		}
	}
	return flags
}

// flags are the same for the manifest; values of a repeated flag are divided by newlines.
func (l Load) flags() map[string]string {
	flags := map[string]string{"url": l.URL}
	for _, f := range l.list() {
		if flags[f.key] != "" {
			f.value = flags[f.key] + "\n" + f.value
		}
		flags[f.key] = f.value
	}
	return flags
}
