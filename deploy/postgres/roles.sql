-- Roles of an external PostgreSQL (15 or later). Run it as a superuser inside the database that the
-- service is to use, once, before `gang-extender db migrate`; running it again changes nothing:
--
--     psql --dbname=gang_extender --file=roles.sql
--     CREATE ROLE gang_extender LOGIN PASSWORD '...' IN ROLE gx_writer;         -- the service
--     CREATE ROLE gang_migrator LOGIN PASSWORD '...' IN ROLE gx_owner;          -- `gang-extender db migrate`
--     CREATE ROLE alice LOGIN PASSWORD '...' IN ROLE gx_auditor;                -- people who ask
--
-- gx_owner owns everything in schema gx and never logs in; gx_writer calls the functions that write, and reads;
-- gx_auditor reads what is meant for people. If the roles come after the schema: ownership.sql.
-- The embedded server runs both files at every start.

DO $do$
DECLARE
    role_name text;
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

    -- gx.lease_revoke() ends the session of a wedged leader; it runs as the owner.
    IF NOT pg_has_role('gx_owner', 'pg_signal_backend', 'MEMBER') THEN
        GRANT pg_signal_backend TO gx_owner;
    END IF;
END
$do$;
