package doctor

import (
	_ "embed"
	"fmt"
	"math"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/expr-lang/expr"

	"spillway/internal/database"
	"spillway/internal/lab/sheet"
	"spillway/internal/yaml"
)

//go:embed checks.yaml
var checksFile []byte

// catalog is the contents of checks.yaml.
type catalog struct {
	Host       []check `yaml:"host"`
	Prediction []check `yaml:"prediction"`
	Postgres   []check `yaml:"postgres"`
	MySQL      []check `yaml:"mysql"`
	Servers    []check `yaml:"servers"`
}

// A check states one fact; its cases judge it.
type check struct {
	Name      string  `yaml:"name"`
	Group     string  `yaml:"group"`
	Source    string  `yaml:"source"`
	OldAdvice string  `yaml:"old_advice"`
	Cases     []words `yaml:"cases"`
	words     `yaml:",inline"`
}

// words are what a check or a case says under a condition.
type words struct {
	If         string `yaml:"if"`
	Status     string `yaml:"status"`
	Observed   string `yaml:"observed"`
	Arithmetic string `yaml:"arithmetic"`
	Why        string `yaml:"why"`
	Also       string `yaml:"also"`
	Fix        string `yaml:"fix"`
	Set        string `yaml:"set"`
}

func readCatalog() (*catalog, error) {
	c := &catalog{}
	file, err := yaml.Parse("checks.yaml", checksFile, yaml.Options{})
	if err == nil {
		file.Decode(c)
		err = file.Err()
	}
	return c, err
}

// CheckHost runs all checks of a host whose facts are known. Its only errors are mistakes in checks.yaml.
func CheckHost(f *Facts) ([]Finding, error) {
	c, err := readCatalog()
	if err != nil {
		return nil, err
	}
	return (&scope{Facts: f}).findings(c.Host)
}

// CheckServer runs all checks for the kind of server. It omits those of settings that the server does not have. f is used
// for a server on this host only, and may be nil.
func CheckServer(s *Server, f *Facts) ([]Finding, error) {
	c, err := readCatalog()
	if err != nil {
		return nil, err
	}
	if f == nil || !s.Local {
		f = &Facts{}
	}
	checks := c.Postgres
	if s.Driver == database.MySQL {
		checks = c.MySQL
	}
	findings, err := (&scope{Facts: f, server: s, Settings: s.Settings}).findings(slices.Concat(checks, c.Servers))
	return slices.DeleteFunc(findings, func(f Finding) bool { return f.Observed == "" }), err
}

// scope is what the expressions of checks.yaml may name: its fields and methods, and the fields of Facts.
type scope struct {
	*Facts
	Settings map[string]string // of the server
	Text     string            // the setting that has the name of the check
	Value    float64           // the same as a number, 0 if it is none
	IsNumber bool

	P *Prediction // nil: the checks are of something else
	W *Workload

	server *Server // nil: the checks are of something else
	err    error   // the first mistake in an expression
}

func (s *scope) findings(checks []check) ([]Finding, error) {
	var findings []Finding
	for _, c := range checks {
		f := Finding{Group: c.Group, Status: OK}
		switch {
		case s.P != nil:
			f.Group, f.Source = "prediction", "--for"
		case s.server != nil:
			s.Text = s.Settings[c.Name]
			s.Value = s.Setting(c.Name)
			_, err := strconv.ParseFloat(s.Text, 64)
			s.IsNumber = err == nil
			f.Group, f.Observed, f.Source = "database", s.Text, s.server.source(c.Name)
		}
		if !s.apply(&f, c.words) {
			continue
		}
		f.Name, f.OldAdvice = s.text(c.Name), c.OldAdvice
		if c.Source != "" {
			f.Source = c.Source
		}
		for _, one := range c.Cases {
			s.apply(&f, one)
		}
		findings = append(findings, f)
	}
	return findings, s.err
}

// apply makes a finding say the words if their condition holds.
func (s *scope) apply(f *Finding, w words) bool {
	if w.If != "" && s.eval(w.If) != true {
		return false
	}
	for _, one := range []struct {
		to   *string
		text string
	}{{&f.Observed, w.Observed}, {&f.Arithmetic, w.Arithmetic}, {&f.Why, w.Why}, {&f.Fix, w.Fix}, {(*string)(&f.Status), w.Status}} {
		if one.text != "" {
			*one.to = s.text(one.text)
		}
	}
	f.Why += s.text(w.Also)
	if key, value, ok := strings.Cut(s.text(w.Set), "="); ok {
		f.set(key, value)
	}
	return true
}

// inText is an expression in a text.
var inText = regexp.MustCompile(`\{[^{}]+\}`)

// text returns a text with the values of its expressions.
func (s *scope) text(text string) string {
	return inText.ReplaceAllStringFunc(text, func(code string) string { return fmt.Sprint(s.eval(code[1 : len(code)-1])) })
}

