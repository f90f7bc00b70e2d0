package main

import (
	"context"
	"encoding/json"
	"flag"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// runRegistry is a small service registry over HTTP, in the place of consul: PUT and DELETE /services/NAME/ADDRESS, and GET
// /services/NAME, which answers a JSON list of addresses.
func runRegistry(ctx context.Context, flags *flag.FlagSet, args []string) error {
	address := flags.String("listen", "127.0.0.1:8090", "address to serve on")
	ttl := flags.Duration("ttl", 15*time.Second, "a registration that is not renewed is forgotten after this long")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := listen(*address)
	if err != nil {
		return err
	}
	return serveHTTP(ctx, listener, newRegistry(*ttl, time.Now).handler())
}

// registry holds where services are, each address until its time. Its methods may be called concurrently.
type registry struct {
	ttl time.Duration
	now func() time.Time

	mu     sync.Mutex
	places map[string]map[string]time.Time // service: address: end
}

func newRegistry(ttl time.Duration, now func() time.Time) *registry {
	return &registry{ttl: ttl, now: now, places: map[string]map[string]time.Time{}}
}

// put registers an address anew.
func (r *registry) put(service, address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.places[service] == nil {
		r.places[service] = map[string]time.Time{}
	}
	r.places[service][address] = r.now().Add(r.ttl)
}

func (r *registry) remove(service, address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.places[service], address)
}

// list returns the addresses of a service whose time has not come, sorted.
func (r *registry) list(service string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	maps.DeleteFunc(r.places[service], func(_ string, end time.Time) bool { return end.Before(now) })
	return slices.Sorted(maps.Keys(r.places[service]))
}

func (r *registry) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /services/{name}/{address}", func(w http.ResponseWriter, q *http.Request) {
		r.put(q.PathValue("name"), q.PathValue("address"))
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("DELETE /services/{name}/{address}", func(w http.ResponseWriter, q *http.Request) {
		r.remove(q.PathValue("name"), q.PathValue("address"))
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /services/{name}", func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(r.list(q.PathValue("name"))) // the client may have left
	})
	return mux
}
