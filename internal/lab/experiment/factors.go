package experiment

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Variants differ only by values of declared factors, and each differs from its baseline in one factor, or in as many as it
// states. docs/reference/experiments.md has the full rules.

// find returns the first element for which is is true, nil if there is none.
func find[T any](all []T, is func(*T) bool) *T {
	for i := range all {
		if is(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

func (f *File) factor(name string) *Factor {
	return find(f.Factors, func(f *Factor) bool { return f.Name == name })
}

func (f *Factor) value(name string) *FactorValue {
	return find(f.Values, func(v *FactorValue) bool { return v.Name == name })
}

func (f *File) variant(name string) *Variant {
	return find(f.Variants, func(v *Variant) bool { return v.Name == name })
}

// owner returns the factor with a value for which of is true, "" if there is none.
func (f *File) owner(of func(*FactorValue) bool) string {
	for i := range f.Factors {
		for k := range f.Factors[i].Values {
			if of(&f.Factors[i].Values[k]) {
				return f.Factors[i].Name
			}
		}
	}
	return ""
}

func (f *File) settingOwner(name string) string {
	return f.owner(func(v *FactorValue) bool { return hasKey(v.Settings, name) })
}

func (f *File) serviceOwner(name string) string {
	return f.owner(func(v *FactorValue) bool { return slices.Contains(v.Services, name) })
}

// checkFactors checks that no two factors share a setting or a service, and that the values of a factor differ.
func (f *File) checkFactors(wrong reporter) {
	for _, factor := range f.Factors {
		path := "factors." + factor.Name
		wrong.checkWord(path, factor.Name, "factor")
		if len(factor.Values) < 2 {
			wrong(path, "a factor needs at least two values")
		}
		for k := range factor.Values {
			value := &factor.Values[k]
			f.checkValue(&factor, value, wrong)
			for _, other := range factor.Values[:k] {
				if maps.Equal(value.Settings, other.Settings) && sameServices(value.Services, other.Services) {
					wrong(path+".values."+value.Name, "is the same as %s", other.Name)
				}
			}
		}
	}
	for _, level := range f.allLevels() {
		for name := range level.Settings {
			if owner := f.settingOwner(name); owner != "" {
				wrong("levels", "the setting %s is given by the factor %s and by the level %s", name, owner, level.Name)
			}
		}
	}
}

// allLevels are the levels, and those of the quick block.
func (f *File) allLevels() []Level {
	if f.Quick == nil {
		return f.Levels
	}
	return slices.Concat(f.Levels, f.Quick.Levels)
}

func (f *File) checkValue(factor *Factor, value *FactorValue, wrong reporter) {
	path := "factors." + factor.Name + ".values." + value.Name
	if !fileWord.MatchString(value.Name) {
		wrong(path, "a value is named by letters, digits, _, - and .")
	}
	for _, name := range slices.Sorted(maps.Keys(value.Settings)) {
		at := path + ".settings." + name
		wrong.checkWord(at, name, "setting")
		switch owner := f.settingOwner(name); {
		case owner != factor.Name:
			wrong(at, "already belongs to the factor %s: a setting belongs to one factor", owner)
		case hasKey(f.Settings, name):
			wrong(at, "is also in settings: put what varies into its factor only")
		}
	}
	for name := range factor.Values[0].Settings {
		if !hasKey(value.Settings, name) {
			wrong(path, "does not set %s, as other values of this factor do", name)
		}
	}
	for name := range value.Settings {
		if !hasKey(factor.Values[0].Settings, name) {
			wrong(path, "sets %s, which other values of this factor do not", name)
		}
	}
	for _, name := range value.Services {
		switch owner := f.serviceOwner(name); {
		case f.service(name) == nil:
			wrong(path+".services", "%q is no service of this file", name)
		case owner != factor.Name:
			wrong(path+".services", "%s already belongs to the factor %s: a service belongs to one factor", name, owner)
		}
	}
}

func sameServices(a, b []string) bool {
	return slices.Equal(slices.Compact(slices.Sorted(slices.Values(a))), slices.Compact(slices.Sorted(slices.Values(b))))
}

// checkVariants checks the names of variants, their values, and how they differ.
func (f *File) checkVariants(wrong reporter) {
	if len(f.Variants) == 0 {
		wrong("variants", "needs at least one variant")
		return
	}
	if f.variant(f.Baseline) == nil {
		wrong("baseline", "%q is no variant of this file", f.Baseline)
		return
	}
	seen := map[string]string{}
	for i := range f.Variants {
		v := &f.Variants[i]
		path := "variants." + v.Name
		if !fileWord.MatchString(v.Name) || strings.HasSuffix(v.Name, controlSuffix) {
			wrong(path, "a variant is named by letters, digits, _, - and ., and does not end with %s", controlSuffix)
		}
		for name, value := range v.Values {
			if factor := f.factor(name); factor == nil {
				wrong(path+".values."+name, "is no factor of this file")
			} else if factor.value(value) == nil {
				wrong(path+".values."+name, "%q is no value of this factor", value)
			}
		}
		values, err := f.resolve(v)
		if err != nil {
			wrong(path, "%v", err)
			continue
		}
		f.checkDifference(v, values, wrong)
		key := fmt.Sprint(values) // fmt sorts the keys of a map
		if same, repeated := seen[key]; repeated && v.Baseline != same {
			wrong(path, "is the same as %s; for an A/A pair say aa: true", same)
		}
		seen[key] = v.Name
	}
}

func (f *File) checkDifference(v *Variant, values map[string]string, wrong reporter) {
	path := "variants." + v.Name
	if v.Baseline == "" {
		if v.Factors != 0 {
			wrong(path+".factors", "the baseline is compared with nothing; leave factors out")
		}
		return
	}
	base, err := f.resolve(f.variant(v.Baseline))
	if err != nil {
		return // reported for that variant
	}
	differs := f.differs(values, base)
	allowed := max(1, v.Factors)
	switch {
	case len(differs) == 0:
		wrong(path, "does not differ from %s; for an A/A pair say aa: true", v.Baseline)
	case len(differs) > allowed:
		wrong(path, "differs from %s in %d factors (%s): change one at a time, name another baseline, or say factors: %d",
			v.Baseline, len(differs), strings.Join(differs, ", "), len(differs))
	case len(differs) < allowed:
		wrong(path+".factors", "says %d, but it differs from %s in %d (%s)", allowed, v.Baseline, len(differs), strings.Join(differs, ", "))
	}
}

// resolve returns the value of each factor for a variant, including inherited values.
func (f *File) resolve(v *Variant) (map[string]string, error) {
	values := map[string]string{}
	for at, steps := v, 0; ; steps++ {
		for factor, value := range at.Values {
			if !hasKey(values, factor) {
				values[factor] = value
			}
		}
		if at.Baseline == "" {
			break
		}
		next := f.variant(at.Baseline)
		if next == nil {
			return nil, fmt.Errorf("its baseline %q is no variant of this file", at.Baseline)
		}
		if steps > len(f.Variants) {
			return nil, fmt.Errorf("its baselines form a circle")
		}
		at = next
	}
	for i := range f.Factors {
		if name := f.Factors[i].Name; !hasKey(values, name) {
			return nil, fmt.Errorf("neither it nor its baseline gives the factor %s a value", name)
		}
	}
	return values, nil
}

// differs lists the factors in which two variants differ, in the file's order.
func (f *File) differs(a, b map[string]string) []string {
	var names []string
	for i := range f.Factors {
		if name := f.Factors[i].Name; a[name] != b[name] {
			names = append(names, name)
		}
	}
	return names
}

// facts describes a variant of a valid file.
func (f *File) facts(v *Variant) VariantFacts {
	values, err := f.resolve(v)
	if err != nil {
		panic("bug: " + err.Error()) // validate has checked it
	}
	facts := VariantFacts{Name: v.Name, Title: v.Title, Baseline: v.Baseline, Values: values, Settings: maps.Clone(f.Settings)}
	if facts.Settings == nil {
		facts.Settings = map[string]string{}
	}
	var chosen []string
	for i := range f.Factors {
		value := f.Factors[i].value(values[f.Factors[i].Name])
		maps.Copy(facts.Settings, value.Settings)
		chosen = append(chosen, value.Services...)
	}
	if v.Baseline != "" {
		base, _ := f.resolve(f.variant(v.Baseline))
		facts.Differs = f.differs(values, base)
	}
	running := slices.DeleteFunc(f.serviceNames(), func(name string) bool {
		return f.serviceOwner(name) != "" && !slices.Contains(chosen, name)
	})
	facts.Services, _ = f.startOrder(running) // validate has checked that there is no circle
	return facts
}

// checkScopes checks that services of scope experiment depend on nothing that varies.
func (f *File) checkScopes(wrong reporter) {
	for _, s := range f.Services {
		if s.Scope != ScopeExperiment {
			continue
		}
		if owner := f.serviceOwner(s.Name); owner != "" {
			wrong("services."+s.Name+".scope", "a service of the factor %s cannot have scope: experiment, which serves all variants", owner)
		}
		for _, other := range s.After {
			if f.service(other).Scope != ScopeExperiment {
				wrong("services."+s.Name+".after", "%s runs for one block only", other)
			}
		}
	}
}

// checkWatch checks the names and services of watch.
func (f *File) checkWatch(wrong reporter) {
	watched := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(f.Watch.Processes)) {
		path := "watch.processes." + name
		wrong.checkWord(path, name, "process")
		for _, service := range f.Watch.Processes[name] {
			if f.service(service) == nil {
				wrong(path, "%q is no service of this file", service)
			} else if other, twice := watched[service]; twice {
				wrong(path, "%s is already watched as %s", service, other)
			}
			watched[service] = name
		}
		for i := range f.Variants {
			facts := f.facts(&f.Variants[i])
			running := slices.DeleteFunc(slices.Clone(facts.Services), func(s string) bool { return !slices.Contains(f.Watch.Processes[name], s) })
			if len(running) > 1 {
				wrong(path, "%s run together in %s: give each its own name", strings.Join(running, " and "), facts.Name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Watch.Databases)) {
		wrong.checkWord("watch.databases."+name, name, "database")
	}
}

// watchedAs returns the name under which a service is watched, "" if it is not watched.
func (f *File) watchedAs(service string) string {
	if f.Watch.Processes == nil {
		return service
	}
	for name, services := range f.Watch.Processes {
		if slices.Contains(services, service) {
			return name
		}
	}
	return ""
}
