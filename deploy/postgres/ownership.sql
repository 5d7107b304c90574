-- Give what is in schema gx to gx_owner, where it belongs to another role: a schema that was made before the roles of
-- roles.sql. Run it after roles.sql, as a superuser, inside the service's database; running it again changes nothing.
-- The rights of the other roles come with the next `gang-extender db migrate` that has something to do; until then, or
-- when there is nothing to migrate, run the newest migrations/sql/*/grants.sql as gx_owner.

DO $do$
DECLARE
    found record;
BEGIN
    IF to_regnamespace('gx') IS NULL THEN
        RETURN;
    END IF;
    FOR found IN
        SELECT format('SCHEMA %I', n.nspname) AS what
        FROM pg_namespace n WHERE n.nspname = 'gx' AND n.nspowner <> 'gx_owner'::regrole
        UNION ALL
        SELECT format('%s %s', CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid::regclass)
        FROM pg_class c
        WHERE c.relnamespace = 'gx'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND c.relowner <> 'gx_owner'::regrole
        UNION ALL
        SELECT format('FUNCTION %s', p.oid::regprocedure)
        FROM pg_proc p WHERE p.pronamespace = 'gx'::regnamespace AND p.proowner <> 'gx_owner'::regrole
    LOOP
        EXECUTE format('ALTER %s OWNER TO gx_owner', found.what);
    END LOOP;
END
$do$;
