-- Bring the tables of intervals (placement, gang_state, preemption, victim) up to a position: fold the facts behind
-- gx.projection into them, at most p_max_events, in one transaction. Returns their position. A second caller
-- waits for the row of gx.projection. Not part of an append: an append must not pay for it.
CREATE FUNCTION gx.project(p_upto bigint, p_max_events integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
SET enable_seqscan = off  -- plans are made while the tables are empty and kept while they grow
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $function$
DECLARE
    done bigint;
    fact gx.event;
BEGIN
    SELECT p.position INTO STRICT done FROM gx.projection p WHERE p.id = 1 FOR UPDATE;
    FOR fact IN
        SELECT e.* FROM gx.event e
        WHERE e.position > done AND e.position <= least(p_upto, done + p_max_events)
        ORDER BY e.position
    LOOP
        PERFORM gx.project_event(fact);
    END LOOP;
    IF fact.position IS NULL THEN
        RETURN done;
    END IF;
    UPDATE gx.projection p
    SET position = fact.position, at_us = fact.at_us, projected_at = clock_timestamp()
    WHERE p.id = 1;
    RETURN fact.position;
END
$function$
