package config

import "time"

// Popups is the service that decides which popup each user gets. Campaigns are
// not part of it: they are changed while it runs.
type Popups struct {
	Path              string        `yaml:"path" doc:"path of the popup, starts with /; PATH/click and PATH/dismiss take the answers to it; empty: no popups are served"`
	Database          Secret        `yaml:"database" doc:"database of campaigns, states and events; empty: the top-level one"`
	Store             string        `yaml:"store" enum:"memory,redis" doc:"where users' states are kept; memory: in this process, the only one on its database; redis: in redis, for any number of replicas"`
	MemoryUsers       int           `yaml:"memory_users" range:"1..1000000000" doc:"states at most with store memory, one for each user and placement, 170 bytes each"`
	SpoolBytes        int           `yaml:"spool_bytes" range:"1048576..1099511627776" doc:"with store memory, disk in data for events that the database does not have yet"`
	CacheUsers        int           `yaml:"cache_users" range:"0..1000000000" doc:"with store redis, states at most that this process remembers until any process changes them, 170 bytes each; 0: each request reads redis"`
	StateTTL          time.Duration `yaml:"state_ttl" range:"0s..87600h" doc:"with store redis, a state stays so long after the user's last event and is read from the database again when needed; 1h or more, 0s: it stays for good"`
	BacklogMax        int           `yaml:"backlog_max" range:"1000..1000000000" doc:"with store redis, events that may wait for the database"`
	Timeout           time.Duration `yaml:"timeout" range:"10ms..1m" doc:"a show, click or dismissal waits at most so long to be durable"`
	Placements        []string      `yaml:"placements" doc:"where popups are shown; a request that names no placement is for the first; none: home"`
	UserType          string        `yaml:"user_type" enum:"text,integer,uuid" doc:"what a user's id is, in requests and as :user in attributes_sql"`
	Attributes        Params        `yaml:"attributes" types:"text,integer,real,boolean,timestamp,texts" doc:"what campaigns may ask of a request, NAME: TYPE; the types are text, integer, real, boolean, timestamp and texts"`
	AttributesSQL     string        `yaml:"attributes_sql" doc:"one SELECT of at most one row for :user; its columns replace attributes of a request that is due; empty: none"`
	AttributesTTL     time.Duration `yaml:"attributes_ttl" range:"1ms..24h" doc:"what attributes_sql gave for a user, a row or none, is good for so long"`
	AttributesBytes   int           `yaml:"attributes_bytes" range:"1024..68719476736" doc:"memory of what attributes_sql gave"`
	AttributesTimeout time.Duration `yaml:"attributes_timeout" range:"1ms..1m" doc:"a request waits at most so long for attributes_sql"`
	RepeatAfter       time.Duration `yaml:"repeat_after" range:"1s..87600h" doc:"a popup that was neither clicked nor dismissed is shown again after so long, where its campaign does not say"`
	OnUnavailable     string        `yaml:"on_unavailable" enum:"nothing,anyway" doc:"what is shown while the states or the event log do not answer; anyway: what a new user would get, unrecorded"`
	Keys              []Secret      `yaml:"keys" doc:"keys of 32 characters or more that sign show tokens, the same for all replicas; the first signs, all are accepted; none: a random one kept in data"`
	TokenTTL          time.Duration `yaml:"token_ttl" range:"1s..8760h" doc:"a click or dismissal is accepted for so long after its show"`
	Identity          Identity      `yaml:"identity" doc:"how it is known who the user is"`
}

// Identity says how requests for popups tell who the user is.
type Identity struct {
	Trust     string `yaml:"trust" enum:"query,jwt" doc:"query: the caller is trusted and names the user; jwt: a signed token does"`
	Header    string `yaml:"header" doc:"header of the JWT; in Authorization it stands behind Bearer"`
	Algorithm string `yaml:"algorithm" enum:"HS256,RS256,EdDSA" doc:"the one way in which a JWT may be signed"`
	Key       Secret `yaml:"key" doc:"what JWTs are checked with; HS256: the key, 32 characters or more; RS256, EdDSA: the public key in PEM"`
	Claim     string `yaml:"claim" doc:"claim that holds the user's id, text or a whole number"`
	Issuer    string `yaml:"issuer" doc:"what iss of a JWT must be; empty: anything"`
	Audience  string `yaml:"audience" doc:"what aud of a JWT must have; empty: anything"`
}

// DefaultPopups returns what the block of popups leaves out. Path has no
// default.
func DefaultPopups() Popups {
	return Popups{
		Store:             "memory",
		MemoryUsers:       4_000_000,
		SpoolBytes:        1 << 30,
		CacheUsers:        1_000_000,
		StateTTL:          720 * time.Hour,
		BacklogMax:        4_000_000,
		Timeout:           5 * time.Second,
		UserType:          "text",
		AttributesTTL:     time.Minute,
		AttributesBytes:   64 << 20,
		AttributesTimeout: time.Second,
		RepeatAfter:       24 * time.Hour,
		OnUnavailable:     "nothing",
		TokenTTL:          24 * time.Hour,
		Identity:          Identity{Trust: "query", Header: "Authorization", Algorithm: "HS256", Claim: "sub"},
	}
}

// PlacementNames returns the placements, the default one first.
func (p *Popups) PlacementNames() []string {
	if len(p.Placements) == 0 {
		return []string{"home"}
	}
	return p.Placements
}
