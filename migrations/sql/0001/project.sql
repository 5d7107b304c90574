-- Bring the tables of intervals (placement, gang_state, preemption, victim) up to a position: fold the events after
-- gx.projection into them, at most p_max_events, in one transaction. Returns their position. A second caller
-- waits for the row of gx.projection. Not part of an append: it would make appends slower.
CREATE FUNCTION gx.project(p_upto bigint, p_max_events integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
SET enable_seqscan = off  -- plans are made while the tables are empty and kept while they grow
SET plan_cache_mode = force_generic_plan
SET jit = off
AS $function$
DECLARE
    done bigint;
    e gx.event;
BEGIN
    SELECT p.position INTO STRICT done FROM gx.projection p WHERE p.id = 1 FOR UPDATE;
    FOR e IN
        SELECT l.* FROM gx.event l
        WHERE l.position > done AND l.position <= least(p_upto, done + p_max_events)
        ORDER BY l.position
    LOOP
        PERFORM gx.project_event(e);
    END LOOP;
    IF e.position IS NULL THEN
        RETURN done;
    END IF;
    UPDATE gx.projection p
    SET position = e.position, at_us = e.at_us, projected_at = clock_timestamp()
    WHERE p.id = 1;
    RETURN e.position;
END
$function$
