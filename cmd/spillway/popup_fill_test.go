package main

import (
	"testing"
	"time"

	"spillway/internal/popup"
)

// TestPopupFill: what databases give for a column is what an attribute takes.
func TestPopupFill(t *testing.T) {
	declared := []popup.Attribute{
		{Name: "age", Type: popup.Integer},
		{Name: "joined", Type: popup.Timestamp},
		{Name: "vip", Type: popup.Boolean},
		{Name: "tags", Type: popup.TextList},
		{Name: "city", Type: popup.Text},
	}
	schema, err := popup.NewSchema(declared)
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]popup.AttributeType{}
	for _, a := range declared {
		types[a.Name] = a.Type
	}
	suits := func(target, row string) bool {
		t.Helper()
		set, err := popup.NewSet(schema, []popup.Campaign{{ID: 1, Name: "a", Placement: "home", Status: popup.Active, Payload: []byte("1"), Target: target}})
		if err != nil {
			t.Fatal(err)
		}
		a := schema.New()
		if err := a.Add("city", "Oslo"); err != nil {
			t.Fatal(err)
		}
		if err := fill(a, types, []byte(row)); err != nil {
			t.Errorf("%s: %v", row, err)
		}
		return popup.Decide(set.Placement("home"), popup.State{}, a, time.Now()).Campaign != nil
	}
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
		if !suits(target, row) {
			t.Errorf("%s does not suit %s", row, target)
		}
	}
	for _, row := range []string{`{"age":"x"}`, `{"age":1.5}`, `{"joined":"soon"}`, `{"vip":"maybe"}`, `{"tags":[1]}`, `[`} {
		if err := fill(schema.New(), types, []byte(row)); err == nil {
			t.Errorf("%s is taken", row)
		}
	}
}
