WITH RECURSIVE volatile AS (SELECT oid, proname FROM pg_proc WHERE provolatile = 'v'),
	used AS (SELECT $2 AS sql UNION SELECT pg_get_viewdef(c.oid) FROM used JOIN pg_class c
		ON c.relkind = 'v' AND c.oid >= 16384 AND position(lower(c.relname) IN lower(sql)) > 0),
	texts AS (SELECT regexp_replace(lower(string_agg(sql, ' ')), '[[:space:]"]', '', 'g') AS sql FROM used)
	SELECT (SELECT count(*) FROM volatile WHERE position(lower(proname) || '(' IN lower($1)) > 0
		OR position(lower(proname) || '(' IN (SELECT sql FROM texts)) > 0) + position('\"(' IN $1)
		+ (SELECT count(*) FROM pg_operator JOIN volatile v ON v.oid = oprcode WHERE pg_operator.oid >= 16384)
		+ (SELECT count(*) FROM pg_cast JOIN volatile v ON v.oid = castfunc WHERE pg_cast.oid >= 16384)
		+ (SELECT count(*) FROM pg_type JOIN volatile v ON v.oid IN (typinput, typoutput) WHERE pg_type.oid >= 16384)
		+ (SELECT count(*) FROM pg_aggregate JOIN volatile v ON v.oid IN (aggtransfn, aggfinalfn) WHERE aggfnoid::oid >= 16384)
		+ (SELECT count(*) FROM pg_constraint c JOIN volatile ON position(lower(proname) || '(' IN lower(pg_get_constraintdef(c.oid))) > 0
			WHERE c.contypid <> 0)
