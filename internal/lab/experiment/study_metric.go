package experiment

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
	"spillway/internal/lab/sheet"
)

// Names of a study's metrics. The name of a process follows a dot: "cpu_percent.db".
const (
	MetricRate      = "rate_hz"                 // good answers per second
	MetricPeak      = "peak_hz"                 // highest rate that met the SLO; of a variant, not of a level
	MetricP50       = "response_p50_seconds"    // from the intended start, over all requests that were due
	MetricP99       = "response_p99_seconds"    //
	MetricConnect   = "connect_mean_seconds"    //
	MetricFirstByte = "first_byte_mean_seconds" //
	MetricErrors    = "error_share"             // failed requests over all requests, 0 to 1
	Metric502       = "status_502_share"        // answers with status 502 over all requests, 0 to 1
	MetricGenerator = "generator_cpu_seconds_per_request"
	MetricTimeWait  = "time_wait_max"    // sockets, on the host with the most
	MetricPorts     = "ports_in_use_max" // local ports, on the host that used the most
	MetricLoad      = "load1_mean"       // load average

	MetricOpens        = "active_opens_per_request" // connections, on the host that opened the most
	MetricOverflows    = "listen_overflows"         // connections dropped by a full accept queue, on the host with the most
	MetricFiles        = "fds_max"                  // open files of the process that had the most
	MetricSessions     = "connections_max"          // of the database that had the most
	MetricFirstFailure = "first_failure_seconds"    // the second of the step in which a request failed first

	MetricCPU        = "cpu_seconds_per_request"        // of a service, per good answer
	MetricCPUUser    = "cpu_user_seconds_per_request"   //
	MetricCPUSystem  = "cpu_system_seconds_per_request" //
	MetricCores      = "cpu_percent"                    // of one core
	MetricCoreUser   = "cpu_user_percent"               //
	MetricCoreSystem = "cpu_system_percent"             //

	MetricHostUsed  = "host_used_share"      // of a host with a share of CPU: what it used of the share, 0 to 1
	MetricThrottled = "host_throttled_share" // part of the time in which its quota stopped it, 0 to 1
)

// A Better is the direction in which a metric is better.
type Better string

// The directions.
const (
	BetterHigher Better = "higher"
	BetterLower  Better = "lower"
	BetterNone   Better = "" // none
)

// A Metric is one column of a study.
type Metric struct {
	Name     string `json:"name"`
	Process  string `json:"process,omitempty"` // that it describes
	Title    string `json:"title"`             // of the column
	Unit     string `json:"unit"`              // of package sheet
	Better   Better `json:"better,omitempty"`
	Compared bool   `json:"compared,omitempty"` // with the baseline, with a verdict
}

// A Chart is a bar chart: one metric of every variant at one level.
type Chart struct {
	Metric string `yaml:"metric" json:"metric"`
	Level  string `yaml:"level" json:"level,omitempty"` // "" for a metric of the whole variant, such as peak_hz
	Title  string `yaml:"title" json:"title,omitempty"` // default: from the metric and the level
}

// plainMetrics returns the metrics that do not belong to a process, in column order.
func plainMetrics() []Metric {
	return []Metric{
		{Name: MetricPeak, Title: "peak", Unit: sheet.UnitRate, Better: BetterHigher, Compared: true},
		{Name: MetricRate, Title: "requests/s", Unit: sheet.UnitRate, Better: BetterHigher, Compared: true},
		{Name: MetricP50, Title: "p50", Unit: sheet.UnitSeconds, Better: BetterLower, Compared: true},
		{Name: MetricP99, Title: "p99", Unit: sheet.UnitSeconds, Better: BetterLower, Compared: true},
		{Name: MetricConnect, Title: "connect", Unit: sheet.UnitSeconds, Better: BetterLower},
		{Name: MetricFirstByte, Title: "first byte", Unit: sheet.UnitSeconds, Better: BetterLower},
		{Name: MetricErrors, Title: "errors", Unit: sheet.UnitShare, Better: BetterLower},
		{Name: Metric502, Title: "502", Unit: sheet.UnitShare, Better: BetterLower},
		{Name: MetricTimeWait, Title: "TIME_WAIT", Unit: sheet.UnitCount},
		{Name: MetricPorts, Title: "ports", Unit: sheet.UnitCount},
		{Name: MetricLoad, Title: "load avg", Unit: sheet.UnitCount},
		{Name: MetricGenerator, Title: "generator CPU/req", Unit: sheet.UnitSeconds},
		{Name: MetricOpens, Title: "opens/req", Unit: sheet.UnitCount, Better: BetterLower},
		{Name: MetricOverflows, Title: "overflows", Unit: sheet.UnitCount, Better: BetterLower},
		{Name: MetricFiles, Title: "open files", Unit: sheet.UnitCount},
		{Name: MetricSessions, Title: "DB connections", Unit: sheet.UnitCount},
		{Name: MetricFirstFailure, Title: "first failure", Unit: sheet.UnitSeconds, Better: BetterHigher},
	}
}

