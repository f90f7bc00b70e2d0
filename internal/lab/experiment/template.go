package experiment

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// Bounds of settings that name settings.
const (
	nestingMax = 10       // deep
	settingMax = 64 << 10 // bytes of one, filled in
)

// values are what a template may name: {{.service.db.port.sql}}.
type values map[string]any

// layout is where everything of a run is: what templates are filled in from. A run fills it with what it has; a check
// with stand-ins.
type layout struct {
	source   string // folder of the experiment's file
	spillway string
	programs map[string]string
	hosts    map[string]string         // address by host; none: this host
	ports    map[string]map[string]int // by service and name
	folders  map[string]string         // by service: of its present start
	data     map[string]string         // by service
}

// address of a host.
func (l *layout) address(host string) string {
	if host == "" {
		return "127.0.0.1"
	}
	return l.hosts[host]
}

// standIn is a layout for a check: every name is there, nothing exists.
func (f *File) standIn(source string) *layout {
	l := &layout{
		source: source, spillway: "spillway", programs: map[string]string{}, hosts: map[string]string{},
		ports: map[string]map[string]int{}, folders: map[string]string{}, data: map[string]string{},
	}
	for _, n := range f.Needs {
		l.programs[n.Name] = n.Name
	}
	for i, h := range f.Hosts {
		l.hosts[h.Name] = hostAddress(i)
	}
	port := 16384
	for i := range f.Services {
		s := &f.Services[i]
		l.folders[s.Name], l.data[s.Name] = "folder/"+s.Name, "data/"+s.Name
		l.ports[s.Name] = map[string]int{}
		for _, name := range s.Ports {
			l.ports[s.Name][name] = port
			port++
		}
	}
	return l
}

// scene is one set of services that run together with one set of settings: a variant at a level, or the services that
// live as long as the experiment.
type scene struct {
	file     *File
	layout   *layout
	services []string          // that run, in the order of their start
	hosts    map[string]string // host by service
	values   values            // of all templates; a service adds its own
}

// newScene fills in settings (templates) and the places of services.
func (f *File) newScene(l *layout, services []string, settings map[string]string) (*scene, error) {
	s := &scene{file: f, layout: l, services: services, hosts: map[string]string{}}
	raw := map[string]any{}
	for name, text := range settings {
		raw[name] = text
	}
	hosts, programs := map[string]any{}, map[string]any{}
	for name, address := range l.hosts {
		hosts[name] = address
	}
	for name, path := range l.programs {
		programs[name] = path
	}
	about := map[string]any{}
	s.values = values{
		"source": l.source, "spillway": l.spillway, "host": hosts, "program": programs, "setting": raw, "service": about,
	}
	for _, name := range services {
		host, err := s.hostOf(f.service(name))
		if err != nil {
			return nil, err
		}
		s.hosts[name] = host
		about[name] = l.about(name, host)
	}
	return s, s.fillSettings(raw)
}

// hostOf returns the host of a service. Only settings may decide it: addresses depend on it.
func (s *scene) hostOf(service *Service) (string, error) {
	hosts := s.file.Hosts
	path := "services." + service.Name + ".host"
	if service.Host == "" {
		if len(hosts) == 0 {
			return "", nil
		}
		return hosts[0].Name, nil
	}
	text, err := s.text(path, service.Host, values{"setting": s.values["setting"]})
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(hosts, func(h Host) bool { return h.Name == text }) {
		return "", s.file.mistake(path, "%q is no host of this file", text)
	}
	return text, nil
}

// about is what other services may know of one.
func (l *layout) about(service, host string) map[string]any {
	port, addr := map[string]any{}, map[string]any{}
	for name, number := range l.ports[service] {
		port[name] = number
		addr[name] = l.address(host) + ":" + strconv.Itoa(number)
	}
	return map[string]any{
		"address": l.address(host), "port": port, "addr": addr, "folder": l.folders[service], "data": l.data[service],
	}
}

