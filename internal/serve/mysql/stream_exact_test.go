package mysql

import (
	"strings"
	"testing"

	"spillway/internal/apptest"
	"spillway/internal/database"
	"spillway/internal/serve/stream"
)

// What the server would change without an error is refused, or rounded if the stream says so.
func TestStreamExact(t *testing.T) {
	t.Parallel()
	url := freshDatabase(t, apptest.MySQL(t, "--explicit-defaults-for-timestamp=0"))
	mustExecute(t, url, "CREATE TABLE exact (id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, at datetime, amount decimal(10,2), small float, since timestamp NOT NULL)")
	db := open(t, url, database.Pool{})
	def := stream.Definition{Name: "/exact", Table: "exact", Key: []string{"id"}, Columns: []stream.Column{
		{Name: "id", Type: stream.Integer, Required: true},
		{Name: "at", Type: stream.Timestamp, Round: true},
		{Name: "amount", Type: stream.Real, Round: true},
		{Name: "small", Type: stream.Real, Round: true},
		{Name: "since", Type: stream.Timestamp},
	}}
	schema, err := stream.NewSchema(def)
	if err != nil {
		t.Fatal(err)
	}
	sink := db.Stream(schema)
	if err := sink.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	const since = `,"since":"2016-12-01T00:00:00Z"}`
	b := notesOf(t, schema, 1, `{"id":0,"at":"1969-12-31T23:59:59.5Z","amount":1.239,"small":0.1`+since, `{"id":0`+since, `{"id":1,"at":"2016-12-01T23:59:59.4996Z"`+since,
		`{"id":2}`, `{"id":3,"since":null}`, `{"id":4,"amount":123456789`+since)
	mustCommit(t, sink, b)
	for i, want := range []string{"", "", "", "since: must not be null", "since: must not be null", "amount"} {
		refused := b.Requests[i].Result.Refused
		if (want == "") != (len(refused) == 0) || want != "" && !strings.Contains(refused[0].Reason, want) {
			t.Errorf("record %d: refused %+v, want %q", i, refused, want)
		}
	}
	if got := value(t, url, "SELECT GROUP_CONCAT(CONCAT_WS(' ', id, at, amount, small) ORDER BY id) FROM exact"); got != "0 1970-01-01 00:00:00 1.24 0.1,1 2016-12-01 23:59:59" {
		t.Errorf("stored %s", got)
	}
	def.Key = nil
	now := stream.Now
	def.Columns = []stream.Column{{Name: "at", Type: stream.Timestamp, Default: &now}}
	if schema, err = stream.NewSchema(def); err != nil {
		t.Fatal(err)
	}
	if err := db.Stream(schema).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "set round: true") {
		t.Errorf("a default with microseconds: %v", err)
	}
}
