package server

import (
	"spillway/internal/serve/feed"
	"spillway/internal/serve/popup"
	"spillway/internal/serve/query"
)

// names holds header names and values as bytes, made once: fasthttp takes
// canonical names as they are, without allocating or normalising.
type names struct {
	age, cacheControl, etag, ifNoneMatch, source, offset, requestID []byte

	authorization, originHeader, idempotencyKey []byte

	noCache, json, text, bytes, exact []byte

	nextAt, reason, noStore []byte

	reasons [popup.Unavailable + 1][]byte // of popups

	sources [2][]byte // by feed.From
	origins [3][]byte // by query.From
}

func newNames() names {
	n := names{
		age:          []byte("Age"),
		cacheControl: []byte("Cache-Control"),
		etag:         []byte("ETag"), // canonical in HTTP's own spelling
		ifNoneMatch:  []byte("If-None-Match"),
		source:       []byte("Spillway-Source"),
		offset:       []byte("Spillway-Offset"),
		requestID:    []byte("X-Request-Id"),

		authorization:  []byte("Authorization"),
		originHeader:   []byte("Origin"),
		idempotencyKey: []byte("Idempotency-Key"),

		nextAt:  []byte("Spillway-Next-At"),
		reason:  []byte("Spillway-Reason"),
		noStore: []byte("no-store"),

		noCache: []byte("no-cache"),
		json:    []byte("application/json"),
		text:    []byte("text/plain; charset=utf-8"),
		bytes:   []byte("application/octet-stream"),
		exact:   []byte("exact"),
	}
	for r := range n.reasons {
		n.reasons[r] = []byte(popup.Reason(r).String())
	}
	n.sources[feed.FromWindow] = []byte("window")
	n.sources[feed.FromDatabase] = []byte("database")
	n.origins[query.FromDatabase] = []byte("database")
	n.origins[query.FromMemory] = []byte("memory")
	n.origins[query.FromShared] = []byte("redis")
	return n
}
