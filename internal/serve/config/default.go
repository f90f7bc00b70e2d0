package config

import (
	"reflect"
	"runtime"
	"time"
)

// Default returns the default configuration, without feeds. Only Pool.Max depends on the
// machine: (cores x 2) + 1.
func Default() Config {
	return Config{
		Listen: "127.0.0.1:8080",
		Admin:  Admin{Listen: "127.0.0.1:9090"},
		Data:   "spillway-data",
		Auth:   DefaultAuth(),

		ReplicaLagMax: 10 * time.Second,

		Pool: Pool{
			Min:              1,
			Max:              2*runtime.GOMAXPROCS(0) + 1,
			MaxLifetime:      30 * time.Minute,
			MaxIdleTime:      5 * time.Minute,
			ConnectTimeout:   5 * time.Second,
			AcquireTimeout:   2 * time.Second,
			StatementTimeout: 5 * time.Second,
		},
		HTTP: HTTP{
			Connections:  65536,
			HeaderBytes:  16 << 10,
			BodyBytes:    4 << 20,
			BodiesBytes:  256 << 20,
			ReadTimeout:  10 * time.Second,
			WriteTimeout: 10 * time.Second,
			IdleTimeout:  time.Minute,
			DrainTimeout: 10 * time.Second,
			OpenAPI:      true,
			RateBurst:    100,
			RateClients:  100_000,

			CompressBytes: 64 << 20,
		},
		Log:    Log{Level: "info", Format: "text"},
		Spool:  Spool{Bytes: 1 << 30, QueueBytes: 64 << 20, GroupBytes: 1 << 20, MaxAge: 168 * time.Hour},
		Popups: DefaultPopups(),
	}
}

// Preset returns the defaults of a list's block type; false if t is no such type.
func Preset(t reflect.Type) (reflect.Value, bool) {
	switch t {
	case reflect.TypeFor[Feed]():
		return reflect.ValueOf(DefaultFeed()), true
	case reflect.TypeFor[Query]():
		return reflect.ValueOf(DefaultQuery()), true
	case reflect.TypeFor[Stream]():
		return reflect.ValueOf(DefaultStream()), true
	case reflect.TypeFor[AdminToken]():
		return reflect.ValueOf(AdminToken{Role: "read"}), true
	case reflect.TypeFor[JWTKey]():
		return reflect.ValueOf(JWTKey{Algorithm: "HS256"}), true
	}
	return reflect.Value{}, false
}

// DefaultQuery returns the defaults of a query. Path and SQL have none.
func DefaultQuery() Query {
	return Query{
		Timestamps: "database",
		Numbers:    "json",
		Auth:       authDefault,
		Envelope:   "data",
		RowsMax:    1000,
		BytesMax:   1 << 20,
		Timeout:    2 * time.Second,
		StaleMax:   30 * time.Second,
		Cache:      "memory",
		CacheBytes: 64 << 20,
		WaitersMax: 10000,
	}
}

// DefaultFeed returns the defaults of a feed. Path, SQL and Key have none.
func DefaultFeed() Feed {
	return Feed{
		Timestamps: "database",
		Numbers:    "json",
		Auth:       authDefault,
		Envelope:   "data",
		Window:     200,
		Refresh:    100 * time.Millisecond,
		IdleAfter:  2 * time.Second,
		StaleMax:   30 * time.Second,
		Timeout:    2 * time.Second,
		Limit:      10,
		LimitMax:   100,
		OffsetMax:  100_000_000,
		WaitersMax: 1000,
		WindowsMax: 100,
		SweepShare: 0.02,
		SweepBytes: 64 << 20,
	}
}
