-- The room of a lost member is kept for its replacement, if the fact has it so; a node that was lost keeps none.
CREATE FUNCTION gx.project_kept(e gx.event, d json) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    IF coalesce((d ->> 'room_until_us')::bigint, 0) = 0 OR d ->> 'cause' = 'node-lost' THEN
        RETURN;
    END IF;
    INSERT INTO gx.placement (pod_uid, pod, root_uid, root, leaf, node, kind, plan, priority, extra, resources,
                              from_position, from_at_us)
    SELECT p.pod_uid, p.pod, p.root_uid, p.root, p.leaf, p.node, 'kept', p.plan,
           (SELECT s.priority FROM gx.root_state s WHERE s.root_uid = e.root_uid AND s.to_position IS NULL),
           p.extra, p.resources, e.position, e.at_us
    FROM gx.placement p
    WHERE p.pod_uid = d ->> 'uid' AND p.root_uid = e.root_uid AND p.kind = 'bound' AND p.to_position = e.position;
END
$function$
