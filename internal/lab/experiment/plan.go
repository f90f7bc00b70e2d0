package experiment

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// overhead is the time of a level beyond its load, to start it and to write its file.
const overhead = time.Second

// loadDuration is the default of `spillway load`.
const loadDuration = 10 * time.Second

// quickMax is the longest quick run.
const quickMax = 10 * time.Minute

// A Plan is the order and the estimated time of a run.
type Plan struct {
	Variants []VariantFacts
	Levels   []LevelFacts
	Trials   [][]TrialPlan // by block
	// Least is the time of the loads, and of peak searches at their limit. Most adds every cool-down at its timeout. Neither
	// includes the start of services, nor levels that end after a number of requests; Open is true if there are any.
	Least, Most time.Duration
	Open        bool
}

// Options override the file.
type Options struct {
	Quick bool     `help:"Use the file's quick block: ranges only, no verdicts."`
	Only  []string `placeholder:"VARIANT" help:"Run only these variants and their baselines."`
	Seed  uint64   `placeholder:"N" help:"Seed for the order of variants; 0 draws one. It is in the results."`
	// CheckLoad returns what is wrong with arguments of `spillway load`, the URL first. nil: they are not checked.
	CheckLoad func(args []string) error `kong:"-"`
}

// Apply returns the file with the options applied. An unknown variant is an error.
func (f *File) Apply(o Options) (*File, error) {
	applied := *f
	if o.Quick {
		if f.Quick == nil {
			return nil, f.mistake("", "--quick: the file has no quick block")
		}
		applied.applyQuick()
	}
	if len(o.Only) > 0 {
		unknown := slices.DeleteFunc(slices.Clone(o.Only), func(name string) bool { return f.variant(name) != nil })
		if len(unknown) > 0 {
			return nil, f.mistake("", "--only %s: the file has no such variant", strings.Join(unknown, ", "))
		}
		applied.Variants = slices.DeleteFunc(slices.Clone(f.Variants), func(v Variant) bool { return !f.selected(v.Name, o.Only) })
		applied.AA = f.AA && f.selected(f.Baseline, o.Only)
	}
	return &applied, nil
}

// selected reports whether the variant, or one that is compared with it, is in only.
func (f *File) selected(name string, only []string) bool {
	for _, other := range only {
		for v := f.variant(other); v != nil; v = f.variant(v.Baseline) {
			if v.Name == name {
				return true
			}
		}
	}
	return false
}

func (f *File) applyQuick() {
	q := f.Quick
	if q.Blocks != 0 {
		f.Blocks = q.Blocks
	}
	if len(q.Levels) > 0 {
		f.Levels = q.Levels
	}
	f.Levels = slices.Clone(f.Levels)
	for i := range f.Levels {
		if len(q.Levels) == 0 {
			f.Levels[i].Load = f.Levels[i].with(Load{Duration: q.Load.Duration, Requests: q.Load.Requests, Warmup: q.Load.Warmup})
		}
	}
	f.Load = f.Load.with(q.Load)
	if f.Peak != nil && q.Peak != nil {
		peak := *f.Peak
		override(reflect.ValueOf(&peak).Elem(), reflect.ValueOf(*q.Peak))
		f.Peak = &peak
	}
	timing := q.Cooldown
	timing.setDefaults(f.Cooldown)
	f.Cooldown = timing
}

// with returns l with the flags of other applied.
func (l Load) with(other Load) Load {
	override(reflect.ValueOf(&l).Elem(), reflect.ValueOf(other))
	return l
}

// override sets each field of v that is set in other.
func override(v, other reflect.Value) {
	for i := range v.NumField() {
		switch field := other.Field(i); {
		case field.Kind() == reflect.Struct:
			override(v.Field(i), field)
		case !field.IsZero():
			v.Field(i).Set(field)
		}
	}
}

