-- Follow the preemption of a root (core/log/reservation_state.py). Returns whether one was pending before this event. A root has at
-- most one that is pending: until it ended and the victims whose eviction had begun are gone.
CREATE FUNCTION gx.project_preemption(e gx.event, d json) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    c gx.preemption;
    found_before boolean;
BEGIN
    SELECT q.* INTO c FROM gx.preemption q WHERE q.gang_uid = e.gang_uid AND q.pending;
    found_before := FOUND;

    IF e.type = 'PreemptionPlanned' THEN
        UPDATE gx.preemption q
        SET pending = false, ended_position = coalesce(q.ended_position, e.position),
            ended_at_us = coalesce(q.ended_at_us, e.at_us), outcome = coalesce(q.outcome, 'replaced')
        WHERE q.gang_uid = e.gang_uid AND q.pending;
        INSERT INTO gx.preemption (position, at_us, preemption, gang_uid, gang, kind, priority, started_units, evicted, pending)
        VALUES (e.position, e.at_us, d ->> 'preemption', e.gang_uid, e.gang, d ->> 'kind',
                (d ->> 'priority')::bigint, '{}', 0, true);
        INSERT INTO gx.victim (position, pod_uid, pod, node, unit, unit_priority, status)
        SELECT DISTINCT ON (p ->> 'uid')
               e.position, p ->> 'uid', p ->> 'pod', p ->> 'node', (u ->> 'kind') || '/' || (u ->> 'path'),
               (u ->> 'priority')::bigint, 'terminating'
        FROM json_array_elements(d -> 'victims') WITH ORDINALITY AS un (u, n),
             json_array_elements(u -> 'pods') WITH ORDINALITY AS pn (p, m)
        ORDER BY p ->> 'uid', n DESC, m DESC;
        -- the reservations of trees that it superseded were released before it, in the same append
        UPDATE gx.placement p
        SET by_gang = e.gang, by_position = e.position
        FROM json_array_elements(coalesce(d -> 'superseded', '[]')) s, json_array_elements(s -> 'pods') gave
        WHERE p.pod_uid = gave ->> 'uid' AND p.gang_uid = s ->> 'gang_uid' AND p.plan = s ->> 'plan'
          AND p.end_reason = 'superseded' AND p.by_position IS NULL;
        RETURN found_before;
    END IF;
    IF NOT found_before THEN
        RETURN false;
    END IF;

    IF e.type = 'VictimGone' THEN
        UPDATE gx.victim v SET status = 'gone', via = d ->> 'via', gone_position = e.position, gone_at_us = e.at_us
        WHERE v.position = c.position AND v.pod_uid = d ->> 'uid' AND v.status = 'terminating';
        IF NOT FOUND THEN
            RETURN true;
        END IF;
        c.evicted := c.evicted + 1;
        IF d ->> 'via' IN ('deleted', 'evicted', 'unobserved') AND NOT d ->> 'unit' = ANY (c.started_units) THEN
            c.started_units := c.started_units || (d ->> 'unit');
        END IF;
    ELSIF e.type = 'PreemptionCompleted' THEN
        c.outcome := coalesce(c.outcome, 'completed');
    ELSE  -- cancelled, or the gang was removed: units whose eviction has not begun are spared, also of a completed preemption
        c.started_units := ARRAY(
            SELECT b FROM unnest(c.started_units) b
            UNION
            SELECT f FROM json_array_elements_text(coalesce(d -> 'units_in_progress', '[]')) f
        );
        UPDATE gx.victim v SET status = 'spared'
        WHERE v.position = c.position AND v.status = 'terminating' AND NOT v.unit = ANY (c.started_units);
        c.outcome := coalesce(c.outcome, CASE e.type WHEN 'PreemptionCancelled' THEN d ->> 'reason' ELSE 'preemptor-deleted' END);
    END IF;

    IF c.outcome IS NOT NULL THEN
        c.ended_position := coalesce(c.ended_position, e.position);
        c.ended_at_us := coalesce(c.ended_at_us, e.at_us);
        c.pending := EXISTS (SELECT FROM gx.victim v WHERE v.position = c.position AND v.status = 'terminating');
    END IF;
    UPDATE gx.preemption q
    SET started_units = c.started_units, evicted = c.evicted, outcome = c.outcome, pending = c.pending,
        ended_position = c.ended_position, ended_at_us = c.ended_at_us
    WHERE q.position = c.position;
    RETURN true;
END
$function$
