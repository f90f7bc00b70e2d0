package progress

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// status is a task at one moment; how it looks depends on nothing else.
type status struct {
	label   string
	unit    string
	done    int64
	total   int64
	elapsed time.Duration
}

// bar returns the line for a terminal, at most width columns long. The bar
// itself takes what the words leave.
func (s status) bar(width int) string {
	words := fmt.Sprintf("%-10s %3.0f %%  %s", s.label, 100*s.share(), s.numbers())
	if len(words) > width {
		return words[:max(width, 0)]
	}
	cells := min(width-len(words)-len(" []"), 24)
	if cells < 4 {
		return words
	}
	full := int(s.share() * float64(cells))
	return fmt.Sprintf("%s [%s%s]", words, strings.Repeat("#", full), strings.Repeat("-", cells-full))
}

// line returns the line for anything but a terminal.
func (s status) line() string {
	return fmt.Sprintf("%s: %.0f %%, %s", s.label, 100*s.share(), s.numbers())
}

// last returns the line that stays when the task is done.
func (s status) last() string {
	if s.unit == "" {
		return fmt.Sprintf("%s: done in %s", s.label, seconds(s.elapsed))
	}
	return fmt.Sprintf("%s: %s %s in %s (%s/s)", s.label, group(s.done), s.unit, seconds(s.elapsed), group(s.rate()))
}

// numbers returns the counts, and the rate and the time left where they mean something.
func (s status) numbers() string {
	if s.unit == "" {
		return fmt.Sprintf("%s of %s, %s", group(s.done), group(s.total), seconds(s.elapsed))
	}
	text := fmt.Sprintf("%s of %s %s, %s/s", group(s.done), group(s.total), s.unit, group(s.rate()))
	if s.done > 0 && s.done < s.total {
		left := time.Duration(float64(s.elapsed) * float64(s.total-s.done) / float64(s.done))
		text += ", " + left.Round(time.Second).String() + " left"
	}
	return text
}

// share returns how much of the task is done, 0 to 1.
func (s status) share() float64 {
	if s.total <= 0 {
		return 1
	}
	return min(max(float64(s.done)/float64(s.total), 0), 1)
}

// rate returns units a second since the task began.
func (s status) rate() int64 {
	if s.elapsed <= 0 {
		return 0
	}
	return int64(float64(s.done) / s.elapsed.Seconds())
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// group writes a number with a comma every three digits.
func group(n int64) string {
	text := strconv.FormatInt(n, 10)
	first := 0
	if n < 0 {
		first = 1
	}
	for i := len(text) - 3; i > first; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
