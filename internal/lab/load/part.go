package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"spillway/internal/lab/result"
	"spillway/internal/lab/target"
)

// Limits of a load in parts.
const (
	aheadMax  = 24 * time.Hour        // from now to the start
	connectIn = 2 * time.Second       // time between two steps in which the connections of the next are opened
	lateMax   = 50 * time.Millisecond // that a step of a part may begin late
)

// Parts say which part of a load this process makes. Processes with the same options make the other parts, usually on
// other hosts, and Merge puts the results together. They do not talk to each other: each knows from StartAt when every
// step begins.
type Parts struct {
	Part    string `filled:"" group:"Several hosts" placeholder:"K/N" help:"Make the K-th of N parts of the load, for 'report --merge'; rate, connections, requests and rows are divided. 'job' reads K and N from JOB_COMPLETION_INDEX and SPILLWAY_PARTS."`
	StartAt string `filled:"" group:"Several hosts" placeholder:"TIME" help:"When the first step begins in all parts, as in 2026-03-01T12:00:00Z."`
}

// parse returns the part, and the time at which the first step begins. Both are zero for a whole load.
func (p *Parts) parse(now time.Time) (part target.Part, start time.Time, err error) {
	example := now.Add(20 * time.Second).UTC().Format(time.RFC3339)
	switch {
	case p.Part == "" && p.StartAt == "":
		return part, start, nil
	case p.Part == "":
		return part, start, errors.New("load: --start-at is for the parts of a load; add --part K/N, or remove it")
	case p.StartAt == "":
		return part, start, fmt.Errorf("load: --part needs a time at which all parts begin; add --start-at, as in --start-at %s", example)
	}
	if part, err = parsePart(p.Part); err != nil {
		return part, start, err
	}
	start, err = time.Parse(time.RFC3339, p.StartAt)
	switch {
	case err != nil:
		return part, start, fmt.Errorf("--start-at %q: write a time as in %s", p.StartAt, example)
	case !start.After(now):
		return part, start, fmt.Errorf("--start-at %s was %s ago by this host's clock; choose a time at which every host is ready, as in %s",
			p.StartAt, round(now.Sub(start)), example)
	case start.Sub(now) > aheadMax:
		return part, start, fmt.Errorf("--start-at %s is more than %s ahead; choose a time as in %s", p.StartAt, round(aheadMax), example)
	}
	return part, start, nil
}

// parsePart parses K/N, or reads the variables of a Job.
func parsePart(text string) (target.Part, error) {
	number, of, _ := strings.Cut(text, "/")
	first := 1 // the number of the first part
	if text == "job" {
		number, of = os.Getenv("JOB_COMPLETION_INDEX"), os.Getenv("SPILLWAY_PARTS")
		text, first = fmt.Sprintf("job with JOB_COMPLETION_INDEX=%s and SPILLWAY_PARTS=%s", number, of), 0
	}
	k, errNumber := strconv.ParseUint(number, 10, 16)
	n, errOf := strconv.ParseUint(of, 10, 16)
	part := target.Part{Number: int(k) - first, Of: int(n)}
	if errNumber == nil && errOf == nil && part.Number >= 0 && part.Number < part.Of && part.Of <= result.PartsMax {
		return part, nil
	}
	if first == 0 {
		return part, fmt.Errorf("--part %s: set SPILLWAY_PARTS to the completions of an Indexed Job, at most %d; the index counts from 0",
			text, result.PartsMax)
	}
	return part, fmt.Errorf("--part %q: write K/N, as in 2/3 for the second of three parts (at most %d), or job", text, result.PartsMax)
}

// wholeSeed is the seed of a load that was given none. Every part of it has to find the same.
func wholeSeed(start time.Time) uint64 {
	if start.IsZero() {
		return rand.Uint64()
	}
	return rand.New(rand.NewPCG(uint64(start.UnixNano()), 0)).Uint64()
}

// partSeed is the seed of a part. With that of the whole load, all parts would have the same arrivals and random values.
func partSeed(whole uint64, part target.Part) uint64 {
	if part.Whole() {
		return whole
	}
	return rand.New(rand.NewPCG(whole, uint64(part.Number))).Uint64()
}

// checkLengths returns an error if no other part could know when a step after the first one begins.
func (c *Config) checkLengths() error {
	if c.Part.Whole() || len(c.Steps) < 2 {
		return nil
	}
	for i := range c.Steps {
		if c.Steps[i].Duration == 0 {
			return errors.New("--part: the other parts do not know when a step ends that only --requests limits; add --duration, " +
				"or make one step")
		}
	}
	return nil
}

// plannedBegin is when a step begins in every part, warm-up included: when the steps before are over, and the requests in
// flight at their ends.
func (c *Config) plannedBegin(step int) time.Time {
	at := c.StartAt
	for i := range step {
		at = at.Add(c.Steps[i].Warmup + c.Steps[i].Duration + c.Timeout + connectIn)
	}
	return at
}

// errNotBegun is the error of a run that was interrupted while it waited for the begin of a step.
var errNotBegun = errors.New("interrupted before the step began")

// awaitBegin returns the reading of the clock at which the step begins, of a part when it is there. A step that cannot
// begin within lateMax begins at once: what was due meanwhile would hit the target in a burst.
func (s *stepRun) awaitBegin(ctx context.Context) (int64, error) {
	c := s.config
	if c.Part.Whole() {
		return c.Clock.Now(), nil
	}
	planned := c.plannedBegin(s.number)
	at := c.Clock.At(planned)
	if wait := time.Duration(at - c.Clock.Now()); wait > time.Second {
		s.listener.message(fmt.Sprintf("part %d of %d: step %d begins at %s, in %s", c.Part.Number+1, c.Part.Of, s.number+1,
			planned.UTC().Format(time.RFC3339), round(wait.Round(time.Second))))
	}
	if err := awaitReading(ctx, c.Clock, at); err != nil {
		return 0, errors.Join(errNotBegun, err)
	}
	now := c.Clock.Now()
	if s.delay = time.Duration(now - at); s.delay > lateMax {
		return now, nil
	}
	return at, nil
}

// spin is how long awaitReading does not sleep, because a timer can be late.
const spin = time.Millisecond

func awaitReading(ctx context.Context, c target.Clock, at int64) error {
	select {
	case <-time.After(time.Duration(at-c.Now()) - spin):
	case <-ctx.Done():
		return ctx.Err()
	}
	for c.Now() < at {
		runtime.Gosched()
	}
	return nil
}

// judgeBegin checks that the step began when it did in the other parts.
func (s *stepRun) judgeBegin(*result.Total, *threadReport) *problem {
	if s.delay <= lateMax {
		return nil
	}
	remedy := "choose a later --start-at"
	if s.number > 0 {
		remedy = "use fewer --connections, or a host that is less busy"
	}
	return &problem{result.GeneratorLimited, fmt.Sprintf("this part began %s after the time at which all parts begin; %s", round(s.delay),
		remedy)}
}

// describePart returns the place of a part in the load, and a warning if the clock of its host may be wrong; nil for a whole
// load.
func (c *Config) describePart(clock result.Clock) (part *result.Part, warning string) {
	if c.Part.Whole() {
		return nil, ""
	}
	part = &result.Part{Number: c.Part.Number + 1, Of: c.Part.Of, StartAt: c.StartAt.UTC(), Clock: clock}
	if !clock.Synchronized || seconds(clock.Error) > lateMax {
		warning = fmt.Sprintf("the clock of this host is %s: this part may begin at another time than the others; run chrony or "+
			"systemd-timesyncd", clock)
	}
	return part, warning
}
