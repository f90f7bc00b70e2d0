SELECT a.attname, a.attgenerated <> '', a.atttypid <> 'bigint'::regtype,
	COALESCE(pg_get_expr(d.adbin, d.adrelid), t.typdefault, '')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
	AND (d.oid IS NOT NULL OR t.typdefault IS NOT NULL OR a.attidentity <> '')
