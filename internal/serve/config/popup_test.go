package config

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPopups: the keys of a valid block override the defaults, and every rule has a message.
func TestPopups(t *testing.T) {
	t.Parallel()
	c, err := read(`popups:
  path: /popup
  store: redis
  attributes: {country: text, age: integer, tags: texts}
  keys: ["0123456789abcdef0123456789abcdef", key-of-forty-characters-key-of-40-chars-]
  repeat_after: 12h
  max_per: {24h: 1, 168h: 3}
  lists: {vip: "SELECT id FROM users WHERE vip > 0"}
  identity: {trust: jwt, claim: uid}
auth: {jwt: {keys: [{key: key-of-forty-characters-key-of-40-chars-}]}}
`)
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen = ":80"; c.PopupsOpenToOthers() {
		t.Error("tokens are required, but the popups count as open")
	}
	if c.Popups.Identity.Trust = "query"; !c.PopupsOpenToOthers() {
		t.Error("open to other hosts")
	}
	c.Popups.Identity.Trust = "jwt"
	p := c.Popups
	if p.Path != "/popup" || p.MemoryUsers != Defaults[Popups]().MemoryUsers || len(p.Attributes) != 3 || len(p.Keys) != 2 ||
		p.Keys[1].Reveal() != "key-of-forty-characters-key-of-40-chars-" || p.Identity.Header != "Authorization" || p.PlacementNames()[0] != "home" ||
		!slices.Equal(p.MaxPer, Caps{{24 * time.Hour, 1}, {168 * time.Hour, 3}}) || p.QuietAfter != 24*time.Hour || p.ConvertWithin != 168*time.Hour {
		t.Errorf("%+v", p)
	}
	if again, err := read(strings.ReplaceAll(printed(c), "***", "key-of-forty-characters-key-of-40-chars-")); err != nil || !slices.Equal(again.Popups.MaxPer, p.MaxPer) {
		t.Errorf("max_per is not printed as it is read: %v, %v", again.Popups.MaxPer, err)
	}
	const with = "popups:\n  path: /popup\n"
	for text, want := range map[string]string{
		"popups:\n  path: popup\n":                                         "2:9: popups.path: must start with /, contain only letters, digits and -._~/ without // and .., and not end with /, not \"popup\"",
		"popups:\n  placements: [home]\n":                                  "2:3: popups.path: must be given, as /popup",
		with + "  store: redis\n":                                          "2:3: popups.keys: must be given with store: redis, because replicas need the same key",
		with + "  keys: [short]\n":                                         "3:10: popups.keys[0]: must have at least 32 characters, as from openssl rand -hex 32",
		with + "  placements: [home, Home]\n":                              "3:22: popups.placements[1]: must be 1 to 32 lower-case letters, digits and -, without - at the start, not \"Home\"",
		with + "  redis_prefix: Shop\n":                                    "3:17: popups.redis_prefix: must be 1 to 32 lower-case letters, digits and -, without - at the start, not \"Shop\"",
		with + "  placements: [home, home]\n":                              "3:22: popups.placements[1]: must not be repeated, not \"home\"",
		with + "  attributes: {user: text}\n":                              "3:22: popups.attributes.user: must have another name: user, placement, clock_offset, at are reserved",
		with + "  attributes: {age: uuid}\n":                               "3:21: popups.attributes.age: must be text, integer, real, boolean, timestamp or texts, not \"uuid\"",
		with + "  attributes_sql: SELECT 1\n":                              "3:19: popups.attributes_sql: requires attributes for its columns",
		with + "  identity: {trust: jwt}\n":                                "3:21: popups.identity.trust: requires auth.jwt.keys or auth.jwks.url, not \"jwt\"",
		with + "  user_type: number\n":                                     "3:14: popups.user_type: must be text, integer or uuid, not \"number\"",
		with + "  token_ttl: 1ms\n":                                        "3:14: popups.token_ttl: must be from 1s to 8760h, not \"1ms\"",
		with + "  quiet_after: 0s\n":                                       "3:16: popups.quiet_after: must be from 1s to 87600h, not \"0s\"",
		with + "  convert_within: 9000h\n":                                 "3:19: popups.convert_within: must be from 1s to 8760h, not \"9000h0m0s\"",
		with + "  events_days: -1\n":                                       "3:16: popups.events_days: must be from 0 to 36500, not \"-1\"",
		with + "  events_days: 7\n":                                        "3:16: popups.events_days: must be at least a day longer than convert_within and token_ttl, because what is repeated is recognized by the event, or 0, not \"7\"",
		with + "  lists: {VIP: SELECT 1}\n":                                "3:16: popups.lists.VIP: must have a name of 1 to 64 lower-case letters, digits and -, without - at the start",
		with + "  lists: {vip: \"\"}\n":                                    "3:16: popups.lists.vip: must be one SELECT of the users' ids",
		with + "  lists_refresh: 1ms\n":                                    "3:18: popups.lists_refresh: must be from 1s to 24h, not \"1ms\"",
		"popups: {lists: {vip: SELECT 1}}\n":                               "1:9: popups.path: must be given, as /popup",
		with + "  max_per: {24h: 0}\n":                                     "3:13: popups.max_per.24h: must be from 1 to 20, not \"0\"",
		with + "  max_per: {24h: 21}\n":                                    "3:13: popups.max_per.24h: must be from 1 to 20, not \"21\"",
		with + "  max_per: {1d: 1}\n":                                      "3:17: popups.max_per.?: \"1d\" must be a duration with its unit, as in {24h: 1}",
		with + "  max_per: {0s: 1}\n":                                      "3:13: popups.max_per.0s: must stand behind a duration of 1s to 87600h",
		with + "  max_per: 1\n":                                            "3:12: popups.max_per: must be a block of keys and values, not a number",
		"popups: {max_per: {1h: 1}}\n":                                     "1:9: popups.path: must be given, as /popup",
		with + "feeds:\n  - {path: /popup/click, sql: SELECT 1, key: a}\n": "2:9: popups.path: must differ from feeds[0].path, not \"/popup/click\"",
	} {
		bad(t, text, want)
	}
}

// TestPopupLimits: values that the engine takes unchecked are refused.
func TestPopupLimits(t *testing.T) {
	t.Parallel()
	const with = "popups:\n  path: /popup\n"
	for text, want := range map[string]string{
		with + "  keys: [" + strings.Repeat("0123456789abcdef0123456789abcdef, ", 5) + "]\n": "3:9: popups.keys: must be at most 4 keys",
		with + "  redis_prefix: \"\"\n": "3:17: popups.redis_prefix: must be 1 to 32 lower-case letters, digits and -, without - at the start",
		with + "  state_ttl: 30m\n":     "3:14: popups.state_ttl: must be at least 1h, or 0s, not \"30m0s\"",
	} {
		bad(t, text, want)
	}
}
