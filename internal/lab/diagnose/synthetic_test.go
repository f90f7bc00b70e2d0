package diagnose

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"spillway/internal/histogram"
	"spillway/internal/lab/result"
)

// A level is one load step of a made-up run.
type level struct {
	offered  float64 // arrivals per second
	rate     float64 // good answers per second
	alone    float64 // seconds that most answers take
	mean     float64 // seconds, mean time in flight
	first    float64 // seconds from the last answer's first byte on; 0: at once
	connect  float64 // seconds; NaN: none was opened
	lag      time.Duration
	size     float64 // bytes per answer
	failed   bool    // the SLO is missed
	validity result.Validity
	reasons  []result.Reason
	statuses map[int]float64 // share of the answers
	errors   map[result.ErrorClass]int64
	hosts    []result.HostShare
	figures  figures
}

// figures are by subject ("process app") and name. Those that end in _total are growth per second.
type figures map[string]map[string]float64

// and returns the figures with others in their place.
func (f figures) and(others figures) figures {
	all := figures{}
	for _, from := range []figures{f, others} {
		for subject, values := range from {
			if all[subject] == nil {
				all[subject] = map[string]float64{}
			}
			maps.Copy(all[subject], values)
		}
	}
	return all
}

// A level takes levelSeconds, and the next one begins pauseSeconds later.
const (
	levelSeconds = 10.0
	pauseSeconds = 5.0
)

// runOf makes a run of levels with a sample of every subject per second, and one of each at the borders of the steps.
func runOf(t testing.TB, levels ...level) *result.Run {
	t.Helper()
	run := &result.Run{Header: result.Header{Target: "http://127.0.0.1:8080/"}, End: result.End{Reason: result.Finished}}
	watch := result.Watch{}
	subjects := map[string]bool{}
	counters := map[string]float64{}
	for i, l := range levels {
		start := float64(i) * (levelSeconds + pauseSeconds)
		run.Steps = append(run.Steps, l.step(t, i, start))
		for _, subject := range slices.Sorted(maps.Keys(l.figures)) {
			sampler, name, _ := strings.Cut(subject, " ")
			if !subjects[subject] {
				subjects[subject] = true
				program := map[string]string{"app": "shop", "db": "postgres", "redis": "redis-server"}[name]
				watch.Subjects = append(watch.Subjects, result.Subject{Sampler: sampler, Name: name, Detail: fmt.Sprintf("process 1 (%s)", program)})
			}
			for second := 0.0; second <= levelSeconds; second++ {
				values := map[string]float64{}
				for figure, v := range l.figures[subject] {
					if result.Counter(figure) {
						v = counters[subject+figure] + v*second
					}
					values[figure] = v
				}
				run.Samples = append(run.Samples, result.Sample{
					At: start + second, Sampler: sampler, Subject: name, Values: values, Border: second == 0 || second == levelSeconds,
				})
			}
			for figure, v := range l.figures[subject] {
				if result.Counter(figure) {
					counters[subject+figure] += v * levelSeconds
				}
			}
		}
	}
	run.Watches = []result.Watch{watch}
	return run
}

