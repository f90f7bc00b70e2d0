package chaostest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"spillway/internal/apptest"
)

// nameStatus is a name of the spool.
type nameStatus struct {
	Stream      string
	Records     int64
	DeadLetters int64 `json:"dead_letters"`
	InDoubt     int64 `json:"dead_letters_in_doubt"`
	Drain       string
	MovedTo     string `json:"moved_to"`
	Reason      string
}

// spoolStatus returns the names of the spool; none if there is no spool.
func (r *run) spoolStatus() ([]nameStatus, error) {
	var status struct{ Streams []nameStatus }
	a, err := apptest.TryFetch(r.t.Context(), http.DefaultClient, r.service.Admin+"/spools/streams")
	if err == nil && a.Status == http.StatusOK {
		err = json.Unmarshal(a.Body, &status)
	}
	if err == nil && a.Status != http.StatusOK && a.Status != http.StatusServiceUnavailable {
		err = fmt.Errorf("status of the spool: %d %s", a.Status, a.Body)
	}
	return status.Streams, err
}

// checkNamed checks that readiness names what no stream drains.
func (r *run) checkNamed() (string, error) {
	names, err := r.spoolStatus()
	if err != nil {
		return "", err
	}
	var stranded []string
	for _, n := range names {
		own := slices.ContainsFunc(r.streams, func(s *streamState) bool {
			return s.path == n.Stream || slices.Contains(s.aliases, n.Stream) || n.MovedTo != "" && (s.path == n.MovedTo || slices.Contains(s.aliases, n.MovedTo))
		})
		if own || n.Records+n.DeadLetters == 0 {
			continue
		}
		a := apptest.Fetch(r.t, r.service.Admin+"/readyz/writes")
		if !bytes.Contains(a.Body, []byte(`"spool `+n.Stream+`"`)) {
			r.violate("readiness does not name %+v: %s", n, a.Body)
		}
		stranded = append(stranded, n.Stream)
	}
	if len(stranded) > 0 {
		r.tally.operation("stranded names that readiness names")
	}
	return fmt.Sprint("stranded ", stranded), nil
}

// orderSpool sends an order to the spool and returns the answer.
func (r *run) orderSpool(work string, order map[string]any) (string, error) {
	body, err := json.Marshal(order)
	if err != nil {
		return "", err
	}
	a, err := apptest.TryPost(r.t.Context(), http.DefaultClient, r.service.Admin+"/spools/streams/"+work, string(body))
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%s %s: %d %s", work, body, a.Status, a.Body)
	}
	return string(a.Body), err
}

// letter is a dead letter, or an entry that waits.
type letter struct {
	ID      int64
	Stream  string
	Reason  string
	InDoubt bool `json:"in_doubt"`
	Records []json.RawMessage
}

// letters returns the dead letters.
func (r *run) letters() ([]letter, error) {
	var all []letter
	for after := int64(0); ; {
		var page struct {
			Letters []letter `json:"dead_letters"`
			Next    int64
		}
		a, err := apptest.TryFetch(r.t.Context(), http.DefaultClient, fmt.Sprintf("%s/spools/streams/dead?limit=500&after=%d", r.service.Admin, after))
		switch {
		case err != nil:
			return nil, err
		case a.Status == http.StatusServiceUnavailable: // there is no spool
			return nil, nil
		case a.Status != http.StatusOK:
			return nil, fmt.Errorf("dead letters: %d %s", a.Status, a.Body)
		}
		if err := json.Unmarshal(a.Body, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Letters...)
		if after = page.Next; after == 0 {
			return all, nil
		}
	}
}

// retry puts the dead letters back that are not in doubt, by the API or the command.
func (r *run) retry() (string, error) {
	if r.up && r.random.IntN(2) == 0 {
		return r.orderSpool("retry", map[string]any{})
	}
	stdout, stderr, code := binary.Run(r.t, "spool", "retry", "--data", r.service.Dir()+"/data")
	if code > 1 {
		return stdout, fmt.Errorf("spool retry: %d %s", code, stderr)
	}
	return stdout, nil
}

// discard deletes a few dead letters, whose records were exported before.
func (r *run) discard() (string, error) {
	all, err := r.letters()
	all = slices.DeleteFunc(all, func(l letter) bool { return l.InDoubt })
	if err != nil || len(all) == 0 {
		return "none", err
	}
	all = all[:min(3, len(all))]
	var ids []int64
	for _, l := range all {
		ids = append(ids, l.ID)
	}
	answer, err := r.orderSpool("discard", map[string]any{"ids": ids})
	if err != nil {
		return "", err
	}
	for _, l := range all {
		for _, id := range r.idsOf("discarded", l.Records) {
			r.discarded[id] = true
		}
	}
	return fmt.Sprint(ids, answer), nil
}

// idsOf returns the ids of exported records, and compares their values with what was sent.
func (r *run) idsOf(where string, records []json.RawMessage) []int {
	var ids []int
	for _, text := range records {
		row, err := canonicalRecord(string(text))
		if err != nil {
			r.violate("%s: %s: %v", where, text, err)
			continue
		}
		ids = append(ids, r.compare(where, row))
	}
	return ids
}
