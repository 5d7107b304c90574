-- Record the state of a root from this fact on; nothing happens when it stood so before.
CREATE FUNCTION gx.project_root(e gx.event, r gx.root_state) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    r.state := CASE
        WHEN r.outcome = 'preempting' AND r.phase NOT IN ('admitted', 'satisfied') THEN 'preempting'
        ELSE r.phase
    END;
    PERFORM FROM gx.root_state s
    WHERE s.root_uid = e.root_uid AND s.to_position IS NULL
      AND (s.root, s.kind, s.priority, s.state, s.phase, s.outcome, s.reasons, s.answer_position)
          IS NOT DISTINCT FROM (r.root, r.kind, r.priority, r.state, r.phase, r.outcome, r.reasons, r.answer_position);
    IF FOUND THEN
        RETURN;
    END IF;
    UPDATE gx.root_state s SET to_position = e.position, to_at_us = e.at_us
    WHERE s.root_uid = e.root_uid AND s.to_position IS NULL;
    INSERT INTO gx.root_state (root_uid, root, kind, priority, state, phase, outcome, reasons, answer_position,
                               from_position, from_at_us)
    VALUES (e.root_uid, r.root, r.kind, r.priority, r.state, r.phase, r.outcome, r.reasons, r.answer_position,
            e.position, e.at_us);
END
$function$
