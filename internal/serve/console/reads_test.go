package console

import (
	"net/http"
	"net/url"
	"testing"

	"spillway/internal/serve/admin"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
)

// rows are those of a feed with one value.
type rows struct{ paused bool }

const hostileCity = `<b>Oslo</b> 🚚 "' &`

func (r *rows) Values(text string, _ int) (some []feed.Value, all int) {
	age := 0.25
	value := feed.Value{
		Arguments: map[string][]string{"city": {hostileCity}}, AgeSeconds: &age, Rows: 1200, Bytes: 4096, ReadSeconds: 0.0125, Hits: 3, Older: 1,
		Paused: r.paused, Problem: "no <i>luck</i>",
	}
	if value.Contains(text) {
		some = append(some, value)
	}
	return some, 7
}

func (r *rows) Pause(args []string, paused bool) { r.paused = paused && args[0] == hostileCity }

func (r *rows) Drop(args []string) bool { return args[0] == hostileCity }

// read returns the feed /goodslist, and /slow, which does not start.
func (s *site) read(path string) *admin.Read {
	of := &admin.Read{
		Path: path, Kind: "feed", Database: "sqlite:x", SQL: "SELECT id FROM goods WHERE a < 'b'", Params: []param.Param{{Name: "city", Type: param.Text}},
		Plans: []feed.CheckedPlan{{SQL: "SELECT id FROM goods LIMIT 5", Plan: "SCAN goods\n", Reads: 12000}},
	}
	switch path {
	case "/goodslist":
		of.Engine = &s.rows
	case "/slow":
		of.Problem = "sorts goods: add CREATE INDEX goods_by ON goods (id) or accept"
		of.Plans[0].Problem = of.Problem
	default:
		return nil
	}
	return of
}

func TestReads(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.parts.Store(&[]admin.Part{{Name: "/slow", Group: admin.Reads, Detail: "it sorts"}, {Name: "/goodslist", Group: admin.Reads, Serves: true}})
	s.want(s.get("/console/reads"), http.StatusOK, "/console/reads/one?path=%2Fgoodslist", "75.0 %", "250 ms", "33.3 %", "it sorts", "/console/reads/one?path=%2Fslow")
	s.want(s.get("/console/reads/one?path=/slow"), http.StatusOK, "It is not served", "<code>CREATE INDEX goods_by ON goods (id);</code>", "None.", "SCAN goods")
	s.want(s.get("/console/reads/one?path=/nothing"), http.StatusNotFound, "no feed and no query")
	const page = "/console/reads/one?path=/goodslist"
	s.want(s.get(page), http.StatusOK, "SELECT id FROM goods WHERE a < 'b'", "city = "+hostileCity, "250 ms", "1,200", "12.5 ms", "4 KiB", "no <i>luck</i>",
		"1 of 7 are shown", "No statement reads or sorts too many rows", "reads about 12,000 rows", `formaction="/console/reads/pause"`)
	s.want(s.get(page+"&contains=Bergen"), http.StatusOK, "None.")
	value := url.Values{"path": {"/goodslist"}, "arguments": {`{"city": ["<b>Oslo</b> 🚚 \"' &"]}`}, "contains": {"Oslo"}}
	s.want(s.follow(s.post("/console/reads/pause", value)), http.StatusOK, "Nothing of this value is read", "paused", `formaction="/console/reads/resume"`, `value="Oslo"`)
	s.want(s.follow(s.post("/console/reads/resume", value)), http.StatusOK, "It is read again.", "fails")
	s.want(s.follow(s.post("/console/reads/drop", value)), http.StatusOK, "Its rows are forgotten.")
	value.Set("arguments", `{"city": ["Bergen"]}`)
	s.want(s.post("/console/reads/drop", value), http.StatusNotFound, "no rows of this value are kept")
	value.Set("arguments", `{`)
	s.want(s.post("/console/reads/drop", value), http.StatusBadRequest, "cannot be read")
	value.Set("arguments", `{}`)
	s.want(s.post("/console/reads/forget", value), http.StatusNotFound)
}
