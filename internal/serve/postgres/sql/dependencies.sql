WITH RECURSIVE used (class, oid) AS (
	SELECT d.refclassid, d.refobjid FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
	WHERE r.ev_class = 'pg_temp.spillway_grants'::regclass AND d.refobjid <> r.ev_class
	UNION
	SELECT d.refclassid, d.refobjid FROM used JOIN pg_class v ON used.class = 'pg_class'::regclass AND v.oid = used.oid AND v.relkind = 'v'
	JOIN pg_rewrite r ON r.ev_class = v.oid JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid AND d.refobjid <> v.oid
	WHERE EXISTS (SELECT FROM pg_options_to_table(v.reloptions) AS o WHERE o.option_name = 'security_invoker' AND o.option_value::boolean)
)
SELECT DISTINCT 'TABLE', n.nspname, c.relname, '', false FROM used JOIN pg_class c ON class = 'pg_class'::regclass AND c.oid = used.oid JOIN pg_namespace n ON n.oid = c.relnamespace
UNION ALL
SELECT DISTINCT 'FUNCTION', n.nspname, f.proname, pg_get_function_identity_arguments(f.oid), has_function_privilege('public', f.oid, 'EXECUTE')
FROM used JOIN pg_proc f ON class = 'pg_proc'::regclass AND f.oid = used.oid JOIN pg_namespace n ON n.oid = f.pronamespace
ORDER BY 1 DESC, 2, 3
