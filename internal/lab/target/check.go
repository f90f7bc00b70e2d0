package target

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// errCheck is wrapped by the error of an answer whose body was not as expected.
var errCheck = errors.New("check failed")

// statusRange is an inclusive range of statuses.
type statusRange struct{ low, high int }

// Checks validate an HTTP answer. The zero value accepts the statuses 2xx and 304.
type Checks struct {
	statuses []statusRange
	contains [][]byte
	lacks    [][]byte
}

// ParseChecks reads checks of the forms
//
//	status=200   status=2xx   status=200,404
//	body~=TEXT   the body contains TEXT
//	body!~TEXT   the body does not contain TEXT
//
// Only the first 1 MiB of a body is checked.
func ParseChecks(texts []string) (Checks, error) {
	var c Checks
	for _, text := range texts {
		switch {
		case strings.HasPrefix(text, "status="):
			ranges, err := parseStatuses(text[len("status="):])
			if err != nil {
				return Checks{}, err
			}
			c.statuses = append(c.statuses, ranges...)
		case strings.HasPrefix(text, "body~=") && len(text) > len("body~="):
			c.contains = append(c.contains, []byte(text[len("body~="):]))
		case strings.HasPrefix(text, "body!~") && len(text) > len("body!~"):
			c.lacks = append(c.lacks, []byte(text[len("body!~"):]))
		default:
			return Checks{}, fmt.Errorf("check %q: write status=200, status=2xx, status=200,404, body~=TEXT or body!~TEXT", text)
		}
	}
	return c, nil
}

func parseStatuses(list string) ([]statusRange, error) {
	var ranges []statusRange
	for word := range strings.SplitSeq(list, ",") {
		digits, class := strings.CutSuffix(word, "xx")
		n, err := strconv.Atoi(digits)
		switch {
		case err == nil && class && n >= 1 && n <= 9:
			ranges = append(ranges, statusRange{n * 100, n*100 + 99})
		case err == nil && !class && n >= 100 && n <= 999:
			ranges = append(ranges, statusRange{n, n})
		default:
			return nil, fmt.Errorf("check status=%s: %q is neither a status like 200 nor a class like 2xx", list, word)
		}
	}
	return ranges, nil
}

func (c *Checks) wantBody() bool { return len(c.contains)+len(c.lacks) > 0 }

// bodyMax is how much of the body of an answer with that status is needed.
func (c *Checks) bodyMax(status int) int {
	switch {
	case c.wantBody():
		return checkedBodyMax
	case !c.expected(status):
		return failedBodyMax
	}
	return 0
}

// judge returns nil, an answerError, or an error that wraps errCheck. memory holds
// the last answerError.
func (c *Checks) judge(a *answer, memory *scratch) error {
	if !c.expected(a.status) {
		memory.failure = a.failure(memory.failure)
		return memory.failure
	}
	return c.judgeBody(a.body)
}

// judgeBody returns nil or an error that wraps errCheck.
func (c *Checks) judgeBody(body []byte) error {
	for _, text := range c.contains {
		if !bytes.Contains(body, text) {
			return fmt.Errorf("%w: body does not contain %.60q", errCheck, text)
		}
	}
	for _, text := range c.lacks {
		if bytes.Contains(body, text) {
			return fmt.Errorf("%w: body contains %.60q", errCheck, text)
		}
	}
	return nil
}

func (c *Checks) expected(status int) bool {
	if len(c.statuses) == 0 {
		return status/100 == 2 || status == 304
	}
	return slices.ContainsFunc(c.statuses, func(r statusRange) bool { return status >= r.low && status <= r.high })
}
