-- The capacity of a lost member is held for its replacement, if the event has an end time for it; there is no hold on a lost node.
CREATE FUNCTION gx.project_replacement_hold(e gx.event, d json) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    IF coalesce((d ->> 'held_until_us')::bigint, 0) = 0 OR d ->> 'cause' = 'node-lost' THEN
        RETURN;
    END IF;
    INSERT INTO gx.placement (pod_uid, pod, gang_uid, gang, pod_group, node, kind, plan, priority, extra, resources,
                              from_position, from_at_us)
    SELECT p.pod_uid, p.pod, p.gang_uid, p.gang, p.pod_group, p.node, 'replacement', p.plan,
           (SELECT s.priority FROM gx.gang_state s WHERE s.gang_uid = e.gang_uid AND s.to_position IS NULL),
           p.extra, p.resources, e.position, e.at_us
    FROM gx.placement p
    WHERE p.pod_uid = d ->> 'uid' AND p.gang_uid = e.gang_uid AND p.kind = 'bound' AND p.to_position = e.position;
END
$function$
