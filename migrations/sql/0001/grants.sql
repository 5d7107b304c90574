-- Rights of the roles of deploy/postgres/roles.sql, where they exist; run again by every migration that adds anything.
-- The writer calls functions and reads; the auditor reads the views, and the tables of intervals, which hold nothing
-- that the views do not. No role but the owner has a right that is not named here.
-- Of the functions that run with the rights of their caller the writer has one: gx.references_of, which queries call
-- for events that are not indexed yet and which only computes.
-- The writer cannot read the id of the lease: it is the right to append, and only its holder gets it, from gx.lease_acquire.
DO $do$
DECLARE
    f regprocedure;
    v regclass;
BEGIN
    FOR f IN SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'gx'::regnamespace LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;

    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gx_writer') THEN
        GRANT USAGE ON SCHEMA gx TO gx_writer;
        GRANT SELECT ON ALL TABLES IN SCHEMA gx TO gx_writer;
        REVOKE SELECT ON gx.lease FROM gx_writer;
        GRANT SELECT (id, epoch, holder, address, renewed_at, ttl_ms, backend, timeline) ON gx.lease TO gx_writer;
        GRANT INSERT, DELETE ON gx.snapshot TO gx_writer;
        GRANT INSERT ON gx.decision_input_chunk, gx.decision_input TO gx_writer;
        FOR f IN SELECT p.oid::regprocedure FROM pg_proc p
                 WHERE p.pronamespace = 'gx'::regnamespace
                   AND (p.prosecdef OR p.proname = 'references_of') LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO gx_writer', f);
        END LOOP;
    END IF;

    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'gx_auditor') THEN
        GRANT USAGE ON SCHEMA gx TO gx_auditor;
        GRANT SELECT ON gx.placement, gx.gang_state, gx.preemption, gx.victim, gx.projection TO gx_auditor;
        FOR v IN SELECT c.oid::regclass FROM pg_class c
                 WHERE c.relnamespace = 'gx'::regnamespace AND c.relkind = 'v' LOOP
            EXECUTE format('GRANT SELECT ON %s TO gx_auditor', v);
        END LOOP;
    END IF;
END
$do$
