package config

import "time"

// Popups configures popups. Campaigns are not part of it, because they change at run time.
type Popups struct {
	Path              string        `yaml:"path" doc:"starts with /; PATH/click, PATH/dismiss and PATH/convert take what the user does; empty: no popups"`
	Database          Address       `yaml:"database" doc:"database of campaigns, states and events; empty: the top-level one"`
	Store             string        `yaml:"store" default:"memory" enum:"memory,redis" doc:"states in this process, the only one on its database (memory), or in redis for any number of replicas (redis)"`
	MemoryUsers       int           `yaml:"memory_users" default:"4000000" range:"1..1000000000" doc:"with store memory, states (one per user and placement, 170 bytes each)" over:"the longest idle are left to the database and read when needed; 'spillway_popup_states_evicted_total'"`
	SpoolBytes        int           `yaml:"spool_bytes" default:"1073741824" range:"1048576..1099511627776" doc:"with store memory, disk for events that the database does not have yet" over:"503, or as on_unavailable says; 'spillway_popup_record_errors_total'"`
	RedisPrefix       string        `yaml:"redis_prefix" default:"spillway" doc:"with store redis, prefix of all keys; databases that share a Redis need different ones"`
	CacheUsers        int           `yaml:"cache_users" default:"1000000" range:"0..1000000000" doc:"with store redis, states cached in this process, 170 bytes each; 0: none" over:"some state is dropped and read again; 'spillway_popup_cache_states'"`
	StateTTL          time.Duration `yaml:"state_ttl" default:"720h" range:"0s..87600h" doc:"with store redis, time that a state stays in Redis after its last event; at least 1h, 0s: forever" over:"read from the database when needed"`
	BacklogMax        int           `yaml:"backlog_max" default:"4000000" range:"1000..1000000000" doc:"with store redis, events waiting for the database" over:"503, or as on_unavailable says; 'spillway_popup_events_waiting'"`
	Timeout           time.Duration `yaml:"timeout" default:"5s" range:"10ms..1m" doc:"wait of a show, click or dismissal to be durable" over:"503; whether it was recorded is unknown, repeating it is safe; 'spillway_popup_record_errors_total'"`
	Placements        []string      `yaml:"placements" doc:"where popups are shown; the first is the default; none: home"`
	UserType          string        `yaml:"user_type" default:"text" enum:"text,integer,uuid" doc:"type of a user's id, in requests and as :user in attributes_sql"`
	Attributes        Types         `yaml:"attributes" types:"text,integer,real,boolean,timestamp,texts" doc:"attributes of a request that campaigns can test, NAME: TYPE; text, integer, real, boolean, timestamp or texts"`
	Unknown           string        `yaml:"unknown_params" default:"default" enum:"default,ignore,refuse" doc:"as in feeds"`
	AttributesSQL     string        `yaml:"attributes_sql" doc:"one SELECT of at most one row for :user; its columns replace attributes of a request that is due; empty: none"`
	AttributesTTL     time.Duration `yaml:"attributes_ttl" default:"1m" range:"1ms..24h" doc:"time that the row of attributes_sql is cached" over:"read again"`
	AttributesBytes   int           `yaml:"attributes_bytes" default:"67108864" range:"1024..68719476736" doc:"memory of cached rows" over:"the least recently used is dropped; 'spillway_query_evictions_total'"`
	AttributesTimeout time.Duration `yaml:"attributes_timeout" default:"1s" range:"1ms..1m" doc:"wait of a request for attributes_sql" over:"503; 'spillway_popup_unavailable_total'"`
	Lists             Statements    `yaml:"lists" doc:"lists of users by SQL, NAME: one SELECT of one column, the user's id; they win over uploaded ones"`
	ListsRefresh      time.Duration `yaml:"lists_refresh" default:"1m" range:"1s..24h" doc:"time between two reads of lists" over:"read again; failures: 'spillway_popup_list_read_errors_total'"`
	RepeatAfter       time.Duration `yaml:"repeat_after" default:"24h" range:"1s..87600h" doc:"time after which an unanswered popup is shown again, unless its campaign says otherwise" over:"shown again"`
	QuietAfter        time.Duration `yaml:"quiet_after" default:"24h" range:"1s..87600h" doc:"time without any popup after a click or a dismissal, unless the campaign says otherwise" over:"shown"`
	MaxPer            Caps          `yaml:"max_per" doc:"shows to one user at all placements together, DURATION: COUNT, as {24h: 1}; counts are 1 to 20; beyond them 204 wait-limit"`
	OnUnavailable     string        `yaml:"on_unavailable" default:"nothing" enum:"nothing,anyway" doc:"while states or event log do not answer, show nothing, or what a new user would get without recording it (anyway)"`
	Keys              []Secret      `yaml:"keys" doc:"keys that sign show tokens, at least 32 characters each, the same on all replicas; the first signs, all are accepted; none: a random one kept in data"`
	TokenTTL          time.Duration `yaml:"token_ttl" default:"24h" range:"1s..8760h" doc:"time after a show during which its click or dismissal is accepted" over:"410 'show-expired'"`
	ConvertWithin     time.Duration `yaml:"convert_within" default:"168h" range:"1s..8760h" doc:"time after a show during which a conversion is accepted" over:"410 'show-expired'"`
	EventsDays        int           `yaml:"events_days" range:"0..36500" doc:"days that events stay in the database after their show; reports keep their counts; 0: for ever" over:"deleted in batches; 'spillway_popup_events_deleted_total'"`
	Identity          Identity      `yaml:"identity" doc:"how the user is identified"`
}

// Statements are named SQL statements, in the file's order.
type Statements []Statement

// Statement is a named SQL statement.
type Statement struct {
	Name string `yaml:",key"`
	SQL  string `short:"true"`
}

// Caps are limits of shows, in the file's order.
type Caps []Cap

// Cap allows Shows within some time.
type Cap struct {
	Within time.Duration `yaml:",key"`
	Shows  int           `short:"true"`
}

// Identity configures how a request for a popup identifies its user.
type Identity struct {
	Trust  string `yaml:"trust" default:"query" enum:"query,jwt" doc:"the query names the user and the caller is trusted (query), or a JWT does, as auth.jwt and auth.jwks say (jwt)"`
	Header string `yaml:"header" default:"Authorization" doc:"header of the JWT; behind Bearer in Authorization"`
	Claim  string `yaml:"claim" default:"sub" doc:"claim that holds the user's id, text or a whole number"`
}

// PlacementNames returns the placements, the default one first.
func (p *Popups) PlacementNames() []string {
	if len(p.Placements) == 0 {
		return []string{"home"}
	}
	return p.Placements
}
