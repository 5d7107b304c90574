-- Empty the tables of intervals, so that gx.project projects again from the beginning of the log.
CREATE FUNCTION gx.reset_projection() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
AS $function$
BEGIN
    PERFORM FROM gx.projection p WHERE p.id = 1 FOR UPDATE;
    TRUNCATE gx.placement, gx.gang_state, gx.preemption, gx.victim;
    UPDATE gx.projection p SET position = 0, at_us = 0, projected_at = clock_timestamp() WHERE p.id = 1;
END
$function$
