package result

import (
	"maps"
	"slices"
	"sort"
)

// Thin leaves out every second sample of each subject, so that what keeps samples in memory is bounded. Kept in each
// stretch between the times given (where steps begin, ascending) are the first and last sample of each subject, those
// with the highest and lowest value of any gauge, and those with an error: growth and extremes stay what they are, means become
// those of half the samples. The order stays.
func Downsample(samples []Sample, starts []float64) []Sample {
	type key struct {
		host, sampler, subject string
		stretch                int
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

// keepOf marks what stays of one subject in one stretch.
func keepOf(samples []Sample, group []int, keep []bool) {
	highest, lowest := make(map[string]int), make(map[string]int) // by gauge
	for n, i := range group {
		keep[i] = n%2 == 0 || n == len(group)-1 || samples[i].Error != ""
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
		for _, i := range slices.Collect(maps.Values(extremes)) {
			keep[i] = true
		}
	}
}
