# Spillway. `make` alone explains the targets.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
ARGS    ?=
FUZZTIME ?= 10s

# Debian keeps nginx in /usr/sbin, which an ordinary user's PATH leaves out.
export PATH := $(PATH):/usr/sbin:/sbin

.DEFAULT_GOAL := help
.PHONY: help build run demo test race check bench fuzz crash rules readme-table clean needs

help: ## explain the targets (this text)
	@echo 'Spillway: serve hot endpoints from your own database, and load-test any service.'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'Variables: ARGS="--listen :8081" (for run)  TESTFLAGS=-v (for test)  FUZZTIME=1m (for fuzz)'

build: ## build bin/spillway, static and stripped
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o bin/spillway ./cmd/spillway

run: build ## build, create the freight demo on embedded SQLite, serve it
	bin/spillway serve $(ARGS)

demo: build needs ## nginx in front of spillway on PostgreSQL, MariaDB and Redis, all started here; Ctrl-C stops them
	scripts/demo.sh $(ARGS)

test: needs ## every test once; installs the servers that the tests need
	$(GO) test -timeout 15m -parallel 4 $(TESTFLAGS) ./...

race: needs ## every test with the race detector, the portable connections, and the long tests
	$(GO) test -timeout 25m -race -parallel 4 $(TESTFLAGS) ./...
	$(GO) test -timeout 5m -tags portable ./internal/serve/server
	SPILLWAY_CRASH_ROUNDS=15 $(GO) test -count=1 -timeout 20m -run '^Test(Popup)?Crash$$' ./cmd/spillway

check: ## formatting, go vet, staticcheck, the build for macOS, tables of the documents
	@echo '$(GO) tool gofumpt -l .'; \
	files=$$($(GO) tool gofumpt -l .) || exit 1; \
	if [ -n "$$files" ]; then echo "$$files"; echo 'not formatted: run "$(GO) tool gofumpt -w ." on these files'; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/spillway
	GOOS=darwin GOARCH=arm64 $(GO) vet ./internal/...
	$(GO) vet -C experiments/services ./...
	$(GO) run ./scripts/readmetable -check

bench: ## every benchmark, in Go's benchmark format
	$(GO) test -run '^$$' -bench . -benchmem ./...

fuzz: ## every fuzz target, FUZZTIME each
	GO=$(GO) FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

crash: needs ## 100 rounds of kill -9 of spillway, its databases and Redis under load; everything acknowledged must be there
	SPILLWAY_CRASH_ROUNDS=100 $(GO) test -count=1 -timeout 120m -v -run '^Test(Popup)?Crash$$' ./cmd/spillway

rules: ## popups: 2,000,000 steps against the naive model, 1,000 rounds of 1,000 tabs on three replicas
	$(GO) test -count=1 -timeout 10m -v -run '^TestRulesAgainstModel$$' ./internal/serve/popup -long
	SPILLWAY_POPUP_ROUNDS=1000 $(GO) test -count=1 -timeout 10m -v -run '^TestPopupTabs$$' ./internal/serve/redis

readme-table: ## write the tables and pictures of the documents from the committed results
	$(GO) run ./scripts/readmetable

clean: ## remove bin/ (the demo's data in spillway-data/ stays)
	rm -rf bin

needs:
	@scripts/needs.sh
