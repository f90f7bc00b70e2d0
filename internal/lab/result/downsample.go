package result

import (
	"sort"
)

// Downsample removes about every second sample of each subject, so that samples kept in memory stay bounded.
//
// starts are the times at which phases begin, in ascending order. In each phase, Downsample keeps the first and last sample of a
// subject, the extremes of each gauge, and samples with an error, after a gap or at the border of a step. Growth and extremes do not
// change; means are of fewer samples. The order of samples does not change.
func Downsample(samples []Sample, starts []float64) []Sample {
	type key struct {
		host, sampler, subject string
		phase                  int
	}
	groups := make(map[key][]int)
	for i := range samples {
		s := &samples[i]
		k := key{s.Host, s.Sampler, s.Subject, sort.SearchFloat64s(starts, s.At)}
		groups[k] = append(groups[k], i)
	}
	keep := make([]bool, len(samples))
	for _, group := range groups {
		keepOf(samples, group, keep)
	}
	kept := make([]Sample, 0, len(samples)/2)
	for i := range samples {
		if keep[i] {
			kept = append(kept, samples[i])
		}
	}
	return kept
}

// keepOf marks the samples of one subject in one phase that stay.
func keepOf(samples []Sample, group []int, keep []bool) {
	highest, lowest := make(map[string]int), make(map[string]int) // by gauge
	for n, i := range group {
		keep[i] = n%2 == 0 || n == len(group)-1 || samples[i].Error != "" || samples[i].Gap != nil || samples[i].Border
		for name, v := range samples[i].Values {
			if Counter(name) {
				continue
			}
			if top, seen := highest[name]; !seen || v > samples[top].Values[name] {
				highest[name] = i
			}
			if bottom, seen := lowest[name]; !seen || v < samples[bottom].Values[name] {
				lowest[name] = i
			}
		}
	}
	for _, extremes := range []map[string]int{highest, lowest} {
		for _, i := range extremes {
			keep[i] = true
		}
	}
}
