-- Prints what wrk counted as one line of JSON. wrk's requests stay static:
-- this file defines nothing that runs for each of them.
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '{"requests":%d,"seconds":%.6f,"bytes":%d,"errors":{"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d},' ..
    '"latency":{"p50_seconds":%.6f,"p99_seconds":%.6f,"max_seconds":%.6f}}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, e.connect, e.read, e.write, e.status, e.timeout,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6, latency.max / 1e6))
end
