package diagnose

import (
	"maps"
	"math"

	"spillway/internal/lab/result"
)

// light is a step that passes, with requests of 5 ms.
func light(f figures) level {
	return level{offered: 100, rate: 100, alone: 0.005, mean: 0.0051, size: 300, figures: f}
}

// heavy is a step that fails: the service answers as many requests as it can, and the others wait.
func heavy(rate float64, f figures) level {
	return level{offered: 2 * rate, rate: rate, alone: 0.02, mean: 0.2, size: 300, failed: true, figures: f}
}

// fullQueues are the symptoms that follow from any cause: the accept queue is full, connections are dropped, sessions are taken.
func fullQueues() figures {
	return figures{
		"tcp":                     {"listen_overflows_total": 20, "listen_drops_total": 20},
		"listener 127.0.0.1:8080": {"accept_queue": 4097},
	}
}

// evidence is a run with one cause, and the expected verdict.
type evidence struct {
	want   string
	levels []level
}

func pair(want string, passing, failing level) evidence {
	return evidence{want, []level{passing, failing}}
}

// cases are runs with one cause each, by name.
func cases() map[string]evidence {
	all := cpuCases()
	maps.Copy(all, queueCases())
	maps.Copy(all, hostCases())
	return all
}

// cpuCases are services without CPU to spare.
func cpuCases() map[string]evidence {
	base, both := idle(), idle().and(postgres())
	taken := figures{"postgres shop": {"connections_active": 9.8, "connections_idle": 0.2}}
	return map[string]evidence{
		"user CPU":                     pair(UserCPU, light(base), heavy(1000, base.and(busy("app", 1.7, 0.25, 3)))),
		"user CPU, full accept queue":  pair(UserCPU, light(base), heavy(1000, base.and(busy("app", 1.7, 0.25, 3)).and(fullQueues()))),
		"user CPU, full database pool": pair(UserCPU, light(both), heavy(1000, both.and(busy("app", 1.7, 0.25, 3)).and(taken))),
		"user CPU of one thread": pair(UserCPU, light(base), heavy(1000, base.and(busy("app", 0.9, 0.08, 0.1)).and(figures{
			"process app": {"busiest_thread_cores": 0.97, "threads": 11},
		}))),
		"user CPU of the only worker": pair(UserCPU, light(base), heavy(200, base.and(busy("app", 0.9, 0.08, 0.1)).and(figures{
			"process app": {"busiest_thread_cores": 0.97, "threads": 2, "processes": 2},
		}))),
		"system CPU, connection churn": pair(SystemCPU, light(base), heavy(1000, base.and(busy("app", 0.9, 1.0, 3)).and(figures{"tcp": {"passive_opens_total": 1000}}))),
		"system CPU":                   pair(SystemCPU, light(base), heavy(1000, base.and(busy("app", 0.3, 1.6, 3)))),
	}
}

// queueCases are services that wait: for a lock, a worker, a database or Redis.
func queueCases() map[string]evidence {
	base, both := idle(), idle().and(postgres())
	taken := figures{"postgres shop": {"connections_active": 9.8, "connections_idle": 0.2}}
	return map[string]evidence{
		"lock that is held asleep":           pair(Lock, light(base), heavy(200, base)),
		"lock around computing":              pair(Lock, light(base), heavy(200, base.and(busy("app", 0.95, 0.05, 0.1)))),
		"pool of workers":                    pair(WorkerPool, light(base), heavy(1600, base.and(busy("app", 0.2, 0.1, 0.1)))),
		"pool of workers, full accept queue": pair(WorkerPool, light(base), heavy(800, base.and(fullQueues()))),
		"one worker":                         pair(WorkerPool, light(base), heavy(200, base.and(fullQueues()).and(figures{"process app": {"threads": 2, "processes": 2}}))),
		"database pool":                      pair(DatabasePool, light(both), heavy(2000, both.and(taken).and(figures{"postgres shop": {"wait_timeout": 9}}))),
		"database pool, held in a transaction": pair(DatabasePool, light(both), heavy(2000, both.and(figures{
			"postgres shop": {"connections_active": 2, "connections_idle_in_transaction": 7.5},
		}))),
		"database CPU": pair(DatabaseCPU, light(both), heavy(500, both.and(busy("db", 1.9, 0.05, 4)).and(taken).and(figures{"postgres shop": {"wait_cpu": 9}}))),
		"database CPU, full pool, full accept queue": pair(DatabaseCPU, light(both),
			heavy(500, both.and(busy("db", 1.9, 0.05, 4)).and(taken).and(fullQueues()).and(figures{"postgres shop": {"wait_cpu": 5, "wait_lock": 4}}))),
		"database lock": pair(DatabaseLock, light(both), heavy(300, both.and(taken).and(figures{"postgres shop": {"wait_lock": 8.9}}))),
		"commit":        pair(Commit, light(both), heavy(800, both.and(taken).and(figures{"postgres shop": {"wait_io": 1, "wait_lwlock": 8, "wait_wal": 9, "fsyncs_total": 50}}))),
		"Redis thread": pair(RedisThread, light(base), heavy(500, base.and(figures{
			"redis cache":   {"main_thread_user_seconds_total": 0.9, "main_thread_system_seconds_total": 0.07, "cpu_user_seconds_total": 0.9, "cpu_system_seconds_total": 0.1, "commands_total": 500, "connections": 4},
			"process redis": {"cpu_user_seconds_total": 0.9, "cpu_system_seconds_total": 0.1, "busiest_thread_cores": 0.97, "cpu_limit": 4, "threads": 5, "processes": 1},
		}))),
		"Redis thread, by its process alone": pair(RedisThread, light(base), heavy(500, base.and(figures{
			"process redis": {"cpu_user_seconds_total": 0.9, "cpu_system_seconds_total": 0.1, "busiest_thread_cores": 0.97, "cpu_limit": 4, "threads": 5, "processes": 1},
		}))),
	}
}

