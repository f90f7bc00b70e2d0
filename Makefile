# Spillway. `make` lists the targets.

GO      ?= go
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
ARGS    ?=
FUZZTIME ?= 10s

# Debian installs nginx in /usr/sbin, which is not in the PATH of ordinary users.
export PATH := $(PATH):/usr/sbin:/sbin

.DEFAULT_GOAL := help
.PHONY: help build run demo test race shake test-mysql check bench fuzz crash chaos live rules browser dist installed long bottlenecks failures peers readme-table clean needs needs-race

help: ## list the targets
	@echo 'Spillway: absorb traffic spikes in front of your database, and load-test services.'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'Variables: ARGS="--listen :8081" (for run)  TESTFLAGS=-v (for test)  FUZZTIME=1m (for fuzz)'

build: ## build bin/spillway, static and stripped
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X main.revision=$(REVISION)' -o bin/spillway ./cmd/spillway

run: build ## build, then serve the freight demo from embedded SQLite
	bin/spillway serve $(ARGS)

demo: build needs ## start nginx, spillway, PostgreSQL, MariaDB and Redis with the freight demo; Ctrl-C stops all
	scripts/demo.sh $(ARGS)

test: needs ## run the tests, in about three minutes on two cores; installs the servers that they need
	GO=$(GO) $(GO) run ./scripts/testrun -short -timeout 30m -p 4 -parallel 8 $(TESTFLAGS) ./... ./experiments/...

# SQLite is translated C, which one goroutine runs at a time: instrumented, its tests take ten times as long.
race: needs-race ## run the tests with the race detector, then all with the long ones, the portable connection path, the long crash tests and 10,000 power cuts
	GO=$(GO) $(GO) run ./scripts/testrun -short -timeout 40m -race -gcflags='modernc.org/...=-race=false' -p 3 -parallel 4 $(TESTFLAGS) ./... ./experiments/...
	GO=$(GO) $(GO) run ./scripts/testrun -timeout 40m -p 3 -parallel 8 $(TESTFLAGS) ./... ./experiments/...
	$(GO) test -timeout 10m -short -tags portable ./internal/serve/server
	SPILLWAY_CRASH_ROUNDS=15 $(GO) test -count=1 -timeout 30m -run '^Test(Popup)?Crash$$' ./internal/serve/crashtest
	SPILLWAY_POWERCUT_SEEDS=10000 $(GO) test -count=1 -timeout 30m -run '^TestPowerCut$$' ./internal/serve/spool

shake: needs ## run each test 20 times beside busy loops, shuffled and interrupted: ARGS='-rounds 50 ./internal/serve/front'
	$(GO) build -o bin/shaker ./scripts/shake
	bin/shaker $(ARGS)

test-mysql: ## run the tests of mysql:// databases on MySQL 5.7, MySQL 8.0 and MariaDB Galera, which it fetches
	GO=$(GO) scripts/test-mysql.sh

check: ## check formatting, vet, staticcheck, the macOS build and the tables in the documents
	@echo '$(GO) tool gofumpt -l .'; \
	files=$$($(GO) tool gofumpt -l .) || exit 1; \
	if [ -n "$$files" ]; then echo "$$files"; echo 'not formatted: run "$(GO) tool gofumpt -w ." on these files'; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -C experiments ./...
	$(GO) vet -C deploy ./...
	$(GO) vet -C experiments/services ./...
	$(GO) tool staticcheck ./...
	cd experiments && $$($(GO) -C .. tool -n staticcheck) ./...
	cd deploy && $$($(GO) -C .. tool -n staticcheck) ./...
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/spillway
	GOOS=darwin GOARCH=arm64 $(GO) vet ./internal/...
	$(GO) run -C experiments ./readmetable -check

bench: ## run all Go benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...
	$(GO) test -C experiments -run '^$$' -bench . -benchmem ./...

fuzz: ## run each fuzz target for FUZZTIME
	GO=$(GO) FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

crash: needs ## 100 rounds of kill -9 of spillway, its databases and Redis under load; checks every acknowledged record
	SPILLWAY_CRASH_ROUNDS=100 $(GO) test -count=1 -timeout 120m -v -run '^Test(Popup)?Crash$$' ./internal/serve/crashtest

