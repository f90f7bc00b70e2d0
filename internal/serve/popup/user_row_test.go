package popup

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// fillCase reads rows into attributes of every type. city has a value already.
type fillCase struct {
	schema *Schema
	row    *userRows
	log    strings.Builder
}

func newFillCase(t *testing.T) *fillCase {
	t.Helper()
	c := &fillCase{}
	declared := []Attribute{
		{Name: "age", Type: Integer},
		{Name: "joined", Type: Timestamp},
		{Name: "vip", Type: Boolean},
		{Name: "tags", Type: TextList},
		{Name: "city", Type: Text},
	}
	var err error
	c.schema, err = NewSchema(declared)
	if err != nil {
		t.Fatal(err)
	}
	c.row = &userRows{log: slog.New(slog.NewTextHandler(&c.log, nil)), last: map[string]string{}}
	return c
}

// matches reports whether a target holds for a row.
func (c *fillCase) matches(t *testing.T, target, row string) bool {
	t.Helper()
	set, err := NewSet(c.schema, []Campaign{{ID: 1, Name: "a", Placement: "home", Status: Active, Rollout: 100, Payload: []byte("1"), Target: target}})
	if err != nil {
		t.Fatal(err)
	}
	a := c.schema.New()
	if err := a.Add("city", "Oslo"); err != nil {
		t.Fatal(err)
	}
	if err := c.row.fill(a, []byte(row)); err != nil {
		t.Errorf("%s: %v", row, err)
	}
	return Decide(set.Placement("home"), State{}, a, time.Now()).Campaign != nil
}

// TestUserRow reads columns as databases return them.
func TestUserRow(t *testing.T) {
	t.Parallel()
	c := newFillCase(t)
	for row, target := range map[string]string{
		`{"age":18,"other":{"a":1}}`:                 "age == 18",
		`{"age":"18"}`:                               "age == 18",
		`{"vip":true}`:                               "vip",
		`{"vip":1}`:                                  "vip",
		`{"joined":"2016-12-01 23:59:57"}`:           `joined == date("2016-12-01T23:59:57Z")`,
		`{"joined":"2016-12-01 23:59:57.5+08"}`:      `joined == date("2016-12-01T15:59:57.5Z")`,
		`{"joined":"2016-12-01T23:59:57-0130"}`:      `joined == date("2016-12-02T01:29:57Z")`,
		`{"joined":"2016-12-01T23:59:57.123+01:00"}`: `joined == date("2016-12-01T22:59:57.123Z")`,
		`{"joined":"2016-12-01T23:59:57Z"}`:          `joined == date("2016-12-01T23:59:57Z")`,
		`{"joined":"2016-12-01"}`:                    `joined == date("2016-12-01")`,
		`{"tags":["a","b"]}`:                         `"b" in tags and len(tags) == 2`,
		`{"city":null}`:                              "city == nil",
		`{"city":"Bergen"}`:                          `city == "Bergen"`,
		`{}`:                                         `city == "Oslo"`,
	} {
		if !c.matches(t, target, row) {
			t.Errorf("%s does not match %s", row, target)
		}
	}
	if c.log.Len() > 0 || c.row.refused.Load() != 0 {
		t.Errorf("good rows: %s", &c.log)
	}
}

// TestUserRowRefused: an invalid value is missing, like NULL, and the rest of the row is used.
func TestUserRowRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testUserRowRefused) // all rows come within the same second
}

func testUserRowRefused(t *testing.T) {
	c, long := newFillCase(t), strings.Repeat("x", AttributeBytesMax+1)
	bad := map[string]string{
		`{"age":"x","city":"Bergen"}`:   `age == nil and city == "Bergen"`,
		`{"age":1.5}`:                   "age == nil",
		`{"age":"Infinity"}`:            "age == nil",
		`{"joined":"soon","vip":true}`:  "joined == nil and vip",
		`{"joined":"infinity"}`:         "joined == nil",
		`{"vip":"maybe"}`:               "vip == nil",
		`{"tags":[1]}`:                  "tags == nil",
		`{"tags":["a","\u0000"]}`:       "tags == nil",
		`{"city":"` + long + `"}`:       "city == nil",
		`{"tags":["a","` + long + `"]}`: "tags == nil",
	}
	for row, target := range bad {
		if !c.matches(t, target, row) {
			t.Errorf("%.40s does not match %s", row, target)
		}
	}
	if n := c.row.refused.Load(); n != uint64(len(bad)) {
		t.Errorf("%d values are counted as refused, want %d", n, len(bad))
	}
	if text := c.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "counts as missing") {
		t.Errorf("logged within a second: %s", text)
	}
	if err := c.row.fill(c.schema.New(), []byte("[")); err == nil {
		t.Error("[ is taken")
	}
}
