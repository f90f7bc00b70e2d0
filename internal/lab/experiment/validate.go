package experiment

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway/internal/yaml"

	"golang.org/x/sys/unix"
)

var (
	word     = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)            // a name in templates
	fileWord = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$`) // a name of a directory or file
	sysctl   = regexp.MustCompile(`^net\.[a-zA-Z0-9_]+(\.[a-zA-Z0-9_-]+)+$`)
	portSpan = regexp.MustCompile(`^([0-9]{1,5})-([0-9]{1,5})$`)
)

// controlSuffix ends the name of the A/A control.
const controlSuffix = "-again"

// setDefaults fills in defaults.
func (f *File) setDefaults() {
	if f.Blocks == 0 && !hasKey(f.places, "blocks") {
		f.Blocks = 10
	}
	if f.Baseline == "" && len(f.Variants) > 0 {
		f.Baseline = f.Variants[0].Name
	}
	for i := range f.Variants {
		if v := &f.Variants[i]; v.Baseline == "" && v.Name != f.Baseline {
			v.Baseline = f.Baseline
		}
	}
	for i := range f.Needs {
		if n := &f.Needs[i]; len(n.Find) == 0 {
			n.Find = []string{n.Name}
		}
	}
	for i := range f.Services {
		f.Services[i].setDefaults()
	}
	f.Cooldown.setDefaults(Cooldown{Timeout: 75 * time.Second, TimeWait: 50})
	f.Peak.setDefaults()
	nameLevels(f.Levels)
	if f.Quick != nil {
		nameLevels(f.Quick.Levels)
	}
}

func (s *Service) setDefaults() {
	s.Scope = cmp.Or(s.Scope, ScopeBlock)
	s.Ready.Timeout = cmp.Or(s.Ready.Timeout, 30*time.Second)
	if s.Ready.HTTP == "" && s.Ready.TCP == nil && s.Ready.Command == nil {
		s.Ready.TCP = s.Ports
	}
	s.Stop.Signal = cmp.Or(s.Stop.Signal, "TERM")
	s.Stop.Grace = cmp.Or(s.Stop.Grace, 10*time.Second)
}

func (c *Cooldown) setDefaults(other Cooldown) {
	c.Timeout = cmp.Or(c.Timeout, other.Timeout)
	c.TimeWait = cmp.Or(c.TimeWait, other.TimeWait)
}

func (p *Peak) setDefaults() {
	if p == nil {
		return
	}
	p.Start = cmp.Or(p.Start, 100)
	p.Max = cmp.Or(p.Max, 100_000)
	p.Step = cmp.Or(p.Step, 0.05)
	p.MaxTime = cmp.Or(p.MaxTime, 10*time.Minute)
}

// nameLevels gives names to the levels without one.
func nameLevels(levels []Level) {
	for i := range levels {
		level := &levels[i]
		if level.Name != "" {
			continue
		}
		var parts []string
		for _, part := range [][2]string{{"rate-", level.Rate}, {"connections-", level.Connections}, {"per-connection-", level.PerConnection}} {
			if part[1] != "" {
				parts = append(parts, part[0]+part[1])
			}
		}
		for _, name := range slices.Sorted(maps.Keys(level.Settings)) {
			parts = append(parts, name+"-"+level.Settings[name])
		}
		level.Name = strings.Join(parts, "-")
	}
}

// pathOf returns the path of a value by its text and the end of its path.
func (f *File) pathOf(suffix, text string) string {
	for _, path := range slices.Sorted(maps.Keys(f.places)) {
		if (path == suffix || strings.HasSuffix(path, "."+suffix) || strings.Contains(path, "."+suffix+".") ||
			strings.Contains(path, "."+suffix+"[")) && f.places[path].Text == text {
			return path
		}
	}
	return suffix
}

// mistake returns a mistake at the place of path, or at the nearest enclosing block.
func (f *File) mistake(path, format string, args ...any) yaml.Error {
	m := yaml.Error{File: f.name, Line: 1, Column: 1, Path: path, Message: fmt.Sprintf(format, args...)}
	for at := path; at != ""; at = at[:max(0, strings.LastIndexAny(at, ".["))] {
		if p, ok := f.places[at]; ok {
			m.Line, m.Column = p.Line, p.Column
			break
		}
	}
	return m
}

// validate checks everything that needs no template and no program.
func (f *File) validate() yaml.Errors {
	var found yaml.Errors
	var wrong reporter = func(path, format string, args ...any) {
		found = append(found, f.mistake(path, format, args...))
	}
	if !fileWord.MatchString(f.Name) {
		wrong("name", "must be a word of letters, digits, _, - and .")
	}
	if f.Blocks < 1 || f.Blocks > 999 {
		wrong("blocks", "must be from 1 to 999")
	}
	if len(f.Services) == 0 {
		wrong("services", "needs at least one service")
	}
	if len(f.Levels) == 0 && f.Peak == nil {
		wrong("levels", "needs at least one level or a peak")
	}
	for _, name := range slices.Sorted(maps.Keys(f.Settings)) {
		wrong.checkWord("settings."+name, name, "setting")
	}
	f.checkSecrets(wrong)
	f.checkNeeds(wrong)
	f.checkHosts(wrong)
	f.checkShares(wrong)
	f.checkServices(wrong)
	f.checkLevels("levels", f.Levels, wrong)
	f.checkLoad("load", f.Load, wrong)
	f.checkPeak("peak", f.Peak, wrong)
	if f.Quick != nil {
		f.checkLoad("quick.load", f.Quick.Load, wrong)
		f.checkLevels("quick.levels", f.Quick.Levels, wrong)
		f.checkPeak("quick.peak", f.Quick.Peak, wrong)
	}
	f.checkFactors(wrong)
	if len(found) == 0 {
		f.checkVariants(wrong)
	}
	if len(found) == 0 {
		f.checkScopes(wrong)
		f.checkWatch(wrong)
		f.checkCharts(wrong)
	}
	return found
}

type reporter func(path, format string, args ...any)

// checkWord reports a name that templates cannot use.
func (wrong reporter) checkWord(path, name, what string) {
	if !word.MatchString(name) {
		wrong(path, "a %s is named by lower-case letters, digits and _", what)
	}
}

func (f *File) checkNeeds(wrong reporter) {
	for _, n := range f.Needs {
		if !word.MatchString(n.Name) {
			wrong("needs."+n.Name, "a program is named by lower-case letters, digits and _; give its real name under find")
		}
		if n.Package == "" {
			wrong("needs."+n.Name, "package is missing: the Debian package that has the program")
		}
	}
}

func (f *File) checkHosts(wrong reporter) {
	if len(f.Hosts) > 200 {
		wrong("hosts", "has more than 200 hosts")
	}
	for _, h := range f.Hosts {
		wrong.checkWord("hosts."+h.Name, h.Name, "host")
		if _, _, ok := parseSpan(h.Ports); h.Ports != "" && !ok {
			wrong("hosts."+h.Name+".ports", "must be a range such as 32768-60999 or a number of ports such as 2000, not %q", h.Ports)
		}
		for _, name := range slices.Sorted(maps.Keys(h.Sysctl)) {
			if !sysctl.MatchString(name) {
				wrong("hosts."+h.Name+".sysctl."+name, "must be a network setting, net.…")
			}
		}
	}
}

// KernelPorts is how many local ports the kernel gives by itself: 32768-60999.
const KernelPorts = 28232

// parseSpan reads "32768-60999", and "2000" as that many ports of the same beginning.
func parseSpan(text string) (low, high int, ok bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return 32768, 32767 + n, n > 0 && n <= KernelPorts
	}
	match := portSpan.FindStringSubmatch(text)
	if match == nil {
		return 0, 0, false
	}
	low, _ = strconv.Atoi(match[1])
	high, _ = strconv.Atoi(match[2])
	return low, high, low > 0 && low <= high && high < 65536
}

func (f *File) service(name string) *Service {
	return find(f.Services, func(s *Service) bool { return s.Name == name })
}

func (f *File) checkServices(wrong reporter) {
	for _, s := range f.Services {
		path := "services." + s.Name
		wrong.checkWord(path, s.Name, "service")
		if len(s.Command) == 0 {
			wrong(path, "command is missing")
		}
		if s.Scope != ScopeBlock && s.Scope != ScopeExperiment {
			wrong(path+".scope", "must be %s or %s", ScopeBlock, ScopeExperiment)
		}
		if s.Scope == ScopeBlock && (len(s.Fill) > 0 || s.Keep != "") {
			wrong(path, "fill and keep need scope: experiment, because data lives as long as the experiment")
		}
		for k, command := range slices.Concat(s.Prepare, s.Fill) {
			if len(command) == 0 {
				wrong(path, "command %d of prepare and fill is empty", k+1)
			}
		}
		if unix.SignalNum("SIG"+s.Stop.Signal) == 0 {
			wrong(path+".stop.signal", "must be a signal's name such as TERM, INT or QUIT")
		}
		f.checkServiceNames(&s, path, wrong)
	}
	if _, err := f.startOrder(f.serviceNames()); err != nil {
		wrong("services", "%v", err)
	}
}

// checkServiceNames checks the names that a service uses.
func (f *File) checkServiceNames(s *Service, path string, wrong reporter) {
	for i, port := range s.Ports {
		if !word.MatchString(port) || slices.Index(s.Ports, port) != i {
			wrong(path+".ports", "%q: a port needs a unique name of lower-case letters, digits and _", port)
		}
	}
	for _, port := range s.Ready.TCP {
		if !slices.Contains(s.Ports, port) {
			wrong(path+".ready.tcp", "%q is no port of the service", port)
		}
	}
	for _, other := range s.After {
		if f.service(other) == nil || other == s.Name {
			wrong(path+".after", "%q is not another service", other)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Files)) {
		if !filepath.IsLocal(name) {
			wrong(path+".files."+name, "must be a path inside the service's folder")
		}
	}
}

func (f *File) serviceNames() []string {
	names := make([]string, len(f.Services))
	for i := range f.Services {
		names[i] = f.Services[i].Name
	}
	return names
}

// startOrder sorts services so that each follows those in its after; otherwise they keep the file's order.
func (f *File) startOrder(names []string) ([]string, error) {
	var order []string
	for len(order) < len(names) {
		next := slices.IndexFunc(names, func(name string) bool {
			waits := slices.ContainsFunc(f.service(name).After, func(other string) bool {
				return slices.Contains(names, other) && !slices.Contains(order, other)
			})
			return !waits && !slices.Contains(order, name)
		})
		if next < 0 {
			return nil, fmt.Errorf("services wait for each other in a circle: check after")
		}
		order = append(order, names[next])
	}
	return order, nil
}

func (f *File) checkLevels(path string, levels []Level, wrong reporter) {
	for i := range levels {
		level, at := &levels[i], yaml.Index(path, i)
		if !fileWord.MatchString(level.Name) || level.Name == PeakName {
			wrong(at, "%q: give a name of letters, digits, _, - and . that is not %s", level.Name, PeakName)
		}
		if slices.ContainsFunc(levels[:i], func(l Level) bool { return l.Name == level.Name }) {
			wrong(at, "another level is also named %s: give it a name", level.Name)
		}
		f.checkLoad(at, level.Load, wrong)
		for _, name := range slices.Sorted(maps.Keys(level.Settings)) {
			wrong.checkWord(at+".settings."+name, name, "setting")
		}
		for name := range levels[0].Settings {
			if _, given := level.Settings[name]; !given && !hasKey(f.Settings, name) {
				wrong(at, "the setting %s is given by other levels and has no default", name)
			}
		}
		for name := range level.Settings {
			if !hasKey(levels[0].Settings, name) && !hasKey(f.Settings, name) {
				wrong(at+".settings."+name, "other levels do not give it, and it has no default in settings")
			}
		}
	}
}

func (f *File) checkLoad(path string, load Load, wrong reporter) {
	if load.Host != "" && !slices.ContainsFunc(f.Hosts, func(h Host) bool { return h.Name == load.Host }) {
		wrong(path+".host", "%q is no host of this file", load.Host)
	}
	for key, text := range map[string]string{"rate": load.Rate, "connections": load.Connections} {
		if strings.Contains(text, ",") && !strings.Contains(text, "{{") {
			wrong(path+"."+key, "must be one value, not a list: make each a level")
		}
	}
	for _, flag := range load.list() {
		if flag.isSwitch && flag.value != "true" && flag.value != "false" {
			wrong(path+"."+flag.key, "must be true or false")
		}
	}
}

// checkCharts checks the metrics and levels of charts.
func (f *File) checkCharts(wrong reporter) {
	var processes []string
	for i := range f.Services {
		if name := f.watchedAs(f.Services[i].Name); name != "" {
			processes = append(processes, name)
		}
	}
	for i, chart := range f.Charts {
		path := yaml.Index("charts", i)
		if !KnownMetric(chart.Metric, processes) {
			wrong(path+".metric", "%q is no metric of this experiment", chart.Metric)
		}
		named := func(l Level) bool { return l.Name == chart.Level }
		if chart.Level != "" && !slices.ContainsFunc(f.allLevels(), named) {
			wrong(path+".level", "%q is no level of this file", chart.Level)
		}
	}
}

func hasKey[V any](m map[string]V, key string) bool {
	_, ok := m[key]
	return ok
}
