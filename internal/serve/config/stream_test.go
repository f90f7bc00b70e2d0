package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const positions = `streams:
  - path: /positions
    table: app.positions
    columns:
      device_id: {type: integer, required: true, min: 1}
      at: {type: timestamp, default: now, max: 2100-01-01T00:00:00Z}
      label: {type: text, max_length: 20, default: ""}
      speed: real
      fast: {type: boolean, default: false}
      weight: {type: real, default: 1.50}
`

func TestReadStream(t *testing.T) {
	t.Parallel()
	c, err := read("keys: [a-key-of-16-signs, file:/run/token]\n" + positions + "    key: [device_id, at]\n    order_by: device_id\n    fsync: off\n    ack: memory\n    wait_max: 3s\n")
	if err != nil {
		t.Fatal(err)
	}
	want := Defaults[Stream]()
	want.Path, want.Table, want.Key, want.OrderBy = "/positions", "app.positions", []string{"device_id", "at"}, "device_id"
	want.Ack, want.Fsync, want.WaitMax = "memory", "off", 3*time.Second
	given := func(text string) Literal { return Literal{text, true} }
	want.Columns = Columns{
		{Name: "device_id", Type: "integer", Required: true, Min: given("1")},
		{Name: "at", Type: "timestamp", Default: given("now"), Max: given("2100-01-01T00:00:00Z")},
		{Name: "label", Type: "text", MaxLength: 20, Default: given("")},
		{Name: "speed", Type: "real"},
		{Name: "fast", Type: "boolean", Default: given("false")},
		{Name: "weight", Type: "real", Default: given("1.50")},
	}
	if diff := cmp.Diff([]Stream{want}, c.Streams); diff != "" {
		t.Error(diff)
	}
	if len(c.Keys) != 2 || c.Keys[1].Reveal() != "a-token-of-24-characters" {
		t.Errorf("%d keys", len(c.Keys))
	}
	out := printed(c)
	if strings.Contains(out, "16-signs") || !strings.Contains(out, `keys: ["***", "***"]`) {
		t.Errorf("keys in\n%s", out)
	}
	again, err := read(strings.Replace(out, `keys: ["***", "***"]`, "keys: [a-key-of-16-signs, a-token-of-24-characters]", 1))
	if err != nil || !reflect.DeepEqual(c, again) {
		t.Errorf("%v\n%s\nin\n%s", err, cmp.Diff(c.Streams, again.Streams), out)
	}
	if err := judge(t, compiled(t), out); err != nil {
		t.Errorf("the schema refuses it: %v", err)
	}
}

func TestReadStreamRefuses(t *testing.T) {
	t.Parallel()
	bad(t, positions+"      height: {type: real, least: 1}\n", "11:28: streams[0].columns.height.least: unknown key; the keys here are type, required, default, min, max, max_length, claim, format, round")
	bad(t, positions+"      height: {type: [real]}\n", "11:22: streams[0].columns.height.type: must be one value, not a list")
	bad(t, positions+"      height: {type: real, required: 1}\n", "11:38: streams[0].columns.height.required: must be true or false, not \"1\"")
	bad(t, positions+"      speed: real\n", "11:7: streams[0].columns.speed: duplicate key, first in line 8")
	bad(t, positions+"      height: {type: real, default: }\n", "11:28: streams[0].columns.height.default: has no value; leave the key out for its default")
	bad(t, positions+"    ack: disk\n", `11:10: streams[0].ack: must be database, spool or memory, not "disk"`)
	bad(t, "listen: :80\n"+positions, "1:1: keys: must be given if other hosts can reach streams, as keys: [${NAME}]; or listen on a loopback address such as 127.0.0.1:8080")
	bad(t, "keys: [short]\n", "1:8: keys[0]: must have at least 16 characters: letters, digits and signs without spaces, as from openssl rand -hex 16")
}

