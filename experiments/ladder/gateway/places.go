package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// places knows where services are, from the registry. Its methods may be called concurrently.
type places struct {
	registry string
	keep     time.Duration // 0: nothing is kept
	client   *http.Client
	turn     atomic.Uint64

	mu    sync.Mutex
	known map[string]known
}

type known struct {
	addresses []string
	until     time.Time
}

func newPlaces(registry string, keep time.Duration) *places {
	transport := &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute}
	return &places{registry: registry, keep: keep, client: &http.Client{Transport: transport}, known: map[string]known{}}
}

// next returns an address of the service, each in its turn.
func (p *places) next(ctx context.Context, service string) (string, error) {
	addresses, err := p.addresses(ctx, service)
	if err != nil {
		return "", err
	}
	if len(addresses) == 0 {
		return "", errors.New(service + " is nowhere")
	}
	return addresses[p.turn.Add(1)%uint64(len(addresses))], nil
}

func (p *places) addresses(ctx context.Context, service string) ([]string, error) {
	if p.keep == 0 {
		return p.ask(ctx, service)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if k, ok := p.known[service]; ok && time.Now().Before(k.until) {
		return k.addresses, nil
	}
	addresses, err := p.ask(ctx, service)
	if err == nil && len(addresses) > 0 {
		p.known[service] = known{addresses, time.Now().Add(p.keep)}
	}
	return addresses, err
}

// ask asks the registry.
func (p *places) ask(ctx context.Context, service string) ([]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.registry+"/services/"+service, nil)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the registry answers %s", response.Status)
	}
	var addresses []string
	if err := json.NewDecoder(response.Body).Decode(&addresses); err != nil {
		return nil, fmt.Errorf("read the registry's answer: %w", err)
	}
	return addresses, nil
}
