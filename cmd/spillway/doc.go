// Command spillway makes an app's hot endpoints hold a flood of requests in
// front of its own database, and proves what they hold.
//
//	spillway serve                      the built-in freight app on embedded SQLite
//	spillway serve spillway.yaml        your lists, writes and popups, on your tables
//	spillway seed freight --database postgres://…
//	spillway config check spillway.yaml
//	spillway spool status               what waits in the local queue of streams
//	spillway load http://127.0.0.1:8080/goodslist --rate 1000 --duration 30s
//	spillway watch --watch app=:8080 -o watch.ndjson
//	spillway doctor --for 'rate=5000 short-connections'
//	spillway experiment experiments/freight-stacks/experiment.yaml --quick
//	spillway report result.ndjson --format html -o report.html
//
// Every verb explains itself with --help. Exit codes: 0 fine, 1 an SLO or a check
// failed, 2 wrong use, 3 could not run. This package is the only one that names
// adapters: it opens databases, hands them to the engines and these to the listeners.
package main
