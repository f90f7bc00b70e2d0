package admin

import (
	"net/http"
	"time"
)

// Group is a kind of request with a readiness of its own, at /readyz/GROUP.
type Group string

// The groups.
const (
	Reads  Group = "reads"  // feeds and queries
	Writes Group = "writes" // streams
	Shows  Group = "popups"
)

// Part is the state of one part of the process.
type Part struct {
	Name   string `json:"name"`   // a path such as "/goodslist" or "POST /orders"
	Group  Group  `json:"-"`      // "": it concerns all groups
	Serves bool   `json:"serves"` // requests are answered, even if only some of them
	// Reason says why requests are not answered, or what may soon keep them from it; "": the
	// part is well. Anybody may read it: it contains no SQL and no secrets.
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"` // when the reason was first seen
	Spare  bool      `json:"-"`     // it is named, but others answer in its place: readiness does not depend on it
}

// readiness is the answer of /readyz and of its groups.
type readiness struct {
	Ready   bool        `json:"ready"`
	Reasons []Part      `json:"reasons,omitempty"`
	Streams []StreamAck `json:"streams,omitempty"`
}

// readyz returns the handler for a group; "" is all of them.
func (s *Server) readyz(group Group) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		answer := judge(s.cfg.Ready(), group)
		if group == "" || group == Writes {
			answer.Streams = s.cfg.Acks()
		}
		status := http.StatusOK
		if !answer.Ready {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, "application/json", status, answer)
	}
}

// judge returns the readiness of a group; "" is all of them. A group is ready if it has no
// parts or one of them serves, and every part that concerns all groups serves.
func judge(parts []Part, group Group) readiness {
	var answer readiness
	count, serving, process := 0, 0, true
	for _, p := range parts {
		if p.Group != "" && group != "" && p.Group != group {
			continue
		}
		if p.Reason != "" {
			p.Since = p.Since.UTC().Truncate(time.Millisecond)
			answer.Reasons = append(answer.Reasons, p)
		}
		switch {
		case p.Spare:
		case p.Group == "":
			process = process && p.Serves
		case p.Serves:
			count, serving = count+1, serving+1
		default:
			count++
		}
	}
	answer.Ready = process && (count == 0 || serving > 0)
	return answer
}
