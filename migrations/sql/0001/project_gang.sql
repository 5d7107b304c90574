-- Record the state of a root from this event on; nothing is written when the state is the same as before.
CREATE FUNCTION gx.project_gang(e gx.event, r gx.gang_state) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    r.state := CASE
        WHEN r.outcome = 'preempting' AND r.phase NOT IN ('admitted', 'scheduled') THEN 'preempting'
        ELSE r.phase
    END;
    PERFORM FROM gx.gang_state s
    WHERE s.gang_uid = e.gang_uid AND s.to_position IS NULL
      AND (s.gang, s.kind, s.priority, s.state, s.phase, s.outcome, s.reasons, s.last_decision_position)
          IS NOT DISTINCT FROM (r.gang, r.kind, r.priority, r.state, r.phase, r.outcome, r.reasons, r.last_decision_position);
    IF FOUND THEN
        RETURN;
    END IF;
    UPDATE gx.gang_state s SET to_position = e.position, to_at_us = e.at_us
    WHERE s.gang_uid = e.gang_uid AND s.to_position IS NULL;
    INSERT INTO gx.gang_state (gang_uid, gang, kind, priority, state, phase, outcome, reasons, last_decision_position,
                               from_position, from_at_us)
    VALUES (e.gang_uid, r.gang, r.kind, r.priority, r.state, r.phase, r.outcome, r.reasons, r.last_decision_position,
            e.position, e.at_us);
END
$function$
