package openapi

import (
	"slices"
	"strconv"
	"strings"
)

// responses returns the responses of an operation: those given, by status, and a problem
// response for each status of codes and of the problems that every request can have.
func (d *document) responses(given map[string]object, codes ...string) map[string]object {
	codes = append(codes, "bad-request", "request-timeout", "body-too-large", "headers-too-large", "too-many-connections")
	if d.Hosts {
		codes = append(codes, "wrong-host")
	}
	if d.RateLimit {
		codes = append(codes, "rate-limited")
	}
	byStatus := make(map[int][]string)
	for _, code := range codes {
		status := d.status(code)
		if status == 0 {
			panic("bug: no status for the problem " + code)
		}
		byStatus[status] = append(byStatus[status], code)
	}
	for status, codes := range byStatus {
		slices.Sort(codes)
		codes = slices.Compact(codes)
		name := strings.Join(codes, ".")
		d.problems[name] = problemResponse(status, codes)
		given[strconv.Itoa(status)] = object{"$ref": "#/components/responses/" + name}
	}
	return given
}

// problemResponse returns the response with one of several problems of a status.
func problemResponse(status int, codes []string) object {
	var types []string
	for _, code := range codes {
		types = append(types, "urn:spillway:problem:"+code)
	}
	r := object{
		"description": strings.Join(codes, ", "),
		"content": object{"application/problem+json": object{"schema": object{"allOf": []object{
			{"$ref": "#/components/schemas/Problem"},
			{"type": "object", "properties": object{"type": object{"enum": types}, "status": object{"const": status}}},
		}}}},
	}
	switch status {
	case 401:
		r["headers"] = refer("WWW-Authenticate")
	case 415:
		r["headers"] = refer("Accept-Encoding")
	case 429, 503:
		r["headers"] = refer("Retry-After")
	}
	return r
}

// problemSchema returns the schema of all problems.
func problemSchema() object {
	text := func(description string) object { return object{"type": "string", "description": description} }
	return object{
		"type": "object", "description": "RFC 9457", "required": []string{"type", "title", "status", "detail"},
		"properties": object{
			"type": text("Stable"), "title": text("The same for all problems of a type"), "status": object{"type": "integer"},
			"detail": text("What to change in this request; for people"), "instance": text("The request, by its X-Request-Id"),
			"refused": object{"type": "array", "items": object{"$ref": "#/components/schemas/Refusal"}, "description": "The rejected records"},
		},
	}
}

// refusalSchema returns the schema of a rejected record.
func refusalSchema() object {
	return object{
		"type": "object", "required": []string{"index", "reason"},
		"properties": object{
			"index":  object{"type": "integer", "minimum": 0, "description": "Of the record in the request, from 0"},
			"field":  object{"type": "string"},
			"reason": object{"type": "string"},
		},
	}
}

// headers returns the response headers.
func headers() object {
	header := func(required bool, description string, schema object) object {
		return object{"required": required, "description": description, "schema": schema}
	}
	text := object{"type": "string"}
	return object{
		"Age":              header(true, "Seconds since the rows were read", object{"type": "integer", "minimum": 0}),
		"Cache-Control":    header(true, "Who may store the response, and how it is used again", text),
		"ETag":             header(false, "For If-None-Match", text),
		"Content-Encoding": header(false, "gzip or zstd, if the response is compressed", text),
		"Link":             header(false, "The next page (rel=next) of a bare array", text),
		"Spillway-Source":  header(true, "Where the rows come from", object{"enum": []string{"window", "database", "memory", "redis"}}),
		"Spillway-Offset": header(false, "How the offset of a page beyond the window was found: exact, or counted and the age of the "+
			"oldest count", text),
		"Spillway-Reason":  header(true, "Why this popup, or none", text),
		"Spillway-Detail":  header(false, "Which campaigns could not be decided, and why", text),
		"Spillway-Show":    header(false, "The token of convert, if the popup is withheld for comparison", text),
		"Spillway-Next-At": header(false, "When to ask again at the earliest", object{"type": "string", "format": "date-time"}),
		"Retry-After":      header(true, "Seconds", object{"type": "integer", "minimum": 1}),
		"WWW-Authenticate": header(true, "The scheme to use", text),
		"Accept-Encoding":  header(false, "The encodings of bodies that are read", text),
	}
}

// refer returns references to response headers.
func refer(names ...string) object {
	all := object{}
	for _, name := range names {
		all[name] = object{"$ref": "#/components/headers/" + name}
	}
	return all
}