func TestValidateStream(t *testing.T) {
	t.Parallel()
	valid := func(change func(*Config, *Stream)) error {
		c := Default()
		s := Defaults[Stream]()
		s.Path, s.Table, s.Columns = "/orders", "orders", Columns{{Name: "id", Type: "integer", Required: true}, {Name: "note", Type: "text"}}
		feed := Defaults[Feed]()
		feed.Path, feed.SQL, feed.Key = "/orders", "SELECT id FROM orders", Keys{{Name: "id"}}
		c.Feeds = []Feed{feed}
		change(&c, &s)
		c.Streams = append(c.Streams, s)
		return c.Validate()
	}
	for name, change := range map[string]func(*Config, *Stream){
		"a feed's path": func(*Config, *Stream) {},
		"open by key":   func(c *Config, _ *Stream) { c.Listen, c.Keys = ":80", []Secret{"0123456789abcdef"} },
		"all keys":      func(_ *Config, s *Stream) { s.Extra, s.Key, s.OrderBy, s.Table = "rest", []string{"id"}, "note", "a.b" },
	} {
		if err := valid(change); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused := func(want string, change func(*Config, *Stream)) {
		t.Helper()
		if err := valid(change); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v, want one line %s...", err, want)
		}
	}
	refused("streams[0].path: must be given", func(_ *Config, s *Stream) { s.Path = "" })
	refused("streams[0].aliases[0]: must differ from streams[0].path", func(_ *Config, s *Stream) { s.Aliases = []string{"/orders"} })
	refused("streams[0].path: must differ from popups.path", func(c *Config, s *Stream) { c.Popups.Path, s.Path = "/popup", "/popup/click" })
	for _, table := range []string{"", " a", "a ", "a.b.c", ".a", "a.", `a"b`} {
		refused("streams[0].table: must be NAME or SCHEMA.NAME", func(_ *Config, s *Stream) { s.Table = table })
	}
	refused("streams[0].columns: must name at least one", func(_ *Config, s *Stream) { s.Columns = nil })
	refused(`streams[0].columns.id.type: must be integer, real, decimal, text, boolean, timestamp, json, uuid, date, time, bytes, integer[], real[], decimal[], text[], boolean[], timestamp[], uuid[], date[], time[] or bytes[], not "int"`, func(_ *Config, s *Stream) { s.Columns[0].Type = "int" })
	refused("streams[0].columns.?: must be a name of", func(_ *Config, s *Stream) { s.Columns[0].Name = `a"b` })
	refused("streams[0].columns.note.max_length: must be at least 1", func(_ *Config, s *Stream) { s.Columns[1].MaxLength = -1 })
	refused(`streams[0].extra: must name a column that is not in columns, not "id"`, func(_ *Config, s *Stream) { s.Extra = "id" })
	refused(`streams[0].key[1]: must be one of columns, without repetition, not "id"`, func(_ *Config, s *Stream) { s.Key = []string{"id", "id"} })
	refused(`streams[0].key[0]: must be a column that is required or has a default or a claim, not "note"`, func(_ *Config, s *Stream) { s.Key = []string{"note"} })
	refused(`streams[0].columns: must name at most 500 columns, not "501"`, func(_ *Config, s *Stream) {
		for i := range 499 {
			s.Columns = append(s.Columns, Column{Name: fmt.Sprint("c", i), Type: "text"})
		}
	})
	refused(`streams[0].fsync: must be on, server or off, not "no"`, func(_ *Config, s *Stream) { s.Fsync = "no" })
	refused(`streams[0].order_by: must be one of columns, not "x"`, func(_ *Config, s *Stream) { s.OrderBy = "x" })
	refused(`streams[0].queue_rows: must not be less than batch_rows, which is 200000, not "100000"`, func(_ *Config, s *Stream) { s.BatchRows = 200_000 })
	refused("streams[0].queue_rows: must not be less than records_max", func(_ *Config, s *Stream) { s.RecordsMax = 200_000 })
	refused("streams[0].queue_bytes: must not be less than batch_bytes", func(_ *Config, s *Stream) { s.QueueBytes = 1 << 20; s.BatchBytes = 2 << 20 })
	refused("streams[0].body_bytes: must not be larger than http.body_bytes, which is 4194304", func(_ *Config, s *Stream) { s.BodyBytes = 5 << 20 })
	refused("streams[0].timeout: must not be shorter than commit_timeout", func(_ *Config, s *Stream) { s.Timeout = time.Second })
	refused(`streams[0].key_collation: must be exact or accept, not "any"`, func(_ *Config, s *Stream) { s.KeyCollation = "any" })
	refused("streams[0].committers: must be from 1 to 64", func(_ *Config, s *Stream) { s.Committers = 65 })
}

// Streams share the spool in equal parts.
func TestSpoolShares(t *testing.T) {
	t.Parallel()
	with := func(bytes, streams int) Config {
		c := Default()
		c.Spool.Bytes = bytes
		for i := range streams + 1 {
			s := Defaults[Stream]()
			s.Path, s.Table, s.Columns = "/"+string(rune('a'+i)), "t", Columns{{Name: "id", Type: "integer"}}
			if i < streams {
				s.Ack = "spool"
			}
			c.Streams = append(c.Streams, s)
		}
		return c
	}
	c := with(6<<20, 2)
	if diff := cmp.Diff(map[string]int64{"/a": 3 << 20, "/b": 3 << 20}, c.SpoolShares()); diff != "" || c.Validate() != nil {
		t.Errorf("%v\n%s", c.Validate(), diff)
	}
	want := `spool.bytes: must be at least 1048576 for each of the 2 streams with ack: spool, not "1048576"`
	if err := with(1<<20, 2).Validate(); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
