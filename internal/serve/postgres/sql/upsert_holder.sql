WITH waited AS (SELECT id FROM popup_holder WHERE id = 1 FOR UPDATE)
INSERT INTO popup_holder (id, token, holder, since)
SELECT 1, taken.token, ?::text, %s FROM (SELECT ?::uuid AS token, set_config('synchronous_commit', 'local', true)) AS taken
	LEFT JOIN waited ON true
ON CONFLICT (id) DO UPDATE SET token = excluded.token, holder = excluded.holder, since = excluded.since