func (l level) step(t testing.TB, i int, start float64) result.StepRun {
	t.Helper()
	done := int64(l.rate * levelSeconds)
	for _, share := range l.statuses {
		done = int64(float64(done) / (1 - share))
	}
	total := result.Total{Step: i, Elapsed: levelSeconds, Validity: l.validity, Reasons: l.reasons, Hosts: l.hosts}
	if total.Validity == "" {
		total.Validity = result.Valid
	}
	total.Due, total.Sent, total.Done = int64(l.offered*levelSeconds), done, done
	total.Completed, total.BytesIn = int64(l.rate*levelSeconds), int64(l.size*float64(done))
	total.Statuses = map[int]int64{}
	for status, share := range l.statuses {
		total.Statuses[status] = int64(share * float64(done))
		total.Errors[result.StatusError] += total.Statuses[status]
	}
	for class, n := range l.errors {
		total.Errors[class] = n
	}
	total.Little = result.Little{InFlightMean: l.rate * l.mean, Rate: l.rate, ServiceMean: l.mean, Ratio: 1}
	total.SLO = []result.Criterion{{Text: "p99<70ms", Metric: "response_p99_seconds", Limit: 0.07, Met: !l.failed}}
	service, first, connect, lag := histogram.New(), histogram.New(), histogram.New(), histogram.New()
	nanoseconds := func(seconds float64) time.Duration { return time.Duration(seconds * 1e9) }
	service.RecordN(nanoseconds(l.alone), 300)
	if l.mean > l.alone {
		service.RecordN(nanoseconds(l.alone+(l.mean-l.alone)*1000/700), 700)
	} else {
		service.RecordN(nanoseconds(l.alone), 700)
	}
	first.RecordN(max(service.Mean()-nanoseconds(l.first), time.Microsecond), 1000)
	if !math.IsNaN(l.connect) {
		connect.RecordN(nanoseconds(max(l.connect, 50e-6)), 100)
	}
	lag.RecordN(max(l.lag, time.Microsecond), 1000)
	for h, into := range map[*histogram.Histogram]*result.HDR{
		service: &total.Latency.Service, first: &total.Latency.FirstByte, connect: &total.Latency.Connect, lag: &total.Latency.Lag,
	} {
		text, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		*into = result.HDR(text)
	}
	total.Latency.Response = total.Latency.Service
	return result.StepRun{
		Step: result.Step{
			Index: i, Name: fmt.Sprintf("%g/s", l.offered), Loop: result.LoopOpen, Arrival: "constant", OfferedHz: l.offered, Connections: 100,
			Duration: levelSeconds, Start: start,
		},
		Total: total,
	}
}

// Figures of a healthy host with four cores on which little happens.
func idle() figures {
	return figures{
		"host": {
			"cores": 4, "cpu_user_seconds_total": 0.2, "cpu_system_seconds_total": 0.1, "cpu_softirq_seconds_total": 0.02,
			"cpu_iowait_seconds_total": 0.01, "cpu_steal_seconds_total": 0, "cpu_idle_seconds_total": 3.67,
			"psi_io_some_seconds_total": 0.01, "psi_memory_some_seconds_total": 0, "psi_cpu_some_seconds_total": 0.05,
		},
		"tcp": {
			"passive_opens_total": 1, "active_opens_total": 1, "listen_overflows_total": 0, "listen_drops_total": 0, "established": 100,
			"time_wait": 50, "ports_in_use": 150, "ports_range": 28232, "send_queue_bytes": 2000, "receive_queue_bytes": 500,
			"segments_out_total": 1000, "retransmits_total": 0,
		},
		"listener 127.0.0.1:8080": {"accept_queue": 0, "accept_queue_limit": 4096},
		"process app": {
			"cpu_user_seconds_total": 0.1, "cpu_system_seconds_total": 0.05, "run_queue_wait_seconds_total": 0.01, "busiest_thread_cores": 0.08,
			"cpu_limit": 2, "threads": 9, "processes": 1, "fds": 120, "fds_limit": 65536, "rss_bytes": 50 << 20, "major_faults_total": 0,
		},
	}
}

// postgres are the figures of a database with little to do, and of its process.
func postgres() figures {
	return figures{
		"process db": {
			"cpu_user_seconds_total": 0.05, "cpu_system_seconds_total": 0.02, "run_queue_wait_seconds_total": 0.01, "busiest_thread_cores": 0.03,
			"cpu_limit": 2, "threads": 17, "processes": 17, "fds": 80, "fds_limit": 1024, "rss_bytes": 90 << 20, "major_faults_total": 0,
		},
		"postgres shop": {
			"connections": 10, "connections_limit": 100, "connections_active": 0.3, "connections_idle": 9.7, "connections_idle_in_transaction": 0,
			"wait_cpu": 0.1, "wait_lock": 0, "wait_lwlock": 0, "wait_io": 0.1, "wait_wal": 0.05, "wait_client": 0, "wait_timeout": 0,
			"commits_total": 100, "fsyncs_total": 50, "statements_total": 300,
		},
	}
}

// busy makes a process use CPU, and the host with it.
func busy(name string, user, system, waiting float64) figures {
	return figures{
		"process " + name: {
			"cpu_user_seconds_total": user, "cpu_system_seconds_total": system, "run_queue_wait_seconds_total": waiting,
			"busiest_thread_cores": 0.6 * (user + system),
		},
		"host": {"cpu_user_seconds_total": 0.1 + user, "cpu_system_seconds_total": 0.1 + system, "cpu_idle_seconds_total": max(0.02, 3.8-user-system)},
	}
}
