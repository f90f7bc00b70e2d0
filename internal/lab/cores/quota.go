package cores

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// QuotaIn is how many CPUs the control group in a directory may use; not ok without a quota.
func QuotaIn(dir string) (cpus float64, ok bool) {
	if content, err := os.ReadFile(filepath.Join(dir, "cpu.max")); err == nil {
		fields := strings.Fields(string(content))
		if len(fields) != 2 {
			return 0, false
		}
		return quotient(fields[0], fields[1])
	}
	quota, err := os.ReadFile(filepath.Join(dir, "cpu.cfs_quota_us"))
	period, periodErr := os.ReadFile(filepath.Join(dir, "cpu.cfs_period_us"))
	if err != nil || periodErr != nil {
		return 0, false
	}
	return quotient(strings.TrimSpace(string(quota)), strings.TrimSpace(string(period)))
}

// quotient divides two positive numbers; not ok for anything else, such as "max" and -1.
func quotient(a, b string) (float64, bool) {
	x, err := strconv.ParseUint(a, 10, 63)
	y, errY := strconv.ParseUint(b, 10, 63)
	if err != nil || errY != nil || x == 0 || y == 0 {
		return 0, false
	}
	return float64(x) / float64(y), true
}
