package openapi

import (
	"fmt"
	"strings"

	"spillway/internal/serve/feed"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

// own returns the operation of the document itself.
func (d *document) own() operation {
	content := object{"application/json": object{"schema": object{"type": "object"}}}
	return operation{
		Tags: []string{"document"}, Summary: "This document", Security: security(),
		Parameters: []object{ifNoneMatch()},
		Responses: d.responses(map[string]object{
			"200": {"description": "The document", "headers": refer("ETag", "Cache-Control"), "content": content},
			"304": {"description": "Unchanged", "headers": refer("ETag", "Cache-Control")},
		}),
	}
}

// feed returns the operation of a feed.
func (d *document) feed(f *Feed) operation {
	required, codes := access(f.Access, readKey, hasClaims(f.Params))
	codes = append(codes, "bad-cursor", "keys-too-long", "busy", "counting", "stale", "not-started")
	own := []object{
		queryParameter("limit", "Rows of the page", false, object{"type": "integer", "minimum": 1, "maximum": f.LimitMax, "default": f.Limit}),
		queryParameter("offset", "Rows to skip from the first; not together with before", false,
			object{"type": "integer", "minimum": 0, "maximum": f.OffsetMax, "default": 0}),
		queryParameter("before", "The cursor of another page: its member next, or in its header Link", false, object{"type": "string"}),
	}
	description := "A page"
	if f.Live {
		description = "A page. With Accept: text/event-stream and without limit, offset, before and fields, the first page as a server-sent " +
			"event whenever it changes."
	}
	for _, p := range own {
		p["allowEmptyValue"] = true // the default
	}
	return operation{
		Tags: []string{"feeds"}, Summary: "A page of the newest rows", Security: required,
		Parameters: append(append(own, parameters(f.Params)...), fieldsParameter(f.Columns), ifNoneMatch()),
		Responses: d.responses(map[string]object{
			"200": readResponse(description, pageSchema(f.Envelope, d.row(f.Paths[0], f.Columns), f.LimitMax, true), "Spillway-Offset",
				"Content-Encoding", "Link"),
			"304": readResponse("The page is unchanged", nil),
		}, codes...),
	}
}

// query returns the operation of a query.
func (d *document) query(q *Query) operation {
	required, codes := access(q.Access, readKey, hasClaims(q.Params))
	codes = append(codes, "result-too-large", "busy", "database-down", "not-started")
	row := d.row(q.Paths[0], q.Columns)
	description, schema := "The rows", pageSchema(q.Envelope, row, q.RowsMax, false)
	if q.Envelope == feed.EnvelopeOne {
		description, schema = "The row", row
		codes = append(codes, "not-found")
	}
	return operation{
		Tags: []string{"queries"}, Summary: "The result of a statement", Security: required,
		Parameters: append(parameters(q.Params), fieldsParameter(q.Columns), ifNoneMatch()),
		Responses: d.responses(map[string]object{
			"200": readResponse(description, schema, "Content-Encoding"),
			"304": readResponse("The result is unchanged", nil),
		}, codes...),
	}
}

// ifNoneMatch returns the header parameter of reads.
func ifNoneMatch() object {
	return object{
		"name": "If-None-Match", "in": "header", "required": false, "schema": object{"type": "string"},
		"description": "The ETag of an earlier response",
	}
}

// readResponse returns a response with rows; nil: without a body.
func readResponse(description string, schema object, more ...string) object {
	r := object{"description": description, "headers": refer(append([]string{"Age", "Cache-Control", "ETag", "Spillway-Source"}, more...)...)}
	if schema != nil {
		r["content"] = object{"application/json": object{"schema": schema}}
	}
	return r
}

// row returns a reference to the schema of the rows at a path.
func (d *document) row(path string, columns []feed.Column) object {
	return d.named("row", path, rowSchema(columns))
}

// fieldsParameter returns the parameter that selects columns.
func fieldsParameter(columns []feed.Column) object {
	item := object{"type": "string"}
	var names []string
	for _, c := range columns {
		if !strings.Contains(c.Name, ",") { // which separates names
			names = append(names, c.Name)
		}
	}
	if len(names) > 0 {
		item["enum"] = names
	}
	p := queryParameter("fields", "The columns to return; empty: all", false, object{"type": "array", "items": item})
	p["style"], p["explode"] = "form", false
	return p
}

// pageSchema returns the schema of rows in their envelope.
func pageSchema(envelope feed.Envelope, row object, rows int, cursor bool) object {
	data := object{"type": "array", "maxItems": rows, "items": row}
	if envelope == feed.EnvelopeNone {
		return data
	}
	properties, required := object{"data": data}, []string{"data"}
	if envelope == feed.EnvelopeCode {
		properties["return_code"] = object{"enum": []string{"SUCCESS", "FAIL"}, "description": "FAIL if there are no rows"}
		required = append(required, "return_code")
	}
	if cursor {
		properties["next"] = object{"type": "string", "description": "The cursor of the next page; absent on the last page"}
	}
	return object{"type": "object", "required": required, "properties": properties}
}

// stream returns the operation of a stream.
func (d *document) stream(s *Stream) operation {
	claims := false
	for _, c := range s.Columns {
		claims = claims || c.Claim != ""
	}
	required, codes := access(s.Access, writeKey, claims)
	if s.Access == "key" && !d.WriteKeys {
		required, codes = security(), []string{"origin-not-allowed"}
	}
	codes = append(codes, "bad-body", "key-reused", "unsupported-media-type", "records-refused", "not-stored", "busy",
		"database-down", "stopping", "too-many-bodies", "not-started", "unknown-outcome")
	record := d.named("record", s.Paths[0], recordSchema(s))
	return operation{
		Tags: []string{"streams"}, Summary: "Store records", Security: required,
		Parameters: []object{{
			"name": "Idempotency-Key", "in": "header", "required": false,
			"schema":      object{"type": "string", "minLength": 1, "maxLength": queue.KeyMax, "pattern": "^[!-~]([ -~]*[!-~])?$"},
			"description": "A repeated request with the same key stores nothing and gets the first response again. UTF-8 is accepted too.",
		}},
		RequestBody: object{
			"required": true,
			"description": fmt.Sprintf("At most %d records and %d bytes; Content-Encoding may be gzip. Types of NDJSON: application/x-ndjson, "+
				"ndjson, jsonl and x-jsonlines.", s.RecordsMax, s.BodyBytes),
			"content": object{
				"application/json": object{"schema": object{"oneOf": []object{
					record, {"type": "array", "minItems": 1, "maxItems": s.RecordsMax, "items": record},
				}}},
				"application/x-ndjson": object{"schema": object{"type": "string", "description": "One record per line"}},
			},
		},
		Responses: d.responses(map[string]object{
			"200": receiptResponse("The records are in the table"),
			"202": receiptResponse("The records will be in the table later"),
		}, codes...),
	}
}

// receiptResponse returns the response to records that were accepted.
func receiptResponse(description string) object {
	return object{"description": description, "content": object{"application/json": object{"schema": object{
		"type": "object", "required": []string{"stored", "ack"},
		"properties": object{
			"stored":   object{"type": "integer", "minimum": 0},
			"ack":      object{"type": "string", "description": "How safe the records are"},
			"replayed": object{"type": "boolean", "description": "The Idempotency-Key was known"},
			"refused": object{
				"type": "array", "items": object{"$ref": "#/components/schemas/Refusal"},
				"description": "The rejected records; the others are stored",
			},
		},
	}}}}
}

// popup returns the operation that decides which popup a user gets.
func (d *document) popup(p *Popup) operation {
	own, required, codes := p.user()
	own = append(own, queryParameter("placement", "", false, object{"enum": p.Placements, "default": p.Placements[0]}))
	for _, a := range p.Attributes {
		note := "An attribute of the user"
		if a.Type == "timestamp" {
			note += ", from 1900 to 2150"
		}
		own = append(own, queryParameter(a.Name, note, false, attributeSchema(a.Type)))
	}
	if p.ClockOffset {
		own = append(own, clockOffset())
	}
	return operation{
		Tags: []string{"popups"}, Summary: "The popup to show to a user now", Security: required, Parameters: own,
		Responses: d.responses(map[string]object{
			"200": {
				"description": "Show this popup", "headers": refer("Spillway-Reason", "Cache-Control", "Spillway-Detail"),
				"content": object{"application/json": object{"schema": object{
					"type": "object", "required": []string{"campaign", "payload"},
					"properties": object{
						"campaign": object{"type": "integer", "minimum": 1},
						"variant":  object{"type": "string", "description": "Of the campaign's variants; absent if it has none"},
						"payload":  object{"description": "As the campaign or the variant has it"},
						"show":     object{"type": "string", "description": "The token of click, dismiss and convert; absent if the show was not recorded"},
					},
				}}},
			},
			"204": {"description": "No popup", "headers": refer("Spillway-Reason", "Cache-Control", "Spillway-Next-At", "Spillway-Detail",
				"Spillway-Show")},
		}, append(codes, "popups-down", "not-started")...),
	}
}

// answer returns an operation that records the answer to a popup.
func (d *document) answer(p *Popup, summary string) operation {
	return d.recorded(p, summary, "show-unknown", "show-repeated", "show-late")
}

// conversion returns the operation that records a conversion.
func (d *document) conversion(p *Popup) operation {
	return d.recorded(p, "Record that the user did what the popup is for; the database counts one conversion per show")
}

// recorded returns an operation that records something about a show. codes are those of its
// problems that not all of these operations have.
func (d *document) recorded(p *Popup, summary string, codes ...string) operation {
	own, required, others := p.user()
	for _, parameter := range own {
		parameter["required"] = false // the show token names the user
	}
	if p.ClockOffset {
		own = append(own, clockOffset())
	}
	body := object{"type": "object", "required": []string{"show"}, "properties": object{"show": object{"type": "string", "minLength": 1}}}
	codes = append(append(codes, others...), "show-malformed", "other-user", "show-forged", "show-expired", "popups-down", "not-started")
	return operation{
		Tags: []string{"popups"}, Summary: summary, Security: required, Parameters: own,
		RequestBody: object{"required": true, "content": object{"application/json": object{"schema": body}}},
		Responses:   d.responses(map[string]object{"204": {"description": "Recorded", "headers": refer("Cache-Control")}}, codes...),
	}
}

// user returns the parameter that names the user, what requests need, and the problems of
// requests without it.
func (p *Popup) user() ([]object, []map[string][]string, []string) {
	schema := parameterSchema(p.User)
	if p.User == param.Text {
		schema["minLength"], schema["maxLength"] = 1, popup.UserBytesMax
	}
	if p.TokenHeader == "" {
		return []object{queryParameter("user", "Id of the user", true, schema)}, security(), nil
	}
	return []object{queryParameter("user", "Equal to the user of the JWT", false, schema)}, security(userJWT), []string{
		"not-identified",
		"other-user",
	}
}

// attributeSchema returns the schema of an attribute's values.
func attributeSchema(kind string) object {
	if kind == "texts" {
		return object{"type": "array", "items": attributeSchema("text"), "maxItems": popup.ElementsMax}
	}
	schema := parameterSchema(param.Type(kind))
	if kind == "text" {
		schema["maxLength"] = popup.AttributeBytesMax
	}
	return schema
}

// clockOffset returns the parameter that shifts the clock.
func clockOffset() object {
	return queryParameter("clock_offset", "Added to the clock, as 25h; only in the demo", false,
		object{"type": "string", "pattern": "^-?[0-9]{1,4}[hms]$"})
}