chaos: needs ## MINUTES=30 of an operator's work on databases, files and configuration under load, by SEED, of DATABASES=postgres,mariadb,sqlite; checks every acknowledged record
	SPILLWAY_CHAOS_MINUTES=$(or $(MINUTES),30) SPILLWAY_CHAOS_SEED=$(SEED) SPILLWAY_CHAOS_DATABASES=$(DATABASES) SPILLWAY_CHAOS_OPERATIONS=$(OPERATIONS) \
		$(GO) test -count=1 -timeout 24h -v -run '^TestChaos$$' ./internal/serve/chaostest

live: needs ## 10,000 listeners of a live feed: time until a new order reaches them, transactions per second, memory
	SPILLWAY_LISTENERS=10000 $(GO) test -count=1 -timeout 60m -v -run '^TestLiveCrowd$$' ./internal/serve/servetest

rules: ## popups: 2,000,000 steps against a simple model, then 1,000 rounds of 1,000 concurrent requests on three replicas
	$(GO) test -count=1 -timeout 60m -v -run '^TestRulesAgainstModel$$' ./internal/serve/popup -long
	SPILLWAY_POPUP_ROUNDS=1000 $(GO) test -count=1 -timeout 60m -v -run '^TestPopupTabs$$' ./internal/serve/redis

browser: ## try the demo's page and the console in a headless Chromium, which it installs, with axe-core from npm: ARGS=DIRECTORY for pictures
	@scripts/needs.sh browser
	GO=$(GO) scripts/browser.sh $(ARGS)

dist: ## build what a release consists of in dist/: archives, Debian packages and images for linux, with SHA-256 sums
	GOFLAGS= $(GO) run -C deploy ./dist

installed: needs ## test what is installed: package, image, unit, compose file, alerts, proxies, and each command of the production page on Debian hosts
	@scripts/needs.sh installed
	GO=$(GO) $(GO) run ./scripts/testrun -short -timeout 30m -p 2 -parallel 2 $(TESTFLAGS) ./deploy/...

long: needs ## make installed with higher rates, the package in a Debian guest that loses its power CUTS=20 times, and MINUTES=30 in which no alert may fire
	@scripts/needs.sh long
	GO=$(GO) $(GO) run ./scripts/testrun -timeout 40m -p 2 -parallel 2 -skip '^(TestGuest|TestAlertsStayQuiet)$$' ./deploy/...
	SPILLWAY_POWER_CUTS=$(or $(CUTS),20) $(GO) test -C deploy -count=1 -timeout 180m -v -run '^TestGuest$$' ./dist
	SPILLWAY_QUIET_MINUTES=$(or $(MINUTES),30) $(GO) test -C deploy -count=1 -timeout 60m -v -run '^TestAlertsStayQuiet$$' ./trial

bottlenecks: build needs ## plant one fault each in 18 real servers and check that spillway names it: ARGS='-rounds 1 row-lock'; needs root and an idle machine
	$(GO) build -C experiments -o ../bin/bottlenecks ./bottlenecks
	bin/bottlenecks $(ARGS)

failures: build ## make the failures of four stories fail on the real programs, name them and try each cure: ARGS='-rounds 3 ports-nginx'; needs root and an idle machine
	@scripts/needs.sh failures
	scripts/mysql.sh >/dev/null
	$(GO) build -C experiments -o ../bin/failures ./failures
	$(GO) build -C experiments -o ../bin/bottlenecks ./bottlenecks
	$(GO) build -C experiments/services -o ../../bin/services .
	bin/failures $(ARGS)

peers: build needs ## compare queries, writes and popups with forty lines of Go: ARGS='-only q,w -connections 1,4 -rounds 3 -base BINARY'; needs root and an idle machine
	$(GO) build -C experiments -o ../bin/peers ./peers
	bin/peers $(ARGS)

readme-table: ## generate the tables and charts in the documents from the committed results
	$(GO) run -C experiments ./readmetable

clean: ## remove bin/ and dist/, but not the demo's data in spillway-data/
	rm -rf bin dist

needs:
	@scripts/needs.sh

needs-race:
	@scripts/needs.sh race
