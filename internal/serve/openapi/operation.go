package openapi

import (
	"fmt"
	"slices"
	"strings"

	"spillway/internal/serve/config"
	"spillway/internal/serve/param"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/queue"
)

// schemaOf returns the schema of a parameter.
func (o *operation) schemaOf(name string) object {
	i := slices.IndexFunc(o.Parameters, func(p object) bool { return p["name"] == name })
	return o.Parameters[i]["schema"].(object)
}

// feed returns the operation of a feed.
func (d *document) feed(f *config.Feed) operation {
	params := f.AllParams()
	o := d.accessible("feed", d.cfg.ReadAccess(f.Auth), "readKey", hasClaims(params))
	limit := o.schemaOf("limit")
	limit["maximum"], limit["default"] = f.LimitMax, f.Limit
	o.schemaOf("offset")["maximum"] = f.OffsetMax
	if f.Window >= f.Limit && (f.LiveMax > 0 || len(params) == 0) {
		o.Responses["200"]["description"] = "A page. With Accept: text/event-stream and without limit, offset, before and fields, the first " +
			"page as a server-sent event whenever it changes."
	}
	d.addRows(&o, f.Path, params, func(row object) object { return pageSchema(f.Envelope, row, f.LimitMax, true) })
	return o
}

// query returns the operation of a query.
func (d *document) query(q *config.Query) operation {
	params := q.Params.All()
	var codes []string
	if q.One {
		codes = []string{"not-found"}
	}
	o := d.accessible("query", d.cfg.ReadAccess(q.Auth), "readKey", hasClaims(params), codes...)
	d.addRows(&o, q.Path, params, func(row object) object {
		if q.One {
			o.Responses["200"]["description"] = "The row"
			return row
		}
		return pageSchema(q.Envelope, row, q.RowsMax, false)
	})
	return o
}

// addRows adds what an operation that returns rows has: parameters, before fields, and the rows, which
// surround puts into their envelope.
func (d *document) addRows(o *operation, path string, params []param.Param, surround func(row object) object) {
	columns := d.columns(path)
	fields := slices.IndexFunc(o.Parameters, func(p object) bool { return p["name"] == "fields" })
	var names []string
	for _, c := range columns {
		if !strings.Contains(c.Name, ",") { // which separates names
			names = append(names, c.Name)
		}
	}
	if len(names) > 0 {
		o.schemaOf("fields")["items"].(object)["enum"] = names
	}
	o.Parameters = slices.Insert(o.Parameters, fields, d.parameters(params)...)
	schema := surround(d.named("row", path, d.rowSchema(columns)))
	o.Responses["200"]["content"] = object{"application/json": object{"schema": schema}}
}

// hasClaims reports whether a parameter is a claim of the JWT.
func hasClaims(params []param.Param) bool {
	return slices.ContainsFunc(params, func(p param.Param) bool { return param.IsClaim(p.Name) })
}

// pageSchema returns the schema of rows in their envelope.
func pageSchema(envelope string, row object, rows int, cursor bool) object {
	data := object{"type": "array", "maxItems": rows, "items": row}
	if envelope == "none" {
		return data
	}
	properties, required := object{"data": data}, []string{"data"}
	if envelope == "return_code" {
		properties["return_code"] = object{"enum": []string{"SUCCESS", "FAIL"}, "description": "FAIL if there are no rows"}
		required = append(required, "return_code")
	}
	if cursor {
		properties["next"] = object{"type": "string", "description": "The cursor of the next page; absent on the last page"}
	}
	return object{"type": "object", "required": required, "properties": properties}
}

// stream returns the operation of a stream.
func (d *document) stream(s *config.Stream) operation {
	claims := slices.ContainsFunc(s.Columns, func(c config.Column) bool { return c.Claim != "" })
	var o operation
	if s.Auth == "key" && len(d.cfg.Keys) == 0 {
		o = d.operation("stream", "origin-not-allowed")
	} else {
		o = d.accessible("stream", s.Auth, "writeKey", claims)
	}
	o.schemaOf("Idempotency-Key")["maxLength"] = queue.KeyMax
	o.RequestBody["description"] = fmt.Sprintf(o.RequestBody["description"].(string), s.RecordsMax, s.BodyBytes)
	record := d.named("record", s.Path, d.recordSchema(s))
	o.RequestBody["content"].(object)["application/json"] = object{"schema": object{"oneOf": []object{
		record, {"type": "array", "minItems": 1, "maxItems": s.RecordsMax, "items": record},
	}}}
	return o
}

// popup returns the operation that decides which popup a user gets.
func (d *document) popup(p *config.Popups) operation {
	o := d.userOperation(p, "popup")
	placements := p.PlacementNames()
	o.Parameters[1]["schema"] = object{"enum": placements, "default": placements[0]}
	var attributes []object
	for _, a := range p.Attributes {
		note := "An attribute of the user"
		if a.Type == "timestamp" {
			note += ", from 1900 to 2150"
		}
		attributes = append(attributes, queryParameter(a.Name, note, false, d.attributeSchema(a.Type)))
	}
	o.Parameters = slices.Insert(o.Parameters, 2, attributes...)
	return o
}

// userOperation returns an operation of openapi.json with the parameter that names the user, which is
// the first one, and with the token that does.
func (d *document) userOperation(p *config.Popups, name string, codes ...string) operation {
	header := p.Identity.Header
	if p.Identity.Trust == "jwt" {
		codes = append(codes, "not-identified", "other-user", "token-keys-down")
	}
	o := d.operation(name, codes...)
	schema := d.parameterSchema(param.Type(p.UserType))
	if p.UserType == string(param.Text) {
		schema["minLength"], schema["maxLength"] = 1, popup.UserBytesMax
	}
	user := o.Parameters[0]
	user["schema"] = schema
	if p.Identity.Trust == "jwt" {
		user["description"], user["required"] = "Equal to the user of the JWT", false
		d.require(&o, "userJWT")
		if !strings.EqualFold(header, "Authorization") {
			d.used["userJWT"] = object{"type": "apiKey", "in": "header", "name": header, "description": d.Schemes["userJWT"]["description"]}
		}
	}
	if !d.cfg.Demo {
		o.Parameters = slices.DeleteFunc(o.Parameters, func(p object) bool { return p["name"] == "clock_offset" })
	}
	return o
}

// attributeSchema returns the schema of an attribute's values.
func (d *document) attributeSchema(kind string) object {
	if kind == "texts" {
		return object{"type": "array", "items": d.attributeSchema("text"), "maxItems": popup.ElementsMax}
	}
	schema := d.parameterSchema(param.Type(kind))
	if kind == "text" {
		schema["maxLength"] = popup.AttributeBytesMax
	}
	return schema
}
