SELECT concat_ws(' ', count(*), sum(xmin::text::bigint)) FROM (SELECT xmin FROM pg_proc UNION ALL SELECT xmin FROM pg_rewrite
	UNION ALL SELECT xmin FROM pg_operator UNION ALL SELECT xmin FROM pg_cast UNION ALL SELECT xmin FROM pg_constraint WHERE contypid <> 0
	UNION ALL SELECT xmin FROM pg_policy UNION ALL SELECT xmin FROM pg_class WHERE relrowsecurity) AS c
