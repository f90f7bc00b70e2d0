package experiment

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"spillway/internal/yaml"
)

// fixedData returns the data of the services of scope experiment, which see no setting that varies.
func (f *File) fixedData(l *layout) (*templateData, error) {
	settings := maps.Clone(f.Settings)
	for _, level := range f.allLevels() {
		for name := range level.Settings {
			delete(settings, name)
		}
	}
	fixed := slices.DeleteFunc(f.serviceNames(), func(name string) bool { return f.service(name).Scope != ScopeExperiment })
	order, err := f.startOrder(fixed)
	if err != nil {
		return nil, err
	}
	return f.newTemplateData(l, order, settings, true)
}

// variantData returns the data of a variant at a level; nil is no level.
func (f *File) variantData(l *layout, facts *VariantFacts, level *Level) (*templateData, error) {
	settings := maps.Clone(facts.Settings)
	if level != nil {
		maps.Copy(settings, level.Settings)
	}
	return f.newTemplateData(l, facts.Services, settings, false)
}

// process describes the process of a service, with templates filled in.
type process struct {
	command []string
	env     []string
	host    string
	http    string   // ready
	probe   []string // ready
	prepare [][]string
	fill    [][]string
}

// process fills in the templates of a service.
func (s *templateData) process(service *Service) (*process, error) {
	v := s.of(service)
	path := "services." + service.Name
	p := &process{host: s.hosts[service.Name]}
	var err error
	if p.command, err = s.texts(path+".command", service.Command, v); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(service.Env)) {
		value, err := s.reference(path+".env."+name, service.Env[name], true, v)
		if err != nil {
			return nil, err
		}
		p.env = append(p.env, name+"="+value)
	}
	if p.http, err = s.reference(path+".ready.http", service.Ready.HTTP, false, v); err != nil {
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

func (s *templateData) commands(path string, commands [][]string, v map[string]any) ([][]string, error) {
	filled := make([][]string, len(commands))
	for i, command := range commands {
		var err error
		if filled[i], err = s.texts(yaml.Index(path, i), command, v); err != nil {
			return nil, err
		}
	}
	return filled, nil
}

// Limits of settings that use settings.
const (
	nestingMax = 10       // levels
	settingMax = 64 << 10 // bytes of a setting, filled in
)

// templateData is what templates see of services that run together: those of a variant at a level, or those of scope
// experiment.
type templateData struct {
	file     *File
	layout   *layout
	services []string          // in start order
	hosts    map[string]string // host by service
	values   map[string]any    // the names that all templates can use: {{.service.db.port.sql}}; a service adds its own
}

// newTemplateData collects the values and fills in the settings. fixed leaves out the settings that use anything that varies.
func (f *File) newTemplateData(l *layout, services []string, settings map[string]string, fixed bool) (*templateData, error) {
	s := &templateData{file: f, layout: l, services: services, hosts: map[string]string{}}
	filled := map[string]string{}
	for name, text := range settings {
		marked, err := s.mark(f.pathOf("settings."+name, text), text, true)
		if err != nil {
			return nil, err
		}
		filled[name] = marked
	}
	about := map[string]any{}
	s.values = map[string]any{
		"source": l.source, "spillway": l.spillway, "host": l.hosts, "program": l.programs, "setting": filled, "service": about,
	}
	for _, name := range services {
		host, err := s.hostOf(f.service(name))
		if err != nil {
			return nil, err
		}
		s.hosts[name] = host
		about[name] = l.templateValues(name, host)
	}
	return s, s.fillSettings(filled, fixed)
}

// hostOf returns the host of a service. Its template can use settings only, because addresses depend on it.
func (s *templateData) hostOf(service *Service) (string, error) {
	hosts := s.file.Hosts
	path := "services." + service.Name + ".host"
	if service.Host == "" {
		if len(hosts) == 0 {
			return "", nil
		}
		return hosts[0].Name, nil
	}
	text, err := s.text(path, service.Host, map[string]any{"setting": s.values["setting"]})
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(hosts, func(h Host) bool { return h.Name == text }) {
		return "", s.file.mistake(path, "%q is no host of this file", text)
	}
	return text, nil
}

// fillSettings fills in the templates of settings, which can use one another.
func (s *templateData) fillSettings(settings map[string]string, fixed bool) error {
	for range nestingMax {
		open := false
		for _, name := range slices.Sorted(maps.Keys(settings)) {
			text := settings[name]
			if !strings.Contains(text, "{{") {
				continue
			}
			filled, err := s.text(s.file.pathOf("settings."+name, text), text, s.values)
			if err != nil && fixed { // it varies, or it is a mistake that the check of a variant tells
				delete(settings, name)
				continue
			}
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
	return s.file.mistake("settings", "settings use each other in a circle, or more than %d levels deep", nestingMax)
}

// settings returns the settings, filled in, with references.
func (s *templateData) settings() map[string]string {
	filled := map[string]string{}
	for name, text := range s.values["setting"].(map[string]string) {
		filled[name] = unmark(text)
	}
	return filled
}

// of returns the values for the templates of one service.
func (s *templateData) of(service *Service) map[string]any {
	own := maps.Clone(s.values)
	maps.Copy(own, s.layout.templateValues(service.Name, s.hosts[service.Name]))
	own["user"] = service.User
	return own
}

var (
	templatePlace   = regexp.MustCompile(`^template: .*?:(\d+)(?::(\d+))?: (?s:(.*))$`)
	templateUnknown = regexp.MustCompile(`at <([^>]*)>: (?:map has no entry for key|nil data; no entry for key) "([^"]*)"`)
)

// text fills in a template at a path of the experiment's file.
func (s *templateData) text(path, text string, v map[string]any) (string, error) {
	filled, _, message := execute(text, v)
	if message != "" {
		return "", s.file.mistake(path, "%s", message)
	}
	return filled, nil
}

// reference fills in a template that may have references to secrets.
func (s *templateData) reference(path, text string, whole bool, v map[string]any) (string, error) {
	marked, err := s.mark(path, text, whole)
	if err != nil {
		return "", err
	}
	return s.text(path, marked, v)
}

// texts fills in a list of templates.
func (s *templateData) texts(path string, list []string, v map[string]any) ([]string, error) {
	filled := make([]string, len(list))
	for i, text := range list {
		var err error
		if filled[i], err = s.text(yaml.Index(path, i), text, v); err != nil {
			return nil, err
		}
	}
	return filled, nil
}

// template reads and fills in a template file of a service. It also returns the path of the template.
func (s *templateData) template(service *Service, name string) (text, path string, err error) {
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
		return "", "", yaml.Errors{{File: path, Line: where.Line, Column: where.Column, Message: message}}
	}
	return filled, path, nil
}

// execute fills in a template. A message is one line that describes an error; at is its place.
func execute(text string, v map[string]any) (filled string, at yaml.Place, message string) {
	if !strings.Contains(text, "{{") {
		return text, at, ""
	}
	var b strings.Builder
	t, err := template.New("t").Option("missingkey=error").Parse(text)
	if err == nil {
		err = t.Execute(&b, v)
	}
	if err == nil {
		return b.String(), at, ""
	}
	at.Line, at.Column, message = 1, 1, err.Error()
	if m := templatePlace.FindStringSubmatch(message); m != nil {
		at.Line, _ = strconv.Atoi(m[1])
		if column, err := strconv.Atoi(m[2]); err == nil {
			at.Column = column + 1
		}
		message = m[3]
	}
	if m := templateUnknown.FindStringSubmatch(message); m != nil {
		message = fmt.Sprintf("%s: there is no %q here", m[1], m[2])
	}
	return "", at, strings.ReplaceAll(message, "\n", " ")
}
