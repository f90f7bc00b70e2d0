{{- /* One reading: the columns of one row are figures, and lists of statements as JSON. Without the privilege, a row of another user's
session has no backend_type, state or wait; background processes among such rows have no database or user. */ -}}
SELECT * FROM
(SELECT count(*) AS connections,
  count(*) FILTER (WHERE state = 'active') AS connections_active,
  count(*) FILTER (WHERE state = 'idle') AS connections_idle,
  count(*) FILTER (WHERE state LIKE 'idle in transaction%') AS connections_idle_in_transaction,
  count(*) FILTER (WHERE state = 'active' AND wait_event_type IS NULL) AS wait_cpu,
  count(*) FILTER (WHERE state = 'active' AND wait_event_type = 'Lock') AS wait_lock,
  count(*) FILTER (WHERE state = 'active' AND wait_event_type = 'LWLock') AS wait_lwlock,
  count(*) FILTER (WHERE state = 'active' AND wait_event_type = 'IO') AS wait_io,
  count(*) FILTER (WHERE state = 'active' AND wait_event_type = 'Client') AS wait_client,
  count(*) FILTER (WHERE state = 'active' AND wait_event_type = 'IPC') AS wait_ipc,
  count(*) FILTER (WHERE state = 'active' AND wait_event_type = 'BufferPin') AS wait_buffer_pin,
  count(*) FILTER (WHERE state = 'active' AND wait_event_type = 'Timeout') AS wait_timeout,
  count(*) FILTER (WHERE state = 'active' AND wait_event_type = 'Extension') AS wait_extension,
  count(*) FILTER (WHERE state = 'active' AND wait_event_type IN ('IO', 'LWLock') AND wait_event ILIKE 'wal%') AS wait_wal,
  count(*) FILTER (WHERE backend_type IS NULL) AS hidden
FROM pg_stat_get_activity(NULL)
WHERE pid <> pg_backend_pid() AND (backend_type = 'client backend' OR backend_type IS NULL AND datid <> 0 AND usesysid <> 0)) AS activity,
(SELECT json_agg(each) AS running FROM (
  SELECT left(query, 1000) AS text, count(*) AS active, count(*) FILTER (WHERE wait_event_type = 'Lock') AS waiting
  FROM pg_stat_get_activity(NULL) WHERE state = 'active' AND backend_type = 'client backend' AND pid <> pg_backend_pid()
  GROUP BY 1 ORDER BY 2 DESC LIMIT 5) AS each) AS running,
(SELECT sum(xact_commit) AS commits_total, sum(xact_rollback) AS rollbacks_total,
  sum(blks_read) AS blocks_read_total, sum(blks_hit) AS blocks_hit_total,
  sum(tup_inserted) AS rows_inserted_total, sum(tup_fetched) AS rows_fetched_total,
  sum(temp_bytes) AS temp_bytes_total, sum(deadlocks) AS deadlocks_total
FROM pg_stat_database) AS databases,
{{- if ge .Version 180000}}
(SELECT wal_bytes AS wal_bytes_total, wal_records AS wal_records_total FROM pg_stat_wal) AS wal,
(SELECT sum(writes) AS wal_writes_total, sum(fsyncs) AS fsyncs_total FROM pg_stat_io WHERE object = 'wal') AS io
{{- else if ge .Version 140000}}
(SELECT wal_bytes AS wal_bytes_total, wal_records AS wal_records_total, wal_write AS wal_writes_total, wal_sync AS fsyncs_total
FROM pg_stat_wal) AS wal
{{- else}}
(SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn() - '0/0'::pg_lsn END AS wal_bytes_total) AS wal
{{- end}}
{{- with .Schema}},
{{- /* false omits the texts, which are in a file. */}}
(SELECT sum(calls) AS statements_total{{if $.Planning}}, sum(plans) AS plans_total{{end}}
FROM {{.}}.pg_stat_statements(false)) AS statements,
(SELECT json_agg(each) AS ranked FROM (
  SELECT queryid::text AS id, sum(calls) AS calls, sum({{if lt $.Version 130000}}total_time{{else}}total_exec_time{{end}}) / 1000 AS seconds
  FROM {{.}}.pg_stat_statements(false) WHERE queryid IS NOT NULL GROUP BY 1 ORDER BY 3 DESC LIMIT 50) AS each) AS ranked
{{- end}}
{{- if ge .Version 150000}}
{{- /* Flushes this session's own transactions to the counters before the next reading, which can then subtract them. */}}
WHERE pg_stat_force_next_flush() IS NOT NULL
{{- end}}
