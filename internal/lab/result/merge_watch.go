package result

import (
	"cmp"
	"fmt"
	"slices"
)

// addWatches takes over who was watched in each run and the samples. Hosts get names that no two share; times stay as
// each run's own clock counted them from its own start, like its seconds.
func (r *Run) addWatches(runs []*Run) {
	taken := make(map[string]bool)
	for _, run := range runs {
		names := run.hostNames(taken)
		for _, watch := range run.Watches {
			watch.Host = names[watch.Host]
			r.Watches = append(r.Watches, watch)
		}
		for _, sample := range run.Samples {
			sample.Host = names[sample.Host]
			r.Samples = append(r.Samples, sample)
		}
	}
	slices.SortStableFunc(r.Samples, func(a, b Sample) int { return cmp.Compare(a.At, b.At) })
}

// hostNames gives each host of the run a name that is not taken, and takes it.
func (r *Run) hostNames(taken map[string]bool) map[string]string {
	names := make(map[string]string)
	name := func(host, machine string) {
		if _, seen := names[host]; seen {
			return
		}
		base := cmp.Or(host, machine, "host")
		unique := base
		for n := 2; taken[unique]; n++ {
			unique = fmt.Sprintf("%s (%d)", base, n)
		}
		taken[unique], names[host] = true, unique
	}
	for i := range r.Watches {
		name(r.Watches[i].Host, cmp.Or(r.Watches[i].Machine.Host, r.Header.Machine.Host))
	}
	for i := range r.Samples { // of a host whose watch record is missing
		name(r.Samples[i].Host, r.Header.Machine.Host)
	}
	return names
}
