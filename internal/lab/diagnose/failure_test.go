package diagnose

import (
	"strings"
	"testing"

	"spillway/internal/lab/result"
)

// failing is a step of 1,000 requests, some of which fail with an error of a class that says so.
func failing(class result.ErrorClass, failed int64, text string, f figures) level {
	l := heavy(100, f)
	l.errors = map[result.ErrorClass]int64{class: failed}
	l.reasons = []result.Reason{{Code: result.FirstError, Class: class.String(), Text: text}}
	if class == result.StatusError {
		l.statuses = map[int]float64{500: float64(failed) / 1000}
	}
	return l
}

// TestFailuresLead: the most frequent error comes first, with its class, its text and the limit that it names.
func TestFailuresLead(t *testing.T) {
	base := idle()
	stolen := base.and(figures{
		"process app": {"cpu_user_seconds_total": 0.33, "cpu_limit": 1, "run_queue_wait_seconds_total": 1.3, "cpu_allowed": 1, "cpu_allowed_busy_seconds_total": 0.99},
		"host":        {"cpu_user_seconds_total": 3.9, "cpu_idle_seconds_total": 0.02},
	})
	contended := failing(result.StatusError, 277, "status 500: FATAL: sorry, too many clients already", stolen)
	contended.validity = result.HostContended
	usedUp := stolen.and(figures{"tcp": {"ports_in_use": 28000}})
	files := base.and(figures{"process app": {"fds": 1024, "fds_limit": 1024}})
	full := base.and(postgres()).and(figures{"postgres shop": {"connections": 97, "connections_idle": 96.7}})
	for name, c := range map[string]struct {
		want, says string
		failing    level
	}{
		"resets":                       {Failures, "reset; the first: read: connection reset by peer", failing(result.Reset, 489, "read: connection reset by peer", base)},
		"resets beside a neighbour":    {Failures, "reset", failing(result.Reset, 489, "read: connection reset by peer", stolen)},
		"connections beside neighbour": {ConnectionLimit, "too many clients already", contended},
		"pooler":                       {ConnectionLimit, "max_client_conn", failing(result.StatusError, 30, "status 500: no more connections allowed", base)},
		"nginx":                        {ConnectionLimit, "worker_connections", failing(result.StatusError, 30, "status 500: 512 worker_connections are not enough", base)},
		"502 before a full database":   {ConnectionLimit, "97 of at most 100", failing(result.StatusError, 300, "status 500", full)},
		"ports":                        {Ports, "ip_local_port_range", failing(result.StatusError, 300, "status 502: connect() failed (99: Cannot assign requested address)", usedUp)},
		"ports that are not watched":   {Ports, "ip_local_port_range", failing(result.StatusError, 300, "status 502: cannot assign requested address", without(base, "tcp"))},
		"text of ports, with room":     {Failures, "status 500", failing(result.StatusError, 300, "status 500: dial tcp: cannot assign requested address", base)},
		"descriptors":                  {Descriptors, "ulimit", failing(result.StatusError, 300, "status 500: Can't create UNIX socket (24)", files)},
		"text of files, with room":     {Failures, "status 500", failing(result.StatusError, 300, "status 500: accept4: too many open files", base)},
		"another 24":                   {Failures, "status 500", failing(result.StatusError, 300, "status 500: order 17 is closed (24: no such state)", files.and(figures{"process app": {"fds": 940}}))},
		"connections of Redis":         {ConnectionLimit, "maxclients", failing(result.StatusError, 300, "status 500: ERR max number of clients reached", base)},
		"only the first is known":      {ConnectionLimit, "By the text of the first, the only one that is kept, the database", failing(result.StatusError, 477, "status 503: Error 1040: Too many connections", base)},
		"full, and 500":                {Failures, "status 500", failing(result.StatusError, 300, "status 500: oops", base.and(busy("app", 1.7, 0.25, 3)))},
		"a slow database":              {UserCPU, "fail at", failing(result.StatusError, 300, "status 500: context deadline exceeded", base.and(busy("app", 1.7, 0.25, 3)))},
		"memory":                       {Memory, "reset", failing(result.Reset, 300, "reset", base.and(figures{"process app": {"major_faults_total": 3000}, "host": {"psi_memory_some_seconds_total": 0.4}}))},
		"killed":                       {Ended, "memory was used up", failing(result.Refused, 300, "refused", base.and(figures{"host": {"oom_kills_total": 0.1}}))},
	} {
		run := runOf(t, light(base), c.failing)
		v := Diagnose(run, 0, 1)
		if first := v[0]; first.Name != c.want || !strings.Contains(first.Sentence, c.says) || len(first.Evidence) == 0 {
			t.Errorf("%s: want %s with %q first:\n%s", name, c.want, c.says, text(t, v))
		}
	}
}

