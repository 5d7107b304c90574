-- A member is bound: its reservation ends, and the bound member keeps the values of the reservation.
CREATE FUNCTION gx.project_bound(e gx.event, d json) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    held gx.placement;
    -- a variable, so that no plan uses the index of all reservations ever made, which looks small while it is empty
    reserved constant text := 'reserved';
BEGIN
    UPDATE gx.placement p
    SET to_position = e.position, to_at_us = e.at_us, end_type = e.type, end_reason = 'bound'
    WHERE p.pod_uid = d ->> 'uid' AND p.gang_uid = e.gang_uid AND p.to_position IS NULL AND p.kind = reserved
    RETURNING p.* INTO held;
    IF NOT FOUND THEN  -- back with its node, or bound without a reservation
        SELECT p.* INTO held FROM gx.placement p
        WHERE p.pod_uid = d ->> 'uid' AND p.gang_uid = e.gang_uid
        ORDER BY p.from_position DESC LIMIT 1;
    END IF;
    UPDATE gx.placement p
    SET to_position = e.position, to_at_us = e.at_us, end_type = e.type, end_reason = 'replaced'
    WHERE p.pod_uid = d ->> 'uid' AND p.gang_uid = e.gang_uid AND p.to_position IS NULL AND p.kind = 'bound';
    INSERT INTO gx.placement (pod_uid, pod, gang_uid, gang, pod_group, node, kind, plan, priority, extra, resources,
                              from_position, from_at_us)
    VALUES (d ->> 'uid', d ->> 'pod', e.gang_uid, e.gang, coalesce(d ->> 'group', ''), d ->> 'node', 'bound',
            d ->> 'plan', held.priority, held.extra, held.resources, e.position, e.at_us);
END
$function$
