package result

import (
	"slices"

	"spillway/internal/lab/sheet"
)

// A Figure is the name, as in JSON, of what is known of a watched subject in an interval: "cpu_cores".
type Figure string

// Figures that other code than the tables below names.
const (
	// Of a process with its descendants.
	CPUUser             Figure = "cpu_user_seconds"
	CPUSystem           Figure = "cpu_system_seconds"
	CPUCores            Figure = "cpu_cores" // user and system time per elapsed time; also of a Redis, and of all samplers of a host
	CPUUserCores        Figure = "cpu_user_cores"
	CPUSystemCores      Figure = "cpu_system_cores"
	CPUPerRequest       Figure = "cpu_seconds_per_request"
	CPUUserPerRequest   Figure = "cpu_user_seconds_per_request"
	CPUSystemPerRequest Figure = "cpu_system_seconds_per_request"
	CPUResolution       Figure = "cpu_resolution_seconds"       // of the counter of user and system time together
	CPUSplitResolution  Figure = "cpu_split_resolution_seconds" // of user and of system time
	BorderError         Figure = "border_error_seconds"         // how far CPU was read from the step's borders, at most; unknown: interpolated
	CPULimit            Figure = "cpu_limit"                    // cores that it may use
	CPUAllowed          Figure = "cpu_allowed"                  // cores of its affinity; more than the limit with a quota
	CPUAllowedBusy      Figure = "cpu_allowed_busy_cores"       // of these, how many were busy, whoever used them
	BusiestThread       Figure = "busiest_thread_cores"
	Throttled           Figure = "throttled_share"      // of the time, in which its quota stopped it
	RunQueueWait        Figure = "run_queue_wait_share" // mean number of threads that waited for a CPU
	RSSMax              Figure = "rss_max_bytes"
	MemoryLimit         Figure = "memory_limit_bytes"
	MajorFaults         Figure = "major_faults_hz" // pages read from a disk
	FDsMax              Figure = "fds_max"
	FDsLimit            Figure = "fds_limit"
	ThreadsMax          Figure = "threads_max"
	ProcessesMax        Figure = "processes_max"

	// Of a host. CPU shares are of all CPUs together and add up to 1.
	Cores       Figure = "cores"
	UserShare   Figure = "cpu_user_share"
	SystemShare Figure = "cpu_system_share"
	IOWaitShare Figure = "cpu_iowait_share"
	StealShare  Figure = "cpu_steal_share"
	IdleShare   Figure = "cpu_idle_share"
	LoadMean    Figure = "load1_mean"
	PSIIOSome   Figure = "psi_io_some_share" // of the time, in which some task waited for a disk
	PSIMemory   Figure = "psi_memory_some_share"
	OOMKills    Figure = "oom_kills" // programs that the kernel killed because there was no memory

	// Of the sockets of a host, within one network namespace.
	ActiveOpensPerRequest  Figure = "active_opens_per_request" // connections opened by this host
	PassiveOpensPerRequest Figure = "passive_opens_per_request"
	ActiveOpens            Figure = "active_opens_hz"
	PassiveOpens           Figure = "passive_opens_hz"
	TimeWaitMax            Figure = "time_wait_max"
	PortsMax               Figure = "ports_in_use_max"
	PortsRange             Figure = "ports_range"
	PortsLeft              Figure = "ports_left"         // at the end
	PortsGone              Figure = "ports_gone_seconds" // until none is left, at the growth of the second half; unknown without growth
	Overflows              Figure = "listen_overflows"
	OverflowRate           Figure = "listen_overflows_hz"
	RetransmitShare        Figure = "retransmit_share" // of all segments sent
	SendQueue              Figure = "send_queue_mean_bytes"

	// Of a listening socket.
	AcceptQueueMax   Figure = "accept_queue_max"
	AcceptQueueLimit Figure = "accept_queue_limit"

	// Of a database or Redis.
	CommitsPerRequest Figure = "commits_per_request"
	FsyncsPerRequest  Figure = "fsyncs_per_request"
	WALPerRequest     Figure = "wal_bytes_per_request"
	Commands          Figure = "commands_hz"
	Commits           Figure = "commits_hz"
	Fsyncs            Figure = "fsyncs_hz"
	ConnectionsMax    Figure = "connections_max"
	ConnectionsLimit  Figure = "connections_limit"
	ConnectionsTaken  Figure = "connections_taken_mean" // sessions that run a statement or are in a transaction
	ConnectionsActive Figure = "connections_active_mean"
	WaitLock          Figure = "wait_lock_mean" // of the active sessions
	WaitLog           Figure = "wait_wal_mean"
	WaitIO            Figure = "wait_io_mean"
	WaitCPU           Figure = "wait_cpu_mean" // that run or are ready to
	BusiestWaitMean   Figure = "busiest_wait_mean"
	MainThread        Figure = "main_thread_cores" // of the thread of a Redis that runs commands
	MemoryMax         Figure = "memory_max_bytes"
)

