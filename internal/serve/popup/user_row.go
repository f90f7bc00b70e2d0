package popup

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// rowState says whether attributes have the columns of the user's row.
type rowState uint8

const (
	rowNone   rowState = iota // there are no rows
	rowUnread                 // it is read when a campaign needs it
	rowRead
	rowFailed
)

// lacksRow reports whether the user's row must be read before a campaign is decided.
func (a *Attributes) lacksRow(c *compiled) bool {
	return a.row == rowUnread && c.target.uses&a.rowColumns != 0
}

// skips reports whether a campaign cannot be decided, because the user's row or a list could
// not be read.
func (a *Attributes) skips(c *compiled) bool {
	return a.row == rowFailed && c.target.uses&a.rowColumns != 0 || len(c.target.lists) > 0 && a.lists.unread(c.target.lists) != ""
}

// userRows reads users' rows into attributes. Its methods may be called concurrently.
type userRows struct {
	log     *slog.Logger
	refused atomic.Uint64 // values that are not of their attribute's type

	mu     sync.Mutex
	logged time.Time         // of the last log line
	last   map[string]string // by column: the reason that was logged
}

// fill replaces attributes by the columns of a row, a JSON object. NULL removes the
// attribute, and so does a value that is not of its type: one bad column must not
// suppress all popups.
func (r *userRows) fill(a *Attributes, row []byte) error {
	columns := map[string]json.RawMessage{}
	if err := json.Unmarshal(row, &columns); err != nil {
		return fmt.Errorf("parse the row: %w", err)
	}
	for name, value := range columns {
		i, declared := a.schema.index[name]
		if !declared {
			continue
		}
		texts, err := columnTexts(a.schema.attributes[i].Type, value)
		if err == nil {
			err = a.Replace(name, texts...)
		}
		if err == nil {
			continue
		}
		r.refuse(name, err)
		if err := a.Replace(name); err != nil {
			return fmt.Errorf("column %s: %w", name, err)
		}
	}
	return nil
}

// refuse counts a value and logs the reason, if it is new and at most once per second. The
// value is not logged.
func (r *userRows) refuse(name string, err error) {
	r.refused.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	rule := strings.TrimPrefix(err.Error(), ErrRequest.Error()+": ")
	if r.last[name] == rule || time.Since(r.logged) < time.Second {
		return
	}
	r.last[name], r.logged = rule, time.Now()
	r.log.Warn("attributes_sql returned an invalid value, which counts as missing", "column", name, "rule", rule)
}

// columnTexts returns a column's value as Attributes.Replace takes it.
func columnTexts(kind AttributeType, value json.RawMessage) ([]string, error) {
	value = bytes.TrimSpace(value)
	switch {
	case string(value) == "null":
		return nil, nil
	case len(value) > 0 && value[0] == '"':
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			return nil, err
		}
		if kind == Timestamp {
			text = timestampText(text)
		}
		return []string{text}, nil
	case kind == TextList && len(value) > 0 && value[0] == '[':
		var list []string
		err := json.Unmarshal(value, &list)
		return list, err
	}
	return []string{string(value)}, nil
}

// timestampText converts a database's timestamp to RFC 3339. Without a zone it is UTC. A
// text that is not a timestamp is not changed; Attributes.Replace refuses it.
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
