WITH added AS (
	INSERT INTO popup_events (id, user_id, placement, sequence, kind, campaign_id, shown_at, at, next_at, variant, first)
	SELECT id, user_id, placement, sequence, packed & 7, campaign_id, shown_at, at, next_at, packed >> 4, packed & 8 <> 0
	FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::smallint[], $6::integer[], $7::timestamptz[], $8::timestamptz[], $9::timestamptz[])
		AS e(id, user_id, placement, sequence, packed, campaign_id, shown_at, at, next_at)
	ON CONFLICT (id) DO NOTHING RETURNING campaign_id, kind, variant, first, at
), hours AS (
	INSERT INTO popup_hours AS h (campaign_id, hour, variant, kind, slot, events, users)
	SELECT campaign_id, date_trunc('hour', at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC', variant, kind, $10::smallint, count(*), count(*) FILTER (WHERE first)
	FROM added GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
	ON CONFLICT (campaign_id, hour, variant, kind, slot) DO UPDATE SET events = h.events + excluded.events, users = h.users + excluded.users
) INSERT INTO popup_counts AS c (campaign_id, kind, slot, events)
SELECT campaign_id, kind, $10::smallint, count(*) FROM added GROUP BY campaign_id, kind ORDER BY campaign_id, kind
ON CONFLICT (campaign_id, kind, slot) DO UPDATE SET events = c.events + excluded.events
