package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
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
	Name   string   `json:"name" label:"part"`                                                                 // a path such as "/goodslist" or "POST /orders"
	Group  Group    `json:"-"`                                                                                 // "": it concerns all groups
	Paths  []string `json:"-"`                                                                                 // that it serves besides
	Serves bool     `json:"serves" metric:"up" help:"1 while the part answers, if only some of its requests."` // requests are answered, even if only some of them
	// Reason says why requests are not answered, or what may soon keep them from it; "": the
	// part is well. Anybody may read it: it contains no SQL and no secrets.
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"` // when the reason was first seen
	Detail string    `json:"-"`     // the whole error of Reason, as in the log
	Spare  bool      `json:"-"`     // it is named, but others answer in its place: readiness does not depend on it
}

// readiness is the answer of /readyz and of its groups.
type readiness struct {
	Ready   bool        `json:"ready"`
	Reasons []Part      `json:"reasons,omitempty"`
	Streams []StreamAck `json:"streams,omitempty"`
}

// readyz returns the handler for a group; "" is all of them. With ?parts=PATH,..., each part that has one of these paths must
// serve, and no other matters.
func (s *Server) readyz(group Group) handler {
	return func(w http.ResponseWriter, r *http.Request) (any, error) {
		parts, wanted := s.cfg.Ready(), r.URL.Query().Get("parts")
		answer := judge(parts, group)
		if wanted != "" {
			var unknown string
			if answer, unknown = judgeNamed(parts, group, strings.Split(wanted, ",")); unknown != "" {
				return nil, newProblem(http.StatusNotFound, fmt.Sprintf("parts: no part that is asked about here has the path %q", unknown))
			}
		}
		if group == "" || group == Writes {
			answer.Streams = s.cfg.Acks()
		}
		if answer.Ready {
			return answer, nil
		}
		writeJSON(w, "application/json", http.StatusServiceUnavailable, answer)
		return written{}, nil
	}
}

// mention adds a part that is not well to the reasons.
func (r *readiness) mention(p Part) {
	if p.Reason != "" {
		p.Since = p.Since.UTC().Truncate(time.Millisecond)
		r.Reasons = append(r.Reasons, p)
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
		answer.mention(p)
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

// judgeNamed returns the readiness of the parts with these paths, and of the process: all of them serve. unknown is a path that no
// part of the group has.
func judgeNamed(parts []Part, group Group, paths []string) (answer readiness, unknown string) {
	answer.Ready = true
	left := slices.Clone(paths)
	for _, p := range parts {
		own := p.Name[strings.LastIndexByte(p.Name, ' ')+1:]
		asked := func(path string) bool {
			return (group == "" || p.Group == group) && (path == own || slices.Contains(p.Paths, path))
		}
		named := slices.ContainsFunc(paths, asked)
		if !named && p.Group != "" {
			continue
		}
		left = slices.DeleteFunc(left, asked)
		answer.Ready = answer.Ready && p.Serves
		answer.mention(p)
	}
	if len(left) > 0 {
		unknown = left[0]
	}
	return answer, unknown
}

// showParts lists all parts with the whole errors of those that are not well.
func (s *Server) showParts(http.ResponseWriter, *http.Request) (any, error) {
	type partState struct {
		Name   string     `json:"name"`
		Group  Group      `json:"group,omitempty"`
		Serves bool       `json:"serves"`
		Error  string     `json:"error,omitempty"`
		Since  *time.Time `json:"since,omitempty"`
	}
	states := []partState{}
	for _, p := range s.cfg.Ready() {
		state := partState{Name: p.Name, Group: p.Group, Serves: p.Serves, Error: p.Detail}
		if p.Detail != "" {
			state.Since = new(p.Since.UTC().Truncate(time.Millisecond))
		}
		states = append(states, state)
	}
	return map[string][]partState{"parts": states}, nil
}
