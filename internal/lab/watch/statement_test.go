package watch

import (
	"errors"
	"testing"
)

// TestDigests reports the statements that grew the most, from their first reading on.
func TestDigests(t *testing.T) {
	var d digests
	asked := 0
	text := func(id string) (string, error) {
		asked++
		if id == "own" {
			return "", nil
		}
		return "SELECT " + id, nil
	}
	first := []digest{{"old", 100, 5000}, {"a", 1, 1}}
	if got, err := d.next(first, text); len(got) > 0 || err != nil || asked > 0 {
		t.Fatalf("the first reading reports %v, %v", got, err)
	}
	second := []digest{{"old", 100, 5000}, {"a", 11, 3}, {"own", 2, 1}}
	got, err := d.next(second, text)
	if err != nil || len(got) != 1 || got[0].text != "SELECT a" || got[0].values["calls_total"] != 11 || got[0].values["seconds_total"] != 3 {
		t.Fatalf("the second reading reports %v, %v", got, err)
	}
	if got, err = d.next(second, text); err != nil || len(got) != 1 || asked != 2 {
		t.Errorf("the third reading reports %v, %v, with %d texts read", got, err, asked)
	}
	failed := errors.New("gone")
	if _, err := d.next(append(second, digest{"b", 1, 1}), func(string) (string, error) { return "", failed }); !errors.Is(err, failed) {
		t.Errorf("got %v, want %v", err, failed)
	}
}
