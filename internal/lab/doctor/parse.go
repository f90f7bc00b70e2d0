package doctor

import (
	"math"
	"strconv"
	"strings"
)

// The functions here read files of /proc and /sys. Text that is cut off or
// absurd yields absent, 0 or "", never a wrong sign.

const (
	portMax = 65535
	// noMemoryLimit and more is how version 1 control groups write "no limit".
	noMemoryLimit = math.MaxInt64 / 2
)

// parseNumber reads a number that is not negative.
func parseNumber(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return absent
	}
	return n
}

// parsePortRange reads "32768\t60999"; 0, 0 when it is none.
func parsePortRange(text string) (first, last int) {
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return 0, 0
	}
	a, b := parseNumber(fields[0]), parseNumber(fields[1])
	if a < 1 || b < a || b > portMax {
		return 0, 0
	}
	return int(a), int(b)
}

// countReserved counts the ports of "8080,9148-9150" between first and last.
func countReserved(text string, first, last int) int {
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		a, b := parseNumber(low), parseNumber(high)
		if a < 0 || b < a || b > portMax {
			continue
		}
		n += max(0, min(int(b), last)-max(int(a), first)+1)
	}
	return min(n, max(0, last-first+1))
}

// parseSockstat reads a counter of the TCP line of sockstat.
func parseSockstat(text, name string) int64 {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "TCP:" {
			continue
		}
		for i := 1; i+1 < len(fields); i += 2 {
			if fields[i] == name {
				return parseNumber(fields[i+1])
			}
		}
	}
	return absent
}

// parseNetstat reads a counter of netstat's TcpExt lines: names, then values.
func parseNetstat(text, name string) int64 {
	var names []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "TcpExt:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i := range min(len(names), len(fields)) {
			if names[i] == name {
				return parseNumber(fields[i])
			}
		}
	}
	return absent
}

// parseField reads "Name:\tvalue" of /proc/PID/status.
func parseField(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// parseFileLimits reads the soft and hard limit of open files.
func parseFileLimits(text string) (soft, hard int64) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Max open files")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 {
			continue
		}
		return parseLimit(fields[0]), parseLimit(fields[1])
	}
	return absent, absent
}

func parseLimit(text string) int64 {
	if text == "unlimited" {
		return math.MaxInt64
	}
	return parseNumber(text)
}

// parseMeminfo reads a line of meminfo in bytes.
func parseMeminfo(text, name string) int64 {
	fields := strings.Fields(parseField(text, name))
	if len(fields) != 2 || fields[1] != "kB" {
		return absent
	}
	n := parseNumber(fields[0])
	if n < 0 || n > math.MaxInt64/1024 {
		return absent
	}
	return n * 1024
}

// parseQuota reads "QUOTA PERIOD" in microseconds as cores; 0 is no quota.
func parseQuota(text string) float64 {
	fields := strings.Fields(text)
	if len(fields) != 2 {
		return 0
	}
	quota, period := parseNumber(fields[0]), parseNumber(fields[1])
	if quota <= 0 || period <= 0 {
		return 0
	}
	return float64(quota) / float64(period)
}

// parseMemoryLimit reads bytes; 0 is no limit.
func parseMemoryLimit(text string) int64 {
	n := parseNumber(strings.TrimSpace(text))
	if n < 0 || n >= noMemoryLimit {
		return 0
	}
	return n
}

// parsePressure reads avg10 of the line "some" in percent.
func parsePressure(text string) float64 {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "some" {
			continue
		}
		value, ok := strings.CutPrefix(fields[1], "avg10=")
		percent, err := strconv.ParseFloat(value, 64)
		if ok && err == nil && percent >= 0 && percent <= 100 {
			return percent
		}
	}
	return 0
}

// parseChoice reads the chosen word of "always [madvise] never".
func parseChoice(text string) string {
	_, rest, _ := strings.Cut(text, "[")
	word, _, found := strings.Cut(rest, "]")
	if !found {
		return ""
	}
	return word
}

// countList counts the members of "0-3,8"; 0 when it cannot be read.
func countList(text string) int {
	const most = 1 << 16
	n := int64(0)
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		a, b := parseNumber(low), parseNumber(high)
		if a < 0 || b < a || b > most {
			return 0
		}
		n += b - a + 1
	}
	return int(min(n, most))
}

// parseKernel reads major and minor of "6.1.0-13-amd64".
func parseKernel(text string) (major, minor int, ok bool) {
	first, rest, found := strings.Cut(text, ".")
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	a, b := parseNumber(first), parseNumber(rest[:end])
	if !found || a < 0 || b < 0 || a > 1000 || b > 1000 {
		return 0, 0, false
	}
	return int(a), int(b), true
}
