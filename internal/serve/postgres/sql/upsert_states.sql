INSERT INTO popup_state AS s (event_id, user_id, placement, sequence, kind, campaign_id, at, next_at, state)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::smallint[], $6::integer[], $7::timestamptz[], $8::timestamptz[], $9::bytea[])
ON CONFLICT (user_id, placement) DO UPDATE SET event_id = excluded.event_id, sequence = excluded.sequence, kind = excluded.kind,
	campaign_id = excluded.campaign_id, at = excluded.at, next_at = excluded.next_at, state = excluded.state
WHERE (s.sequence, s.at, s.event_id) < (excluded.sequence, excluded.at, excluded.event_id)