// errorMetrics returns the shares of the requests by how they failed: error_reset_share, status_500_share. A run has those that occurred.
func errorMetrics() []Metric {
	var metrics []Metric
	for _, class := range result.ErrorClasses() {
		metrics = append(metrics, Metric{Name: classMetric(class), Title: class.String(), Unit: sheet.UnitShare, Better: BetterLower})
	}
	for status := 400; status < 600; status++ {
		if name := statusMetric(status); name != Metric502 {
			metrics = append(metrics, Metric{Name: name, Title: strconv.Itoa(status), Unit: sheet.UnitShare, Better: BetterLower})
		}
	}
	return metrics
}

func classMetric(class result.ErrorClass) string { return "error_" + class.String() + "_share" }

func statusMetric(status int) string { return fmt.Sprintf("status_%d_share", status) }

// processMetrics returns the metrics of one process.
func processMetrics(process string) []Metric {
	metrics := []Metric{
		{Name: MetricCPU, Title: "CPU/req", Unit: sheet.UnitSeconds, Better: BetterLower, Compared: true},
		{Name: MetricCPUUser, Title: "user/req", Unit: sheet.UnitSeconds, Better: BetterLower},
		{Name: MetricCPUSystem, Title: "sys/req", Unit: sheet.UnitSeconds, Better: BetterLower},
		{Name: MetricCores, Title: "CPU", Unit: sheet.UnitPercent, Better: BetterLower},
		{Name: MetricCoreUser, Title: "user", Unit: sheet.UnitPercent, Better: BetterLower},
		{Name: MetricCoreSystem, Title: "sys", Unit: sheet.UnitPercent, Better: BetterLower},
	}
	for i := range metrics {
		metrics[i].Name += "." + process
		metrics[i].Process = process
		metrics[i].Title = process + " " + metrics[i].Title
	}
	return metrics
}

// metricsOf returns all metrics of a study that watched these processes.
func metricsOf(processes []string) []Metric {
	metrics := append(plainMetrics(), errorMetrics()...)
	for _, process := range processes {
		metrics = append(metrics, processMetrics(process)...)
	}
	return metrics
}

// hostMetrics returns the metrics of the hosts that have a share of CPU.
func hostMetrics(hosts []HostFacts) []Metric {
	var metrics []Metric
	for _, h := range hosts {
		if h.CPUs > 0 {
			metrics = append(metrics,
				Metric{Name: MetricHostUsed + "." + h.Name, Title: "host " + h.Name + " used", Unit: sheet.UnitShare},
				Metric{Name: MetricThrottled + "." + h.Name, Title: "host " + h.Name + " throttled", Unit: sheet.UnitShare},
			)
		}
	}
	return metrics
}

// KnownMetric reports whether a study that watches these processes has the metric.
func KnownMetric(name string, processes []string) bool {
	return slices.ContainsFunc(metricsOf(processes), func(m Metric) bool { return m.Name == name })
}