func (s *scope) eval(code string) any {
	program, err := expr.Compile(code, expr.Env(s))
	var value any
	if err == nil {
		value, err = expr.Run(program, s)
	}
	if err != nil && s.err == nil {
		s.err = fmt.Errorf("evaluate %q of checks.yaml: %w", code, err)
	}
	return value
}

// Setting is a setting of the server as a number, 0 if it is none.
func (s *scope) Setting(name string) float64 {
	n, _ := strconv.ParseFloat(s.Settings[name], 64)
	return n
}

// Preload is the command that loads one more library at the start of the server, "" if it is loaded. What is loaded stays: a server
// may not start without it.
func (s *scope) Preload(library string) string {
	loaded, visible := s.Settings["shared_preload_libraries"]
	if !visible {
		return fmt.Sprintf("add %s to those of SHOW shared_preload_libraries (this role may not read it), restart, ", library)
	}
	var quoted []string
	for one := range strings.SplitSeq(loaded+","+library, ",") {
		if one = strings.Trim(one, ` "`); one != "" && !slices.Contains(quoted, "'"+one+"'") {
			quoted = append(quoted, "'"+one+"'")
		}
	}
	if slices.Contains(strings.Split(strings.ReplaceAll(loaded, " ", ""), ","), library) {
		return ""
	}
	return fmt.Sprintf("ALTER SYSTEM SET shared_preload_libraries = %s;, restart, ", strings.Join(quoted, ", "))
}

// OfMemory compares a buffer with the host's memory, of which it should take between the shares least and most.
func (s *scope) OfMemory(bytes, least, most float64) string {
	if s.Memory() <= 0 {
		return fmt.Sprintf("start with %s to %s of the server's memory; that of a remote server is unknown", s.Share(least), s.Share(most))
	}
	return fmt.Sprintf("%s / %s of memory = %s; start with %s to %s", s.Size(bytes), s.Size(s.Memory()), s.Share(bytes/float64(s.Memory())),
		s.Share(least), s.Share(most))
}

// ReuseAge is the age in seconds from which tcp_tw_reuse would take a port in TIME_WAIT.
func (s *scope) ReuseAge() float64 {
	_, age := reuse(&Facts{TWReuse: 1, Timestamps: 1, TWReuseDelay: s.TWReuseDelay}, false)
	return age
}

// RateText says which rate never uses up the ports.
func (s *scope) RateText() string {
	if s.P.MaxRateHz == nil {
		return "no rate uses up the ports"
	}
	return fmt.Sprintf("up to %s requests/s never use up the ports", s.Count(*s.P.MaxRateHz))
}

// WorstRunOut is the number of seconds after which ports are used up if the client closes every connection first, nil if they last.
func (s *scope) WorstRunOut() *float64 {
	worst := *s.W
	worst.Closing, worst.Closes = nil, Client
	return Predict(s.Facts, &worst).RunOutSeconds
}

// RaiseFiles is how a process gets more open files. No process may go above its hard limit; only root raises that.
func (s *scope) RaiseFiles(want int, hard int64) string {
	unit := fmt.Sprintf("LimitNOFILE=%d in a systemd unit", want)
	if hard >= 0 && int64(want) > hard {
		return fmt.Sprintf("ulimit -n %d is the most that the hard limit allows; root raises that: %s, nofile in "+
			"/etc/security/limits.conf, or ulimit -Hn %d", hard, unit, want)
	}
	return fmt.Sprintf("ulimit -n %d in the shell; %s", want, unit)
}

// FileLimit writes a limit of open files.
func (s *scope) FileLimit(n int64) string {
	switch {
	case n < 0:
		return "unknown"
	case n == math.MaxInt64:
		return "no limit"
	}
	return sheet.Integer(n)
}

// PowerOfTwo is the smallest power of two that is at least n, which is positive.
func (s *scope) PowerOfTwo(n int) int { return 1 << bits.Len(uint(n-1)) }

// Mebibytes rounds down to whole MiB.
func (s *scope) Mebibytes(bytes float64) int64 { return int64(bytes) >> 20 }

// Count, Plural, Seconds, Milliseconds, Share, Percent and Size write a number as package sheet does.
func (s *scope) Count(n any) string               { return sheet.Number(number(n)) }
func (s *scope) Plural(n any, noun string) string { return sheet.Plural(number(n), noun) }
func (s *scope) Seconds(n any) string             { return sheet.Duration(number(n)) }
func (s *scope) Milliseconds(n any) string        { return sheet.Duration(number(n) / 1e3) }
func (s *scope) Share(n any) string               { return sheet.Share(number(n)) }
func (s *scope) Percent(n any) string             { return sheet.Text(number(n), sheet.UnitPercent) }
func (s *scope) Size(n any) string                { return sheet.Size(number(n)) }

// number is a number of an expression.
func number(n any) float64 {
	switch n := n.(type) {
	case int:
		return float64(n)
	case int64:
		return float64(n)
	case *float64:
		return *n
	}
	return n.(float64)
}
