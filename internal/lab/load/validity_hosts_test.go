package load

import (
	"errors"
	"strings"
	"testing"
	"time"

	"spillway/internal/lab/cores"
	"spillway/internal/lab/result"
)

// TestJudgeHosts judges steps on hosts with cores of their own: only programs of no host contend.
func TestJudgeHosts(t *testing.T) {
	for name, test := range map[string]struct {
		spoil  func(*stepRun, *result.Total, *hostReading)
		want   result.Validity
		reason string
	}{
		"alone":                 {func(*stepRun, *result.Total, *hostReading) {}, result.Valid, ""},
		"a saturated target":    {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[1].Used = 9.99 }, result.Valid, ""},
		"stopped by its quota":  {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[1].Throttled = 9 }, result.Valid, ""},
		"threads of the kernel": {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[1].Kernel = 3 }, result.Valid, ""},
		"a little disturbed":    {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[1].Foreign = 0.9 }, result.Valid, ""},
		"disturbed target":      {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[1].Foreign = 1 }, result.HostContended, "5 % of the cores of host target (1-2)"},
		"disturbed generator":   {func(_ *stepRun, _ *result.Total, h *hostReading) { h.shares[0].Foreign = 5 }, result.HostContended, "50 % of the cores of host generator (0)"},
		"one of many cores": {func(_ *stepRun, _ *result.Total, h *hostReading) {
			h.shares[1].CoreCount, h.shares[1].Foreign = 32, 3
		}, result.HostContended, "0.938 % of the cores of host target"},
		"disturbed and busy": {func(_ *stepRun, t *result.Total, h *hostReading) {
			h.shares[0].Foreign, t.Cost.ThreadBusyMax = 5, 0.95
		}, result.HostContended, "busy 95 %"},
		"its own share is too small": {func(s *stepRun, _ *result.Total, _ *hostReading) {
			s.reports[0].usage.wait = 2 * time.Second
		}, result.GeneratorLimited, "waited 20 % of the time for its own share"},
		"late on its own": {func(s *stepRun, _ *result.Total, _ *hostReading) {
			for range 1000 {
				s.collector.latency.lag.Record(5 * time.Millisecond)
			}
			s.reports[0].usage.wait = 600 * time.Millisecond
		}, result.GeneratorLimited, "pacer lag is 5"},
		"unknown": {func(_ *stepRun, _ *result.Total, h *hostReading) { h.err = errors.New("no such file") }, result.HostContended, "unknown who used the cores: no such file"},
	} {
		s, total, sums := sound(t)
		s.config.Hosts = new(cores.Meter)
		s.hosts.shares = []result.HostShare{
			{Name: "generator", CPUs: 1, Cores: "0", CoreCount: 1, Elapsed: 10, Used: 3},
			{Name: "target", CPUs: 2, Cores: "1-2", CoreCount: 2, Elapsed: 10, Used: 6},
		}
		test.spoil(s, total, &s.hosts)
		s.judge(total, sums)
		got, reasons := total.Validity, total.Sentences()
		if got != test.want || !strings.Contains(strings.Join(reasons, "\n"), test.reason) || test.reason == "" && len(reasons) > 0 {
			t.Errorf("%s: %s %q, want %s and %q", name, got, reasons, test.want, test.reason)
		}
	}
}