// Plan checks every template and every load of the file for each variant and level, and plans the run. source is the folder of the file.
func (f *File) Plan(source string, o Options) (*Plan, error) {
	p := &Plan{}
	for i := range f.Variants {
		facts := f.facts(&f.Variants[i])
		p.Variants = append(p.Variants, facts)
		if f.AA && facts.Name == f.Baseline {
			control := facts
			control.Name, control.Again, control.Baseline = facts.Name+controlSuffix, true, facts.Name
			p.Variants = append(p.Variants, control)
		}
	}
	for i := range f.Levels {
		level := &f.Levels[i]
		p.Levels = append(p.Levels, LevelFacts{Name: level.Name, Settings: level.Settings, Flags: f.Load.with(level.Load).flags()})
	}
	p.shuffle(f, o.Seed)
	c := checker{file: f, layout: f.placeholders(source), check: o.CheckLoad}
	fixed, err := f.fixedData(c.layout)
	if err == nil {
		err = c.services(fixed)
	}
	if err != nil {
		return nil, err
	}
	for i := range p.Variants {
		if err := c.variant(&p.Variants[i]); err != nil {
			return nil, fmt.Errorf("variant %s: %w", p.Variants[i].Name, err)
		}
	}
	blocks := time.Duration(f.Blocks)
	p.Least, p.Most, p.Open = c.least*blocks, c.most*blocks, c.open
	if o.Quick && p.Least > quickMax {
		return nil, f.mistake("quick", "takes %v at least; a quick run stays below %v", p.Least.Round(time.Second), quickMax)
	}
	return p, nil
}

// Time describes how long a number of the plan's blocks takes if they start now.
func (p *Plan) Time(now time.Time, blocks int) string {
	least := p.Least / time.Duration(len(p.Trials)) * time.Duration(blocks)
	most := p.Most / time.Duration(len(p.Trials)) * time.Duration(blocks)
	text := fmt.Sprintf("takes %s to %s, and the start of services: ends between %s and %s",
		sheet.Duration(least.Seconds()), sheet.Duration(most.Seconds()), clockTime(now, least), clockTime(now, most))
	if p.Open {
		text += "; levels of a number of requests are not counted"
	}
	return text
}

// clockTime formats a time of day, with the date if it is on another day.
func clockTime(now time.Time, later time.Duration) string {
	at := now.Add(later)
	if at.Format(time.DateOnly) != now.Format(time.DateOnly) {
		return at.Format("2006-01-02 15:04")
	}
	return at.Format("15:04")
}

// shuffle chooses the order of each block.
func (p *Plan) shuffle(f *File, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	for range f.Blocks {
		var trials []TrialPlan
		for _, i := range random.Perm(len(p.Variants)) {
			trial := TrialPlan{Variant: p.Variants[i].Name}
			for _, level := range p.Levels {
				trial.Levels = append(trial.Levels, level.Name)
			}
			if f.ShuffleLevels {
				random.Shuffle(len(trial.Levels), func(a, b int) { trial.Levels[a], trial.Levels[b] = trial.Levels[b], trial.Levels[a] })
			}
			trials = append(trials, trial)
		}
		p.Trials = append(p.Trials, trials)
	}
}

// checker fills in every template once and adds up the time of the loads.
type checker struct {
	file        *File
	layout      *layout
	check       func(args []string) error
	least, most time.Duration // of one block
	open        bool
}

func (c *checker) variant(facts *VariantFacts) error {
	if len(c.file.Levels) == 0 {
		if err := c.level(facts, nil); err != nil {
			return err
		}
	}
	for i := range c.file.Levels {
		if err := c.level(facts, &c.file.Levels[i]); err != nil {
			return fmt.Errorf("level %s: %w", c.file.Levels[i].Name, err)
		}
	}
	return nil
}

// level checks a variant at a level; nil is a file with only a peak.
func (c *checker) level(facts *VariantFacts, level *Level) error {
	data, err := c.file.variantData(c.layout, facts, level)
	if err != nil {
		return err
	}
	if err := c.services(data); err != nil {
		return err
	}
	if level != nil {
		load := c.file.Load.with(level.Load)
		if err := c.load(data, load); err != nil {
			return err
		}
		if err := c.duration(data, load); err != nil {
			return err
		}
	}
	if c.file.Peak != nil && (level == nil || level.Name == c.file.Levels[len(c.file.Levels)-1].Name) {
		return c.search(data)
	}
	return nil
}