// fillSettings fills in the templates of settings, which may name one another.
func (s *scene) fillSettings(settings map[string]any) error {
	for range nestingMax {
		open := false
		for _, name := range slices.Sorted(maps.Keys(settings)) {
			text := settings[name].(string)
			if !strings.Contains(text, "{{") {
				continue
			}
			filled, err := s.text(s.file.pathOf("settings."+name, text), text, s.values)
			if err != nil {
				return err
			}
			if len(filled) > settingMax {
				return s.file.mistake(s.file.pathOf("settings."+name, text), "is longer than %d bytes when it is filled in", settingMax)
			}
			settings[name] = filled
			open = open || strings.Contains(filled, "{{")
		}
		if !open {
			return nil
		}
	}
	return s.file.mistake("settings", "settings name each other in a circle, or more than %d deep", nestingMax)
}

// settings returns the settings as filled in.
func (s *scene) settings() map[string]string {
	filled := map[string]string{}
	for name, text := range s.values["setting"].(map[string]any) {
		filled[name] = text.(string)
	}
	return filled
}

// of returns the values of one service's own templates.
func (s *scene) of(service *Service) values {
	own := values(maps.Clone(map[string]any(s.values)))
	for name, value := range s.layout.about(service.Name, s.hosts[service.Name]) {
		own[name] = value
	}
	own["user"] = service.User
	return own
}

var (
	templatePlace   = regexp.MustCompile(`^template: .*?:(\d+)(?::(\d+))?: (?s:(.*))$`)
	templateUnknown = regexp.MustCompile(`at <([^>]*)>: (?:map has no entry for key|nil data; no entry for key) "([^"]*)"`)
)

// text fills in a template of the experiment's file; path is its place there.
func (s *scene) text(path, text string, v values) (string, error) {
	filled, _, message := execute(text, v)
	if message != "" {
		return "", s.file.mistake(path, "%s", message)
	}
	return filled, nil
}

// texts fills in a list of templates.
func (s *scene) texts(path string, list []string, v values) ([]string, error) {
	filled := make([]string, len(list))
	for i, text := range list {
		var err error
		if filled[i], err = s.text(fmt.Sprintf("%s.%d", path, i), text, v); err != nil {
			return nil, err
		}
	}
	return filled, nil
}

// template reads and fills in the template file of one of a service's files. It returns the file's path too.
func (s *scene) template(service *Service, name string) (text, path string, err error) {
	at := "services." + service.Name + ".files." + name
	v := s.of(service)
	file, err := s.text(at, service.Files[name], v)
	if err != nil {
		return "", "", err
	}
	path = file
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.layout.source, file)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return "", "", s.file.mistake(at, "%v", err)
	}
	filled, where, message := execute(string(source), v)
	if message != "" {
		return "", "", Mistakes{{File: path, Line: where.line, Column: where.column, Message: message}}
	}
	return filled, path, nil
}

// execute fills in a template; a message says in one line what is wrong with it, and where.
func execute(text string, v values) (filled string, at place, message string) {
	if !strings.Contains(text, "{{") {
		return text, place{}, ""
	}
	var b strings.Builder
	t, err := template.New("t").Option("missingkey=error").Parse(text)
	if err == nil {
		err = t.Execute(&b, map[string]any(v))
	}
	if err == nil {
		return b.String(), place{}, ""
	}
	at, message = place{line: 1, column: 1}, err.Error()
	if m := templatePlace.FindStringSubmatch(message); m != nil {
		at.line, _ = strconv.Atoi(m[1])
		if column, err := strconv.Atoi(m[2]); err == nil {
			at.column = column + 1
		}
		message = m[3]
	}
	if m := templateUnknown.FindStringSubmatch(message); m != nil {
		message = fmt.Sprintf("%s: there is no %q here", m[1], m[2])
	}
	return "", at, strings.ReplaceAll(message, "\n", " ")
}

// isMistake says whether the user's file is to blame for err.
func isMistake(err error) bool {
	var one Mistake
	var many Mistakes
	return errors.As(err, &one) || errors.As(err, &many)
}