// hostCases are limits of the network, the host and the load generator.
func hostCases() map[string]evidence {
	base := idle()
	taken := figures{"postgres shop": {"connections_active": 9.8, "connections_idle": 0.2}}
	return map[string]evidence{
		"accept queue whose drops explain the time": pair(AcceptQueue, light(base), level{
			offered: 600, rate: 598, alone: 0.005, mean: 0.085, failed: true, figures: base.and(fullQueues()).and(figures{"tcp": {"listen_overflows_total": 72}}),
		}),
		"accept queue": pair(AcceptQueue, level{offered: 100, rate: 100, alone: 0.001, mean: 0.001, figures: base}, level{
			offered: 200, rate: 190, alone: 0.001, mean: 0.15, failed: true, figures: base.and(fullQueues()).and(figures{"tcp": {"listen_overflows_total": 12}}),
		}),
		"descriptors": pair(Descriptors, light(base), heavy(1600, base.and(fullQueues()).and(figures{"process app": {"fds": 1024, "fds_limit": 1024}}))),
		"ports":       pair(Ports, light(base), heavy(1600, base.and(figures{"tcp": {"ports_in_use": 28200, "time_wait": 28000}}))),
		"ports of the load generator": pair(Ports, light(base), level{
			offered: 2000, rate: 900, alone: 0.001, mean: 0.001, failed: true, validity: result.GeneratorLimited,
			reasons: []result.Reason{{Text: "9000 requests (45 %) failed because this host ran out of local ports or open files; see --source and ulimit -n"}},
			errors:  map[result.ErrorClass]int64{result.NoLocalPort: 9000}, figures: base,
		}),
		"files of the load generator": pair(Descriptors, light(base), level{
			offered: 2000, rate: 900, alone: 0.001, mean: 0.001, failed: true, validity: result.GeneratorLimited,
			errors: map[result.ErrorClass]int64{result.NoFile: 9000}, figures: base,
		}),
		"memory pressure": pair(Memory, light(base), heavy(300, base.and(figures{
			"process app": {"major_faults_total": 3000, "rss_bytes": 63 << 20, "memory_limit_bytes": 64 << 20}, "host": {"psi_memory_some_seconds_total": 0.4, "psi_io_some_seconds_total": 0.6},
		}))),
		"garbage collection at the heap's limit": pair(Memory, light(base.and(figures{"process app": {"rss_bytes": 300 << 20, "memory_limit_bytes": 512 << 20}})),
			heavy(300, base.and(busy("app", 1.8, 0.1, 3)).and(figures{"process app": {"rss_bytes": 505 << 20, "memory_limit_bytes": 512 << 20}}))),
		"network delay": pair(NetworkDelay, level{offered: 100, rate: 100, alone: 0.04, mean: 0.0402, connect: 0.04, size: 300, figures: base},
			level{offered: 1000, rate: 500, alone: 0.04, mean: 0.0405, connect: 0.04, size: 300, failed: true, figures: base}),
		"network delay on connections that were open before": pair(NetworkDelay, level{offered: 100, rate: 100, alone: 0.04, mean: 0.0402, connect: math.NaN(), size: 300, figures: base},
			level{offered: 5000, rate: 2400, alone: 0.04, mean: 0.0405, connect: math.NaN(), size: 300, failed: true, figures: base}),
		"too few connections of the load": pair(Generator, level{offered: 100, rate: 100, alone: 0.02, mean: 0.0202, connect: 0.0002, size: 300, figures: base},
			level{offered: 8000, rate: 4900, alone: 0.02, mean: 0.0203, connect: 0.0002, size: 300, failed: true, figures: base}),
		"bandwidth": pair(Bandwidth, level{offered: 100, rate: 100, alone: 0.005, mean: 0.006, first: 0.001, size: 10_000, figures: base},
			level{offered: 400, rate: 240, alone: 0.05, mean: 0.2, first: 0.15, size: 10_000, failed: true, figures: base.and(figures{"tcp": {"send_queue_bytes": 900_000}})}),
		"one worker, and bytes of other connections that nobody reads": pair(WorkerPool, light(base), heavy(200, base.and(figures{
			"process app": {"threads": 2, "processes": 2}, "tcp": {"send_queue_bytes": 10 << 20},
		}))),
		"rate limit": pair(RateLimit, light(base), level{
			offered: 600, rate: 300, alone: 0.001, mean: 0.001, failed: true, statuses: map[int]float64{429: 0.5}, figures: base,
		}),
		"rate limit with 503": pair(RateLimit, light(base), level{
			offered: 600, rate: 300, alone: 0.001, mean: 0.001, failed: true, statuses: map[int]float64{503: 0.5}, figures: base,
		}),
		"shedding for lack of CPU": pair(UserCPU, light(base), level{
			offered: 2000, rate: 1000, alone: 0.01, mean: 0.02, failed: true, statuses: map[int]float64{503: 0.5}, figures: base.and(busy("app", 1.75, 0.22, 3)),
		}),
		"user CPU up to a quota": pair(UserCPU, light(base), heavy(500, base.and(busy("app", 0.48, 0.02, 0.5)).and(figures{"process app": {
			"cpu_limit": 0.5, "cpu_allowed": 4, "cpu_allowed_busy_seconds_total": 3, "throttled_seconds_total": 0.8,
		}}))),
		"neighbour on the service's only core": pair(Neighbour, light(base.and(figures{"process app": {"cpu_limit": 1, "cpu_allowed": 1, "cpu_allowed_busy_seconds_total": 0.97}})), heavy(300, base.and(figures{
			"process app": {"cpu_user_seconds_total": 0.33, "cpu_system_seconds_total": 0.01, "cpu_limit": 1, "run_queue_wait_seconds_total": 1.3, "cpu_allowed": 1, "cpu_allowed_busy_seconds_total": 0.99},
			"host":        {"cpu_user_seconds_total": 1.1, "cpu_idle_seconds_total": 2.8},
		}))),
		"neighbour on divided cores": pair(Neighbour, light(base), crowded(base)),
		"generator": pair(Generator, light(base), level{
			offered: 4000, rate: 900, alone: 0.001, mean: 0.003, failed: true, validity: result.GeneratorLimited,
			reasons: []result.Reason{{Text: "a generator thread was busy 99 % of the time; use more --workers"}}, figures: base.and(busy("app", 1.8, 0.1, 3)),
		}),
		"generator that is stopped": pair(Generator, light(base), level{
			offered: 4000, rate: 900, alone: 0.001, mean: 0.003, failed: true, validity: result.HostContended,
			reasons: []result.Reason{{Text: "the generator waited 90 % of the time for a CPU that other programs used"}}, figures: base,
		}),
		"database lock, and no process watched": pair(DatabaseLock, light(figures{"postgres shop": postgres()["postgres shop"]}),
			heavy(300, figures{"postgres shop": postgres().and(taken)["postgres shop"]}.and(figures{"postgres shop": {"wait_lock": 8.9}}))),
		"a lock, and nothing watched": pair(Unknown, light(nil), heavy(200, nil)),
		"nothing watched":             pair(Unknown, level{offered: 100, rate: 100, alone: 0.0001, mean: 0.00011}, level{offered: 5000, rate: 4000, alone: 0.0002, mean: 0.01, failed: true}),
	}
}

// crowded is a step on divided cores, where another program uses most of the service's core.
func crowded(base figures) level {
	l := heavy(200, base.and(figures{
		"process app": {"cpu_user_seconds_total": 0.3, "cpu_system_seconds_total": 0.03, "cpu_limit": 1, "run_queue_wait_seconds_total": 3},
	}))
	l.validity, l.reasons = result.HostContended, []result.Reason{{Text: "programs of no host used 66 % of the target's cores"}}
	l.hosts = []result.HostShare{
		{Name: "generator", CPUs: 1, CoreCount: 1, Elapsed: 10, Used: 0.5}, {Name: "target", CPUs: 1, CoreCount: 1, Elapsed: 10, Used: 3.3, Foreign: 6.6},
	}
	return l
}