// TestEnded: a watched process that ended is the verdict, and in which second.
func TestEnded(t *testing.T) {
	run := runOf(t, light(idle()), failing(result.Refused, 900, "connect: connection refused", idle()))
	run.Samples = append(run.Samples, result.Sample{
		At: 18.2, Sampler: result.SamplerProcess, Subject: "app", Error: "process 7 (:8080) ended: nothing listens on port 8080",
	})
	run.Steps[1].Slices = []result.Slice{{Second: 0}, {Second: 3, Counters: result.Counters{Errors: result.Errors{result.Refused: 9}}}}
	v := Diagnose(run, 0, 1)[0]
	for _, part := range []string{"app ended at 200/s, after 3.2 s", "refused, from second 3 on", "connection refused"} {
		if v.Name != Ended || !strings.Contains(v.Sentence, part) {
			t.Errorf("%s without %q: %s", v.Name, part, v.Sentence)
		}
	}
}

// oneCore is one core of two for a process, of which this much is busy.
func oneCore(name string, user, system, busyCores float64) figures {
	return figures{
		"process " + name: {
			"cpu_user_seconds_total": user, "cpu_system_seconds_total": system, "cpu_limit": 1, "cpu_allowed": 1,
			"cpu_allowed_busy_seconds_total": busyCores, "run_queue_wait_seconds_total": 2, "busiest_thread_cores": 0.3 * (user + system),
		},
		"host": {"cores": 2, "cpu_user_seconds_total": 1.1, "cpu_idle_seconds_total": 0.7},
	}
}

// TestSharedCPUs: who else uses the CPUs of the service.
func TestSharedCPUs(t *testing.T) {
	base := idle().and(postgres())
	gateway := base.and(oneCore("app", 0.5, 0.19, 0.99)).and(oneCore("db", 0.2, 0.1, 0.99))
	alone := without(base.and(oneCore("app", 0.5, 0.19, 0.99)), "process db", "postgres shop")
	opened := base.and(oneCore("db", 0.3, 0.68, 0.99))
	opened = opened.and(figures{"tcp": {"passive_opens_total": 400}})
	for name, c := range map[string]struct {
		want, says, not string
		cores           int
		failing         figures
	}{
		"a watched neighbour":       {UserCPU, "the other watched processes use 0.3 cores of the same CPUs", "load generator", 1, gateway},
		"a generator on other CPUs": {UserCPU, "the other programs on these CPUs", "load generator", 1, alone},
		"a generator on the same":   {UserCPU, "the load generator uses 0.2 cores of the same CPUs", "other programs", 2, alone},
		"a database that uses little": {
			UserCPU, "", DatabaseCPU, 1, base.and(oneCore("app", 0.12, 0.05, 0.7)).and(oneCore("db", 0.15, 0.04, 0.7)),
		},
		"connections of a database": {DatabaseCPU, "connections are opened for each request (0.8 per request)", "other programs", 1, opened},
	} {
		run := runOf(t, light(base), heavy(500, c.failing))
		run.Header.Machine.Cores = c.cores
		run.Steps[1].Total.Cost.CPUUser = 2
		verdicts := Diagnose(run, 0, 1)
		found := ""
		for _, v := range verdicts {
			if v.Name == c.not {
				t.Errorf("%s: %s", name, v.Sentence)
			}
			if v.Name == c.want {
				found = v.Sentence
			}
		}
		if found == "" || !strings.Contains(found, c.says) || strings.Contains(found, c.not) {
			t.Errorf("%s: want %s with %q:\n%s", name, c.want, c.says, text(t, verdicts))
		}
	}
}
