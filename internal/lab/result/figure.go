package result

import (
	_ "embed"
	"encoding/csv"
	"slices"
	"strings"
)

// A Figure is the name, as in JSON, of what is known of a watched subject in an interval: "cpu_cores".
type Figure string

// Figures that code names.
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
	how    string // a method of interval, see ways; "": SubjectUsage.addDerived adds it
	source string // a value of the samples; "a + b" is the sum of two, "a / b" their quotient
	Unit   string // as in package sheet; UnitCount: a whole number
	Line   string // its part of a line of a report, "{} threads"; "": reports do not show it
	Of     Figure // a limit that its part of a line shows too, "7 of 100", if it is known
	Rare   bool   // its part of a line is left out unless it is above 0
	Words  string // as a heading, for evidence
}

// figuresFile has a row per figure, in the order in which they are shown. To add a figure, add a row: JSON, CSV, and with a line the
// reports have it then. Rules of package diagnose need a constant above.
//
//go:embed figures.csv
var figuresFile string

// ways are the methods that compute a figure from its source.
var ways = map[string]func(i interval, source string) float64{
	"growth": interval.growth, "rate": interval.rate, "perRequest": interval.perRequest, "quotient": interval.quotient,
	"max": interval.max, "min": interval.min, "mean": interval.mean, "last": interval.last, "coarsest": interval.coarsest,
	"borderError": interval.borderError, "throttled": interval.throttled, "cpuShare": interval.cpuShare,
	"portsLeft": interval.portsLeft, "portsGone": interval.portsGone, "taken": interval.taken, "lockWait": interval.lockWait,
}

// Definitions returns the figures of a sampler in the order in which they are shown. Those of all databases are the same.
func Definitions(sampler string) []Definition {
	if Database(sampler) {
		sampler = "database"
	}
	rows, err := csv.NewReader(strings.NewReader(figuresFile)).ReadAll()
	if err != nil {
		panic("bug: " + err.Error())
	}
	var found []Definition
	for _, r := range rows {
		if r[0] == sampler {
			found = append(found, Definition{
				Name: Figure(r[1]), how: r[2], source: r[3], Unit: r[4], Line: r[5], Of: Figure(r[6]), Rare: r[7] != "", Words: r[8],
			})
		}
	}
	return found
}

// Define returns the definition of a figure of a sampler, which must have it.
func Define(sampler string, f Figure) Definition {
	all := Definitions(sampler)
	return all[slices.IndexFunc(all, func(d Definition) bool { return d.Name == f })]
}