// A Definition says how a figure is computed, and how it is shown.
type Definition struct {
	Name   Figure
	how    func(i interval, source string) float64 // nil: SubjectUsage.addDerived adds it
	source string                                  // a value of the samples; "a + b" is the sum of two, "a / b" their quotient
	Unit   string                                  // as in package sheet; UnitCount: a whole number
	Words  string                                  // as a heading, for evidence
	Line   string                                  // its part of a line of a report, "{} threads"; "": reports do not show it
	Of     Figure                                  // a limit that its part of a line shows too, "7 of 100", if it is known
	Rare   bool                                    // its part of a line is left out unless it is above 0
}

// Definitions returns the figures of a sampler in the order in which they are shown. To add a figure, add a row to the table of its
// sampler: JSON, CSV, and with Line the reports have it then. Rules of package diagnose need a constant above.
func Definitions(sampler string) []Definition {
	return map[string][]Definition{
		SamplerProcess: processFigures, SamplerHost: hostFigures, SamplerTCP: tcpFigures, SamplerListener: listenerFigures,
		SamplerPostgres: databaseFigures, SamplerMySQL: databaseFigures, SamplerRedis: databaseFigures, SamplerWatch: watchFigures,
	}[sampler]
}

// Define returns the definition of a figure of a sampler, which must have it.
func Define(sampler string, f Figure) Definition {
	all := Definitions(sampler)
	return all[slices.IndexFunc(all, func(d Definition) bool { return d.Name == f })]
}

var processFigures = []Definition{
	{Name: CPUUser, how: interval.growth, source: "cpu_user_seconds_total", Unit: sheet.UnitSeconds},
	{Name: CPUSystem, how: interval.growth, source: "cpu_system_seconds_total", Unit: sheet.UnitSeconds},
	{Name: CPUCores, Unit: sheet.UnitCores, Words: "CPU"},
	{Name: CPUUserCores, Unit: sheet.UnitCores, Words: "user time"},
	{Name: CPUSystemCores, Unit: sheet.UnitCores, Words: "system time"},
	{Name: CPUPerRequest, Unit: sheet.UnitSeconds, Words: "CPU per request"},
	{Name: CPUUserPerRequest, Unit: sheet.UnitSeconds},
	{Name: CPUSystemPerRequest, Unit: sheet.UnitSeconds},
	{Name: CPUResolution, how: interval.coarsest, source: "cpu_resolution_seconds", Unit: sheet.UnitSeconds},
	{Name: CPUSplitResolution, how: interval.coarsest, source: "cpu_split_resolution_seconds", Unit: sheet.UnitSeconds},
	{Name: BorderError, how: interval.borderError, source: "cpu_user_seconds_total", Unit: sheet.UnitSeconds},
	{Name: CPULimit, how: interval.last, source: "cpu_limit", Unit: sheet.UnitCores, Words: "CPU that it may use"},
	{Name: CPUAllowed, how: interval.last, source: "cpu_allowed", Unit: sheet.UnitCores},
	{Name: CPUAllowedBusy, how: interval.rate, source: "cpu_allowed_busy_seconds_total", Unit: sheet.UnitCores},
	{Name: BusiestThread, how: interval.mean, source: "busiest_thread_cores", Unit: sheet.UnitCores, Words: "busiest thread"},
	{Name: Throttled, how: interval.throttled, source: "throttled_seconds_total", Unit: sheet.UnitShare, Words: "stopped by its quota"},
	{Name: RunQueueWait, how: interval.rate, source: "run_queue_wait_seconds_total", Words: "threads that waited for a CPU"},
	{Name: "run_queue_wait_seconds_per_request", how: interval.perRequest, source: "run_queue_wait_seconds_total", Unit: sheet.UnitSeconds},
	{Name: "switches_per_request", how: interval.perRequest, source: "voluntary_switches_total + involuntary_switches_total"},
	{Name: RSSMax, how: interval.max, source: "rss_bytes", Unit: sheet.UnitBytes, Words: "memory", Line: "{}"},
	{Name: MemoryLimit, how: interval.last, source: "memory_limit_bytes", Unit: sheet.UnitBytes, Words: "memory limit"},
	{Name: MajorFaults, how: interval.rate, source: "major_faults_total", Unit: sheet.UnitRate, Words: "pages read from a disk"},
	{Name: FDsMax, how: interval.max, source: "fds", Unit: sheet.UnitCount, Words: "open files", Line: "{} fds", Of: FDsLimit},
	{Name: FDsLimit, how: interval.last, source: "fds_limit", Unit: sheet.UnitCount, Words: "open files allowed"},
	{Name: ThreadsMax, how: interval.max, source: "threads", Unit: sheet.UnitCount, Words: "threads", Line: "{} threads"},
	{Name: ProcessesMax, how: interval.max, source: "processes", Unit: sheet.UnitCount, Words: "processes"},
}

