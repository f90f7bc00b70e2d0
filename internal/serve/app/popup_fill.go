package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"spillway/internal/serve/config"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/query"
)

// Bounds of what attributes_sql gives for a user.
const (
	userRowBytes = 16 << 10
	userWaiters  = 10_000 // requests that wait for the database at once
)

// fill returns what reads a user's row for popup.Config.Fill; nil where none is
// configured. The row is a query's: its answers, "no row" too, are kept, and requests
// for the same user share one execution.
func (p *popupPart) fill(st *store) (func(context.Context, string, *popup.Attributes) error, error) {
	a, c := p.app, p.cfg
	if c.AttributesSQL == "" {
		return nil, nil
	}
	d := query.Definition{
		Name: "popups.attributes_sql", SQL: c.AttributesSQL,
		Params: []param.Param{{Name: "user", Type: param.Type(c.UserType)}},
	}
	source, check, err := st.query(d)
	if err != nil {
		return nil, UsageError{err}
	}
	q := query.Open(query.Config{
		Definition: d, Limit: query.Limit{Rows: 1, Bytes: userRowBytes}, Timeout: c.AttributesTimeout, TTL: c.AttributesTTL,
		CacheBytes: c.AttributesBytes, WaitersMax: userWaiters, Log: a.log,
	}, source)
	a.queries = append(a.queries, queryPart{q, check})
	p.row = newUserRow(c.Attributes, a.log)
	return func(ctx context.Context, user string, attributes *popup.Attributes) error {
		answer, _, err := q.Ask(ctx, time.Now(), []string{user})
		if err != nil || answer.Rows == 0 {
			return err
		}
		return p.row.fill(attributes, answer.Data)
	}, nil
}

// userRow reads users' rows. It may be used concurrently.
type userRow struct {
	types   map[string]popup.AttributeType
	log     *slog.Logger
	refused atomic.Uint64 // values that attributes do not take

	mu     sync.Mutex
	logged time.Time         // when a refusal was logged last
	last   map[string]string // by attribute: the rule that was logged
}

func newUserRow(attributes config.Params, log *slog.Logger) *userRow {
	r := &userRow{types: make(map[string]popup.AttributeType, len(attributes)), log: log, last: map[string]string{}}
	for _, attribute := range attributes {
		r.types[attribute.Name] = popup.AttributeType(attribute.Type)
	}
	return r
}

// fill puts the columns of a row, one JSON object, into attributes of their names.
// NULL takes an attribute away, and so does a value that the attribute does not take:
// the user is due, and one bad column must not keep every popup away.
func (r *userRow) fill(attributes *popup.Attributes, row []byte) error {
	columns := map[string]json.RawMessage{}
	if err := json.Unmarshal(row, &columns); err != nil {
		return fmt.Errorf("read a user's row: %w", err)
	}
	for name, value := range columns {
		kind, declared := r.types[name]
		if !declared {
			continue
		}
		texts, err := columnTexts(kind, value)
		if err == nil {
			err = attributes.Replace(name, texts...)
		}
		if err == nil {
			continue
		}
		r.refuse(name, err)
		if err := attributes.Replace(name); err != nil {
			return fmt.Errorf("column %s of a user's row: %w", name, err)
		}
	}
	return nil
}

// refuse counts a value that is not taken and logs why where that is new, once a second
// at most. It does not log the value.
func (r *userRow) refuse(name string, err error) {
	r.refused.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	rule := strings.TrimPrefix(err.Error(), popup.ErrRequest.Error()+": ")
	if r.last[name] == rule || time.Since(r.logged) < time.Second {
		return
	}
	r.last[name], r.logged = rule, time.Now()
	r.log.Warn("a value of attributes_sql is not one of its attribute and counts as missing", "column", name, "rule", rule)
}

// columnTexts returns a column's value as an attribute takes it.
func columnTexts(kind popup.AttributeType, value json.RawMessage) ([]string, error) {
	value = bytes.TrimSpace(value)
	switch {
	case string(value) == "null":
		return nil, nil
	case len(value) > 0 && value[0] == '"':
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			return nil, err
		}
		if kind == popup.Timestamp {
			text = timestampText(text)
		}
		return []string{text}, nil
	case kind == popup.TextList && len(value) > 0 && value[0] == '[':
		var list []string
		err := json.Unmarshal(value, &list)
		return list, err
	}
	return []string{string(value)}, nil
}

// timestampText writes a database's timestamp as RFC 3339 has it; one without a zone is
// in UTC. What is no timestamp stays as it is, to be refused with its text's rule.
func timestampText(text string) string {
	if len(text) < len(time.DateTime) {
		return text + "T00:00:00Z" // a date
	}
	text = strings.Replace(text, " ", "T", 1)
	if zone := strings.LastIndexAny(text, "+-"); zone > len("2016-12-01") {
		switch len(text) - zone {
		case len("+00"):
			return text + ":00"
		case len("+0000"):
			return text[:len(text)-2] + ":" + text[len(text)-2:]
		}
		return text
	}
	return strings.TrimSuffix(text, "Z") + "Z"
}
