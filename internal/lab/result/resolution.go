package result

import "slices"

// resolvedUnits is how many units of its resolution a counter must grow by for a quotient of its growth to be a figure.
const resolvedUnits = 10

// Divide divides the growth of a counter. If the counter grew by fewer than resolvedUnits units of its resolution, below is
// true and the quotient is that of so many units, an upper bound. A resolution of 0 is exact.
func Divide(growth, resolution, by float64) (quotient float64, below bool) {
	least := resolvedUnits * resolution
	return max(growth, least) / by, growth < least
}

// Below reports whether a figure, named as in JSON, is only an upper bound.
func (u *ProcessUsage) Below(name string) bool { return slices.Contains(u.BelowResolution, name) }

// divideCPU sets the CPU time per second and per request.
func (u *ProcessUsage) divideCPU(seconds, requests float64) {
	both := plus(u.CPUUser, u.CPUSystem)
	u.CPUCores = u.divide("cpu_cores", both, u.CPUResolution, seconds, nil)
	u.CPUUserCores = u.divide("cpu_user_cores", u.CPUUser, u.CPUSplitResolution, seconds, u.CPUCores)
	u.CPUSystemCores = u.divide("cpu_system_cores", u.CPUSystem, u.CPUSplitResolution, seconds, u.CPUCores)
	u.CPUPerRequest = u.divide("cpu_seconds_per_request", both, u.CPUResolution, requests, nil)
	u.CPUUserPerRequest = u.divide("cpu_user_seconds_per_request", u.CPUUser, u.CPUSplitResolution, requests, u.CPUPerRequest)
	u.CPUSystemPerRequest = u.divide("cpu_system_seconds_per_request", u.CPUSystem, u.CPUSplitResolution, requests, u.CPUPerRequest)
}

// divide returns growth / by, nil if it is unknown, and notes in BelowResolution if it is only an upper bound. The bound of a
// part is at most the figure of the whole.
func (u *ProcessUsage) divide(name string, growth, resolution *float64, by float64, whole *float64) *float64 {
	if growth == nil || !(by > 0) {
		return nil
	}
	if resolution == nil {
		return over(growth, by)
	}
	v, below := Divide(*growth, *resolution, by)
	if below {
		u.BelowResolution = append(u.BelowResolution, name)
		if whole != nil {
			v = min(v, *whole)
		}
	}
	return figure(v)
}
