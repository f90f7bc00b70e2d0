package result

// A Usage is what the watched processes, hosts, sockets and databases used in an interval. An unknown figure is nil (null
// in JSON), never 0. A figure is unknown with fewer than two samples, if a counter went backwards because of a restart,
// or without requests to divide by. Figures per request are per answered request.
type Usage struct {
	From      float64         `json:"from_seconds"` // since Header.StartedAt
	To        float64         `json:"to_seconds"`
	Requests  int64           `json:"answered"` // divisor of the figures per request
	Processes []ProcessUsage  `json:"processes"`
	Hosts     []HostUsage     `json:"hosts"`
	TCP       []TCPUsage      `json:"tcp"`
	Listeners []ListenerUsage `json:"listeners"`
	Databases []DatabaseUsage `json:"databases"`
	Watch     []WatchUsage    `json:"watch"` // per host: the cost of watching
}

// ProcessUsage is the usage of a process with its descendants.
type ProcessUsage struct {
	Host                string   `json:"host,omitempty"`
	Name                string   `json:"name"`
	CPUUser             *float64 `json:"cpu_user_seconds"`
	CPUSystem           *float64 `json:"cpu_system_seconds"`
	CPUCores            *float64 `json:"cpu_cores"` // user and system per elapsed time
	CPUUserCores        *float64 `json:"cpu_user_cores"`
	CPUSystemCores      *float64 `json:"cpu_system_cores"`
	CPUPerRequest       *float64 `json:"cpu_seconds_per_request"`
	CPUUserPerRequest   *float64 `json:"cpu_user_seconds_per_request"`
	CPUSystemPerRequest *float64 `json:"cpu_system_seconds_per_request"`
	CPUResolution       *float64 `json:"cpu_resolution_seconds"`       // of the counter of user and system time together
	CPUSplitResolution  *float64 `json:"cpu_split_resolution_seconds"` // of user and of system time
	BelowResolution     []string `json:"below_resolution,omitempty"`   // figures that are only an upper bound, see Divide
	BorderError         *float64 `json:"border_error_seconds"`         // how far CPU was read from the step's borders, at most; nil: interpolated
	WaitShare           *float64 `json:"run_queue_wait_share"`         // mean number of threads that waited for a CPU
	WaitPerRequest      *float64 `json:"run_queue_wait_seconds_per_request"`
	SwitchesPerRequest  *float64 `json:"switches_per_request"` // context switches, voluntary and not
	RSSMax              *float64 `json:"rss_max_bytes"`
	FDsMax              *float64 `json:"fds_max"`
	FDsLimit            *float64 `json:"fds_limit"`
	ThreadsMax          *float64 `json:"threads_max"`
	ProcessesMax        *float64 `json:"processes_max"`
}

// HostUsage is the usage of a host. CPU shares are of all CPUs together and add up to 1.
type HostUsage struct {
	Host            string   `json:"host,omitempty"`
	Cores           *float64 `json:"cores"`
	User            *float64 `json:"cpu_user_share"`
	System          *float64 `json:"cpu_system_share"`
	Softirq         *float64 `json:"cpu_softirq_share"`
	IOWait          *float64 `json:"cpu_iowait_share"`
	Steal           *float64 `json:"cpu_steal_share"`
	Idle            *float64 `json:"cpu_idle_share"`
	Load1           *float64 `json:"load1_mean"`
	PSICPU          *float64 `json:"psi_cpu_some_share"` // of the time, in which some task waited for a CPU
	PSIIOSome       *float64 `json:"psi_io_some_share"`
	PSIIOFull       *float64 `json:"psi_io_full_share"`
	PSIMemory       *float64 `json:"psi_memory_some_share"`
	MemoryAvailable *float64 `json:"memory_available_min_bytes"`
}

// TCPUsage is about the sockets of a host, within one network namespace.
type TCPUsage struct {
	Host              string   `json:"host,omitempty"`
	ActivePerRequest  *float64 `json:"active_opens_per_request"` // connections opened by this host
	PassivePerRequest *float64 `json:"passive_opens_per_request"`
	Active            *float64 `json:"active_opens_hz"`
	Passive           *float64 `json:"passive_opens_hz"`
	TimeWaitMax       *float64 `json:"time_wait_max"`
	EstablishedMax    *float64 `json:"established_max"`
	PortsMax          *float64 `json:"ports_in_use_max"`
	PortsRange        *float64 `json:"ports_range"`
	PortsLeft         *float64 `json:"ports_left"`         // at the end
	PortsGone         *float64 `json:"ports_gone_seconds"` // until none is left, at the growth of the second half; nil without growth
	ListenDrops       *float64 `json:"listen_drops"`
	ListenOverflows   *float64 `json:"listen_overflows"`
	AttemptFails      *float64 `json:"attempt_fails"`
	RetransmitShare   *float64 `json:"retransmit_share"` // of all segments sent
}

// ListenerUsage is about one listening socket.
type ListenerUsage struct {
	Host       string   `json:"host,omitempty"`
	Address    string   `json:"address"`
	QueueMax   *float64 `json:"accept_queue_max"`
	QueueLimit *float64 `json:"accept_queue_limit"`
}

// DatabaseUsage is the usage of a database or Redis.
type DatabaseUsage struct {
	Host                 string   `json:"host,omitempty"`
	Name                 string   `json:"name"`
	Kind                 string   `json:"kind"` // postgres, mysql or redis
	StatementsPerRequest *float64 `json:"statements_per_request"`
	CommandsPerRequest   *float64 `json:"commands_per_request"` // Redis
	CommitsPerRequest    *float64 `json:"commits_per_request"`
	RollbacksPerRequest  *float64 `json:"rollbacks_per_request"`
	FsyncsPerRequest     *float64 `json:"fsyncs_per_request"`
	WALPerRequest        *float64 `json:"wal_bytes_per_request"`
	Statements           *float64 `json:"statements_hz"`
	Commands             *float64 `json:"commands_hz"`
	Commits              *float64 `json:"commits_hz"`
	Fsyncs               *float64 `json:"fsyncs_hz"`
	ConnectionsMax       *float64 `json:"connections_max"`
	ConnectionsLimit     *float64 `json:"connections_limit"`
	ActiveMean           *float64 `json:"connections_active_mean"`
	BusiestWait          string   `json:"busiest_wait,omitempty"` // what most sessions waited for: lock, io, …
	BusiestWaitMean      *float64 `json:"busiest_wait_mean"`      // mean number of these sessions
	CPUCores             *float64 `json:"cpu_cores"`              // if the database reports it
	MemoryMax            *float64 `json:"memory_max_bytes"`
}

// WatchUsage is the cost of the samplers of a host.
type WatchUsage struct {
	Host     string   `json:"host,omitempty"`
	CPUCores *float64 `json:"cpu_cores"` // of all samplers
	Failures *float64 `json:"failures"`  // readings that failed
}