// observe reads every metric of a step except the peak. It omits figures that the step does not have.
func observe(run *result.Run, step int) (levelFigures, error) {
	s := &run.Steps[step]
	t := &s.Total
	l := levelFigures{
		read: true, validity: t.Validity, overloaded: t.Overloaded, errors: t.Errors, statuses: t.Statuses,
		atLeast: make(map[string]bool),
	}
	l.failing = t.ErrorShare() > result.ErrorShareMax
	l.figures = map[string]float64{
		MetricRate: t.Rate(), MetricErrors: t.ErrorShare(), Metric502: quotient(float64(t.Statuses[502]), float64(t.Requests())),
		MetricGenerator: quotient(t.Cost.CPUUser+t.Cost.CPUSystem, float64(t.Completed)),
	}
	if err := l.observeLatency(&t.Latency); err != nil {
		return l, err
	}
	for class, n := range t.Errors {
		if n > 0 {
			l.figures[classMetric(result.ErrorClass(class))] = quotient(float64(n), float64(t.Requests()))
		}
	}
	for status, n := range t.Statuses {
		if status >= 400 {
			l.figures[statusMetric(status)] = quotient(float64(n), float64(t.Requests()))
		}
	}
	if i := slices.IndexFunc(s.Slices, func(one result.Slice) bool { return one.Errors.Total() > 0 }); i >= 0 {
		l.figures[MetricFirstFailure] = float64(s.Slices[i].Second)
	}
	observeUsage(run.Usage(step), l.figures)
	for _, h := range t.Hosts {
		l.figures[MetricHostUsed+"."+h.Name], l.figures[MetricThrottled+"."+h.Name] = h.UsedShare(), h.ThrottledShare()
	}
	for name, v := range l.figures {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			delete(l.figures, name)
		}
	}
	return l, nil
}

func (l *levelFigures) observeLatency(latency *result.Latency) error {
	responses, err := latency.Responses()
	if err != nil {
		return fmt.Errorf("read histogram of the response time: %w", err)
	}
	for metric, q := range map[string]float64{MetricP50: 0.5, MetricP99: 0.99} {
		if responses.Carries(q) {
			d, atLeast := responses.Quantile(q)
			l.figures[metric], l.atLeast[metric] = d.Seconds(), atLeast
		}
	}
	for metric, payload := range map[string]result.HDR{MetricConnect: latency.Connect, MetricFirstByte: latency.FirstByte} {
		h, err := histogram.Decode(string(payload))
		if err != nil {
			return fmt.Errorf("read histogram of %s: %w", metric, err)
		}
		if h.Count() > 0 {
			l.figures[metric] = h.Mean().Seconds()
		}
	}
	return nil
}

// observeUsage reads the figures of processes, and the highest of all hosts. A figure below the resolution of its counter is left out:
// it is only a bound.
func observeUsage(usage *result.Usage, figures map[string]float64) {
	for _, p := range usage.Of(result.SamplerProcess) {
		for _, each := range []struct {
			metric string
			figure result.Figure
			factor float64
		}{
			{MetricCPU, result.CPUPerRequest, 1},
			{MetricCPUUser, result.CPUUserPerRequest, 1},
			{MetricCPUSystem, result.CPUSystemPerRequest, 1},
			{MetricCores, result.CPUCores, 100},
			{MetricCoreUser, result.CPUUserCores, 100},
			{MetricCoreSystem, result.CPUSystemCores, 100},
		} {
			if v, known := p.Figures[each.figure]; known && !p.Below(each.figure) {
				figures[each.metric+"."+p.Name] = v * each.factor
			}
		}
	}
	highest := func(metric string, f result.Figure, samplers ...string) {
		for _, s := range usage.Of(samplers...) {
			was, seen := figures[metric]
			if v, known := s.Figures[f]; known && (!seen || v > was) {
				figures[metric] = v
			}
		}
	}
	highest(MetricTimeWait, result.TimeWaitMax, result.SamplerTCP)
	highest(MetricPorts, result.PortsMax, result.SamplerTCP)
	highest(MetricLoad, result.LoadMean, result.SamplerHost)
	highest(MetricOpens, result.ActiveOpensPerRequest, result.SamplerTCP)
	highest(MetricOverflows, result.Overflows, result.SamplerTCP)
	highest(MetricFiles, result.FDsMax, result.SamplerProcess)
	highest(MetricSessions, result.ConnectionsMax, result.SamplerPostgres, result.SamplerMySQL)
}

// quotient divides; it returns NaN for a divisor of 0.
func quotient(v, by float64) float64 {
	if by == 0 {
		return math.NaN()
	}
	return v / by
}
