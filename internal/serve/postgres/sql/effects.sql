SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = ANY($1::oid[]) AND NOT tgisinternal AND tgtype & 5 = 5),
	EXISTS (SELECT FROM pg_index WHERE indrelid = ANY($1::oid[]) AND concat(indexprs, indpred) ~ casts)
	OR EXISTS (SELECT FROM pg_constraint WHERE conrelid = ANY($1::oid[]) AND conbin::text ~ casts)
FROM (SELECT format(':funcid (%s|%s|%s)\M', 'int4(bigint)'::regprocedure::oid, 'int2(bigint)'::regprocedure::oid,
	'int2(integer)'::regprocedure::oid) AS casts) AS names