var hostFigures = []Definition{
	{Name: Cores, how: interval.last, source: "cores", Unit: sheet.UnitCores, Line: "{} cores"},
	{Name: UserShare, how: interval.cpuShare, source: "cpu_user_seconds_total", Unit: sheet.UnitShare},
	{Name: SystemShare, how: interval.cpuShare, source: "cpu_system_seconds_total", Unit: sheet.UnitShare},
	{Name: "cpu_softirq_share", how: interval.cpuShare, source: "cpu_softirq_seconds_total", Unit: sheet.UnitShare},
	{Name: IOWaitShare, how: interval.cpuShare, source: "cpu_iowait_seconds_total", Unit: sheet.UnitShare},
	{Name: StealShare, how: interval.cpuShare, source: "cpu_steal_seconds_total", Unit: sheet.UnitShare},
	{Name: IdleShare, how: interval.cpuShare, source: "cpu_idle_seconds_total", Unit: sheet.UnitShare},
	{Name: LoadMean, how: interval.mean, source: "load1", Line: "load {}"},
	{Name: "psi_cpu_some_share", how: interval.rate, source: "psi_cpu_some_seconds_total", Unit: sheet.UnitShare, Line: "CPU pressure {}"},
	{
		Name: PSIIOSome, how: interval.rate, source: "psi_io_some_seconds_total", Unit: sheet.UnitShare, Line: "I/O pressure {}", Rare: true,
		Words: "time in which a program waited for a disk",
	},
	{Name: "psi_io_full_share", how: interval.rate, source: "psi_io_full_seconds_total", Unit: sheet.UnitShare},
	{
		Name: PSIMemory, how: interval.rate, source: "psi_memory_some_seconds_total", Unit: sheet.UnitShare, Line: "memory pressure {}",
		Rare: true, Words: "time in which a program waited for memory",
	},
	{
		Name: OOMKills, how: interval.growth, source: "oom_kills_total", Unit: sheet.UnitCount, Line: "{} programs killed for memory", Rare: true,
		Words: "programs killed for memory",
	},
	{Name: "memory_available_min_bytes", how: interval.min, source: "memory_available_bytes", Unit: sheet.UnitBytes, Line: "{} available"},
}

var tcpFigures = []Definition{
	{Name: ActiveOpensPerRequest, how: interval.perRequest, source: "active_opens_total"},
	{Name: PassiveOpensPerRequest, how: interval.perRequest, source: "passive_opens_total", Words: "connections accepted per request"},
	{Name: ActiveOpens, how: interval.rate, source: "active_opens_total", Unit: sheet.UnitRate},
	{Name: PassiveOpens, how: interval.rate, source: "passive_opens_total", Unit: sheet.UnitRate, Words: "connections accepted"},
	{Name: TimeWaitMax, how: interval.max, source: "time_wait", Unit: sheet.UnitCount, Words: "sockets in TIME_WAIT", Line: "TIME_WAIT {}"},
	{Name: "established_max", how: interval.max, source: "established", Unit: sheet.UnitCount},
	{
		Name: PortsMax, how: interval.max, source: "ports_in_use", Unit: sheet.UnitCount, Words: "local ports in use", Line: "{} ports in use",
		Of: PortsRange,
	},
	{Name: PortsRange, how: interval.last, source: "ports_range", Unit: sheet.UnitCount, Words: "local ports"},
	{Name: PortsLeft, how: interval.portsLeft, source: "ports_in_use", Unit: sheet.UnitCount, Line: "{} left"},
	{Name: PortsGone, how: interval.portsGone, source: "ports_in_use", Unit: sheet.UnitSeconds, Line: "gone in {}", Rare: true},
	{Name: "listen_drops", how: interval.growth, source: "listen_drops_total", Unit: sheet.UnitCount, Line: "{} listen drops", Rare: true},
	{
		Name: Overflows, how: interval.growth, source: "listen_overflows_total", Unit: sheet.UnitCount,
		Line: "{} accept queue overflows", Rare: true,
	},
	{
		Name: OverflowRate, how: interval.rate, source: "listen_overflows_total", Unit: sheet.UnitRate,
		Words: "connections dropped by a full accept queue",
	},
	{
		Name: "attempt_fails", how: interval.growth, source: "attempt_fails_total", Unit: sheet.UnitCount, Line: "connects failed: {}",
		Rare: true,
	},
	{
		Name: RetransmitShare, how: interval.quotient, source: "retransmits_total / segments_out_total", Unit: sheet.UnitShare,
		Words: "segments sent again", Line: "{} of segments retransmitted", Rare: true,
	},
	{
		Name: SendQueue, how: interval.mean, source: "send_queue_bytes", Unit: sheet.UnitBytes,
		Words: "bytes that wait to be sent or confirmed",
	},
}

