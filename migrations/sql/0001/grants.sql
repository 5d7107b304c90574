-- Rights of the roles of deploy/postgres/roles.sql, where they exist. A database used by its plain owner
-- (the embedded one) has none of them and needs none.
DO $do$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'gx'::regnamespace LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;

    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gx_writer') THEN
        GRANT USAGE ON SCHEMA gx TO gx_writer;
        GRANT SELECT ON ALL TABLES IN SCHEMA gx TO gx_writer;
        GRANT INSERT, DELETE ON gx.checkpoint TO gx_writer;
        GRANT INSERT ON gx.decision_part, gx.decision_input TO gx_writer;
        FOR f IN SELECT p.oid::regprocedure FROM pg_proc p
                 WHERE p.pronamespace = 'gx'::regnamespace AND p.prorettype <> 'trigger'::regtype LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO gx_writer', f);
        END LOOP;
    END IF;

    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gx_auditor') THEN
        GRANT USAGE ON SCHEMA gx TO gx_auditor;
        GRANT SELECT ON gx.v_event, gx.v_leadership TO gx_auditor;
    END IF;
END
$do$
