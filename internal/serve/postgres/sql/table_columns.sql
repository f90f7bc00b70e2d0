-- b has the base type of each column below any number of domains, and its modifier; rows of these domains too.
WITH RECURSIVE b (attrelid, attnum, type, modifier) AS (
	SELECT attrelid, attnum, atttypid, atttypmod FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped AND attrelid = to_regclass($1::text)
	UNION ALL SELECT b.attrelid, b.attnum, t.typbasetype, COALESCE(NULLIF(b.modifier, -1), t.typtypmod)
	FROM b JOIN pg_type t ON t.oid = b.type AND t.typtype = 'd')
SELECT a.attname, format_type(a.atttypid, a.atttypmod), format_type(base.oid, -1), b.modifier::text,
	CASE WHEN COALESCE(element.typtype, base.typtype) = 'e' THEN 'enum' ELSE COALESCE(element.typname, base.typname) END,
	(element.oid IS NOT NULL)::text,
	COALESCE((SELECT c.collname FROM pg_collation c WHERE to_jsonb(c) ->> 'collisdeterministic' = 'false'
		AND (c.oid = a.attcollation
			OR c.oid IN (SELECT unnest(i.indcollation) FROM pg_index i
				WHERE i.indrelid = a.attrelid AND i.indisunique AND a.attnum = ANY(i.indkey))) LIMIT 1), '')
FROM b JOIN pg_attribute a USING (attrelid, attnum) JOIN pg_type base ON base.oid = b.type AND base.typtype <> 'd'
	LEFT JOIN pg_type element ON element.oid = base.typelem AND element.typarray = base.oid