var listenerFigures = []Definition{
	{
		Name: AcceptQueueMax, how: interval.max, source: "accept_queue", Unit: sheet.UnitCount, Words: "accept queue, at most",
		Line: "accept queue {}", Of: AcceptQueueLimit, Rare: true,
	},
	{Name: AcceptQueueLimit, how: interval.last, source: "accept_queue_limit", Unit: sheet.UnitCount},
}

var databaseFigures = []Definition{
	{Name: "statements_per_request", how: interval.perRequest, source: "statements_total", Line: "{} statements/request"},
	{Name: "commands_per_request", how: interval.perRequest, source: "commands_total", Line: "{} commands/request"},
	{Name: CommitsPerRequest, how: interval.perRequest, source: "commits_total", Line: "{} commits/request"},
	{Name: "rollbacks_per_request", how: interval.perRequest, source: "rollbacks_total", Line: "{} rollbacks/request", Rare: true},
	{Name: FsyncsPerRequest, how: interval.perRequest, source: "fsyncs_total", Line: "{} fsyncs/request"},
	{Name: WALPerRequest, how: interval.perRequest, source: "wal_bytes_total", Unit: sheet.UnitBytes, Line: "{} WAL/request"},
	{Name: "statements_hz", how: interval.rate, source: "statements_total", Unit: sheet.UnitRate, Line: "{} statements/s"},
	{Name: Commands, how: interval.rate, source: "commands_total", Unit: sheet.UnitRate, Words: "commands", Line: "{} commands/s"},
	{Name: Commits, how: interval.rate, source: "commits_total", Unit: sheet.UnitRate, Words: "commits", Line: "{} commits/s"},
	{Name: Fsyncs, how: interval.rate, source: "fsyncs_total", Unit: sheet.UnitRate, Words: "fsyncs", Line: "{} fsyncs/s"},
	{
		Name: ConnectionsMax, how: interval.max, source: "connections", Unit: sheet.UnitCount, Words: "connections", Line: "{} connections",
		Of: ConnectionsLimit,
	},
	{Name: ConnectionsLimit, how: interval.last, source: "connections_limit", Unit: sheet.UnitCount},
	{Name: ConnectionsTaken, how: interval.taken, source: "connections_active", Words: "connections taken"},
	{Name: ConnectionsActive, how: interval.mean, source: "connections_active", Words: "running statements", Line: "{} active"},
	{Name: WaitLock, how: interval.lockWait, source: "wait_lock", Words: "waiting for a lock"},
	{Name: WaitLog, how: interval.mean, source: "wait_wal", Words: "waiting for the log"},
	{Name: WaitIO, how: interval.mean, source: "wait_io", Words: "waiting for a disk"},
	{Name: WaitCPU, how: interval.mean, source: "wait_cpu", Words: "running or ready to"},
	{Name: BusiestWaitMean, Line: "most in {wait} ({} sessions)"},
	{
		Name: CPUCores, how: interval.rate, source: "cpu_user_seconds_total + cpu_system_seconds_total", Unit: sheet.UnitCores, Words: "CPU",
		Line: "CPU {}",
	},
	{
		Name: MainThread, how: interval.rate, source: "main_thread_user_seconds_total + main_thread_system_seconds_total",
		Unit: sheet.UnitCores, Words: "thread that runs commands",
	},
	{Name: MemoryMax, how: interval.max, source: "memory_bytes", Unit: sheet.UnitBytes, Line: "{} memory"},
}

// watchFigures are the cost of the samplers of a host, which are added up.
var watchFigures = []Definition{
	{Name: CPUCores, how: interval.rate, source: "cpu_seconds_total", Unit: sheet.UnitShare, Line: "{} of a core"},
	{Name: "failures", how: interval.growth, source: "failures_total", Unit: sheet.UnitCount, Line: "{} readings failed", Rare: true},
}
