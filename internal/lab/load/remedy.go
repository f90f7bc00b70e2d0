package load

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/aclements/go-moremath/stats"

	"spillway/internal/lab/result"
)

// moreCPU says what gives the generator more CPU time.
func (s *stepRun) moreCPU() string {
	cores := runtime.GOMAXPROCS(0)
	workers := min(s.config.Workers, s.step.Connections)
	switch {
	case s.config.Target.EventLoop() && s.config.Workers < cores && workers < s.step.Connections:
		return fmt.Sprintf("use --workers %d, or more machines", min(2*max(workers, 1), cores, s.step.Connections))
	case s.config.Target.EventLoop() && workers < cores:
		return "use more --connections, or more machines"
	case cores > 1:
		return "use --pin if the target is on this machine, or more machines"
	}
	return "use more machines"
}

// moreTime says how long the step must be to have enough requests at the measured rate. Its length is limited by time or
// by requests.
func (s *stepRun) moreTime(t *result.Total, have int64, want float64) string {
	switch {
	case s.step.Requests > 0 && (s.step.Duration == 0 || t.Elapsed < s.step.Duration.Seconds()):
		return fmt.Sprintf("; use --requests %d", int64(math.Ceil(want*float64(s.step.Requests)/float64(max(have, 1)))))
	case have == 0 || t.Elapsed == 0:
		return "; use a longer step (-d)"
	}
	return "; use -d " + longer(time.Duration(1.1*want/float64(have)*t.Elapsed*float64(time.Second)))
}

// longer rounds a duration up to one that reads well: 7s, 50s, 4m, 2h.
func longer(d time.Duration) string {
	unit, name := time.Second, "s"
	switch {
	case d > time.Hour:
		unit, name = time.Hour, "h"
	case d > 3*time.Minute:
		unit, name = time.Minute, "m"
	case d > 20*time.Second:
		return fmt.Sprintf("%ds", 10*int64(math.Ceil(d.Seconds()/10)))
	}
	return fmt.Sprintf("%d%s", int64(math.Ceil(float64(d)/float64(unit))), name)
}

// failsSurely reports whether more than the limit, a share, of the requests fail, with 95 % confidence: with fewer, so many
// failures would be rare (the one-sided exact test of Clopper and Pearson, 1934).
func failsSurely(failed, requests int64, limit float64) bool {
	return failed > 0 && 1-stats.BinomialDist{N: int(requests), P: limit}.CDF(float64(failed-1)) < 0.05
}
