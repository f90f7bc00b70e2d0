WITH RECURSIVE used (oid) AS (
	SELECT to_regclass($1::text)::oid
	UNION
	SELECT next.oid FROM used JOIN pg_class c USING (oid), LATERAL (
		SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid AND c.relkind = 'p'
		UNION ALL
		SELECT d.refobjid FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
			AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> c.oid
		WHERE r.ev_class = c.oid AND c.relkind = 'v') AS next (oid))
SELECT c.oid, c.relkind, c.relpersistence, c.relispartition, n.nspname, c.relname
FROM used JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY c.oid
