package admin

import (
	"cmp"
	"encoding/json"
	flags "flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"spillway/internal/apptest"
	"spillway/internal/serve/feed"
	"spillway/internal/serve/query"
	"spillway/internal/serve/spool"
	"spillway/internal/serve/token"
)

var update = flags.Bool("update", false, "write the table of metrics into the document")

var (
	described = regexp.MustCompile(`fqName: "(\w+)", help: "(.*?)",.* constLabels: {(.*)}, variableLabels: {(.*)}}`)
	label     = regexp.MustCompile(`(\w+)="([^"]*)"`)
	// inSource finds metrics of the public listener and of package app, which nothing describes before they are collected.
	inSource = regexp.MustCompile(`"(spillway_\w+)",\s*(?:Help: )?"([^"]+)"(?:,\s*\[\]string{([^}]*)})?`)
)

// listed is a metric of the document.
type listed struct {
	help   string
	labels map[string][]string // values that are fixed
}

// The page of metrics lists what the collectors describe.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	all := map[string]*listed{}
	collectors := append(newConnections().collectors(), NewStreamBatches().Collectors()...)
	collectors = append(collectors, BuildInfo("", ""), Stats[DatabaseFigures]("spillway_pool_", nil), Stats[feed.Stats]("spillway_feed_", nil),
		Stats[query.Stats]("spillway_query_", nil), ReplicaStats("", nil), Stats[token.SetStats]("spillway_jwks_", nil), StreamStats(nil),
		Stats[StreamAck]("spillway_stream_", nil), Stats[spool.Stats]("spillway_spool_", nil), SpoolStats(nil),
		Stats[PopupFigures]("spillway_popup_", nil), PopupListStats(nil), Stats[Part]("spillway_part_", nil))
	descs := make(chan *prometheus.Desc, 1000)
	for _, c := range collectors {
		c.Describe(descs)
	}
	close(descs)
	add := func(name, help string, labels map[string]string) {
		if all[name] == nil {
			all[name] = &listed{help: help, labels: map[string][]string{}}
		}
		for label, value := range labels {
			all[name].labels[label] = append(all[name].labels[label], value)
		}
	}
	for desc := range descs {
		found := described.FindStringSubmatch(desc.String())
		if found == nil {
			t.Fatalf("what is %s?", desc)
		}
		labels := map[string]string{}
		for _, pair := range label.FindAllStringSubmatch(found[3], -1) {
			labels[pair[1]] = pair[2]
		}
		for name := range strings.FieldsFuncSeq(found[4], func(r rune) bool { return r == ',' }) {
			labels[name] = ""
		}
		add(found[1], found[2], labels)
	}
	for _, found := range inSource.FindAllStringSubmatch(sources(t, "../server/metrics.go", "../app/*.go"), -1) {
		labels := map[string]string{}
		for name := range strings.FieldsFuncSeq(found[3], func(r rune) bool { return strings.ContainsRune(`", `, r) }) {
			labels[name] = ""
		}
		add(found[1], found[2], labels)
	}
	apptest.Generated(t, "../../../docs/reference/metrics.md", "metrics", metricsTable(all), *update)
}

// sources returns the text of files.
func sources(t *testing.T, patterns ...string) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}

// metricsTable is the table of the document.
func metricsTable(all map[string]*listed) string {
	var out strings.Builder
	out.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m, kind := all[name], "gauge"
		switch {
		case strings.HasSuffix(name, "_total"):
			kind = "counter"
		case name == "spillway_http_request_duration_seconds" || name == "spillway_stream_batch_rows" || name == "spillway_stream_commit_seconds":
			kind = "histogram"
		}
		var labels []string
		for _, label := range slices.Sorted(maps.Keys(m.labels)) {
			values := slices.Compact(slices.Sorted(slices.Values(m.labels[label])))
			values = slices.DeleteFunc(values, func(v string) bool { return v == "" || name == "spillway_build_info" })
			text := "`" + label + "`"
			if len(values) > 0 {
				text += ": " + strings.Join(values, ", ")
			}
			labels = append(labels, text)
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", name, kind, strings.Join(labels, "; "), m.help)
	}
	return out.String()
}

// The page of the admin API lists the requests of openapi.json, and the fields of what they take and return.
func TestAdminAPIIsDocumented(t *testing.T) {
	t.Parallel()
	var document struct {
		Paths      map[string]map[string]json.RawMessage
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct {
					Type        any
					Description string
					Ref         string `json:"$ref"`
				}
			}
		}
	}
	if err := json.Unmarshal(openAPI, &document); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	out.WriteString("| request | parameters | effect |\n|---|---|---|\n")
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		for _, method := range []string{"get", "post", "put", "patch", "delete"} {
			var operation struct {
				Summary    string
				Parameters []struct {
					Name, In string
					Ref      string `json:"$ref"`
				}
			}
			raw, ok := document.Paths[path][method]
			if !ok {
				continue
			}
			if err := json.Unmarshal(raw, &operation); err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range operation.Parameters {
				name := cmp.Or(p.Name, p.Ref[strings.LastIndexByte(p.Ref, '/')+1:])
				if !strings.Contains(path, "{"+name+"}") {
					names = append(names, "`"+name+"`")
				}
			}
			fmt.Fprintf(&out, "| `%s %s` | %s | %s |\n", strings.ToUpper(method), path, strings.Join(names, ", "), operation.Summary)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(document.Components.Schemas)) {
		properties := document.Components.Schemas[name].Properties
		if len(properties) == 0 || name == "Campaign" || name == "CampaignPatch" { // these two repeat CampaignFields
			continue
		}
		fmt.Fprintf(&out, "\n### %s\n\n| field | type | meaning |\n|---|---|---|\n", name)
		for _, field := range slices.Sorted(maps.Keys(properties)) {
			p := properties[field]
			description := strings.ReplaceAll(p.Description, "|", "\\|")
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", field, kindOf(p.Type, p.Ref), description)
		}
	}
	apptest.Generated(t, "../../../docs/reference/admin-api.md", "requests", out.String(), *update)
}

// kindOf names the type of a schema.
func kindOf(kind any, ref string) string {
	switch kind := kind.(type) {
	case string:
		return kind
	case []any:
		return strings.Trim(strings.ReplaceAll(fmt.Sprint(kind), " ", " or "), "[]")
	}
	return ref[strings.LastIndexByte(ref, '/')+1:]
}