// search checks a peak search and adds its time.
func (c *checker) search(s *templateData) error {
	load := c.file.peakLoad()
	path := c.file.pathOf("slo", load.SLO)
	text, err := s.text(path, load.SLO, s.values)
	if err != nil {
		return err
	}
	if slo, err := result.ParseSLO(text); err == nil && slo.LimitsRate() {
		return c.file.mistake(path, "the search finds the rate: remove the criterion on it")
	}
	load.Rate = fmt.Sprint(c.file.Peak.Start)
	c.add(c.file.Peak.MaxTime)
	return c.load(s, load)
}

// add adds the time of a load and of the cool-down before it.
func (c *checker) add(load time.Duration) {
	c.least += load
	c.most += load + c.file.Cooldown.Timeout
}

// load checks the templates and the arguments of a load.
func (c *checker) load(s *templateData, load Load) error {
	arguments, err := s.arguments(load)
	if err != nil {
		return err
	}
	return c.checkArguments(arguments)
}

// duration adds the time of a level.
func (c *checker) duration(s *templateData, load Load) error {
	once := overhead
	for _, text := range []string{load.Warmup, load.Duration} {
		text, err := s.text(s.file.pathOf("duration", text), text, s.values)
		if err != nil {
			return err
		}
		if text == "" {
			continue
		}
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return c.file.mistake("load", "%q is no duration: give its unit, such as 100ms, 2s or 5m", text)
		}
		once += d
	}
	switch {
	case load.Duration == "" && load.Requests != "":
		c.open = true
	case load.Duration == "":
		once += loadDuration
	}
	c.add(once)
	return nil
}

// checkArguments reports the argument that `spillway load` would refuse, with its place.
func (c *checker) checkArguments(arguments []argument) error {
	if c.check == nil {
		return nil
	}
	list := c.layout.secrets.expandAll(texts(arguments))
	err := c.check(list)
	if err == nil {
		return nil
	}
	place := arguments[0].path // the URL, unless another argument is to blame
	for i := 1; i < len(arguments); i++ {
		without := c.check(slices.Delete(slices.Clone(list), i, i+1))
		if without == nil || without.Error() != err.Error() {
			place = arguments[i].path
			break
		}
	}
	text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "load: "), "\n", " ")
	return c.file.mistake(place, "%s", c.layout.secrets.hide(text))
}

func (c *checker) services(s *templateData) error {
	for _, name := range s.services {
		service := c.file.service(name)
		if _, err := s.process(service); err != nil {
			return err
		}
		for _, file := range slices.Sorted(maps.Keys(service.Files)) {
			if _, _, err := s.template(service, file); err != nil {
				return err
			}
		}
	}
	return nil
}

// sum returns a hash of the file and of its templates in all variants.
func (f *File) sum(source string, plan *Plan) (string, error) {
	hash := sha256.New()
	hash.Write(f.source)
	paths := map[string]bool{}
	l := f.placeholders(source)
	levels := []*Level{nil}
	loads := []Load{f.Load}
	for k := range f.Levels {
		levels, loads = append(levels, &f.Levels[k]), append(loads, f.Levels[k].Load)
	}
	for i := range plan.Variants {
		for _, level := range levels {
			if data, err := f.variantData(l, &plan.Variants[i], level); err == nil { // without a level, settings may be missing
				data.templatePaths(paths)
			}
		}
	}
	for _, load := range loads {
		for _, name := range []string{load.BodyFile, load.RequestsFile, load.Flow} {
			if name != "" && !strings.Contains(name, "{{") {
				paths[filepath.Join(source, name)] = true
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("read template: %w", err)
		}
		fmt.Fprintf(hash, "\x00%s\x00%d\x00", filepath.Base(path), len(text))
		hash.Write(text)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func (s *templateData) templatePaths(paths map[string]bool) {
	for _, name := range s.services {
		service := s.file.service(name)
		for file := range service.Files {
			if _, path, err := s.template(service, file); err == nil {
				paths[path] = true
			}
		}
	}
}
