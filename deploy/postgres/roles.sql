-- Roles of an external PostgreSQL (15 or later). Run it as a superuser inside the database that the
-- service is to use, once, before `gang-extender db migrate`; running it again changes nothing:
--
--     psql --dbname=gang_extender --file=roles.sql
--     CREATE ROLE gang_extender LOGIN PASSWORD '...' IN ROLE gx_writer;         -- the service
--     CREATE ROLE gang_migrator LOGIN PASSWORD '...' IN ROLE gx_owner;          -- `gang-extender db migrate`
--     CREATE ROLE alice LOGIN PASSWORD '...' CONNECTION LIMIT 4 IN ROLE gx_auditor;  -- people who ask
--     ALTER ROLE alice SET statement_timeout = '60s';  -- settings are not inherited from gx_auditor
--
-- gx_owner owns everything in schema gx and never logs in; gx_writer calls the functions that write, and reads;
-- gx_auditor reads what is meant for people. If the roles come after the schema: ownership.sql.
-- The embedded server runs both files at every start.
--
-- In this database, large objects, advisory locks, pg_sleep and pg_notify are taken from PUBLIC, so that who only reads
-- leaves nothing behind and blocks no other session; gx_owner keeps what the functions of schema gx and migrations use. What no
-- grant can take away: the statements NOTIFY and LISTEN, and locks of the tables that a query reads.

DO $do$
DECLARE
    role_name text;
    f regprocedure;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['gx_owner', 'gx_writer', 'gx_auditor'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
        END IF;
    END LOOP;

    EXECUTE format('GRANT CREATE, CONNECT ON DATABASE %I TO gx_owner', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO gx_writer, gx_auditor', current_database());
    -- Temporary tables are the one thing that a reader could still write.
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());

    FOR f IN
        SELECT p.oid::regprocedure FROM pg_proc p
        WHERE p.pronamespace = 'pg_catalog'::regnamespace
          AND p.proname ~ '^(lo_.*|loread|lowrite|pg_sleep.*|pg_notify|pg_(try_)?advisory_(xact_)?lock.*|pg_logical_emit_message|pg_export_snapshot)$'
          AND has_function_privilege('gx_auditor', p.oid, 'EXECUTE')
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
    GRANT EXECUTE ON FUNCTION pg_notify(text, text), pg_advisory_xact_lock(bigint) TO gx_owner;

    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'gx_auditor' AND rolconnlimit = 16) THEN
        ALTER ROLE gx_auditor CONNECTION LIMIT 16;
        ALTER ROLE gx_auditor SET statement_timeout = '60s';
        ALTER ROLE gx_auditor SET idle_in_transaction_session_timeout = '60s';
    END IF;

    -- gx.lease_revoke() ends the session of a wedged leader; it runs as the owner.
    IF NOT pg_has_role('gx_owner', 'pg_signal_backend', 'MEMBER') THEN
        GRANT pg_signal_backend TO gx_owner;
    END IF;
END
$do$;
