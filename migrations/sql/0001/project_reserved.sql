-- Begin the reservations of an admission or extension; a pod with an earlier reservation of this root has the new one only.
CREATE FUNCTION gx.project_reserved(e gx.event, d json) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    -- read from the event once: each access parses all of it, and one access per assignment would cost the square of its size
    plan text := d ->> 'plan';
    priority bigint := (d ->> 'priority')::bigint;
    shapes jsonb := (d -> 'shapes')::jsonb;
BEGIN
    PERFORM gx.project_end(
        e, 'reserved', ARRAY(SELECT a ->> 'uid' FROM json_array_elements(d -> 'assignments') a), 'replaced'
    );
    INSERT INTO gx.placement (pod_uid, pod, gang_uid, gang, pod_group, node, kind, plan, priority, extra, resources,
                              from_position, from_at_us)
    SELECT DISTINCT ON (a ->> 'uid')
           a ->> 'uid', a ->> 'pod', e.gang_uid, e.gang, a ->> 'group', a ->> 'node', 'reserved', plan,
           priority, coalesce((a ->> 'extra')::boolean, false),
           shapes -> coalesce((a ->> 'shape')::integer, 0), e.position, e.at_us
    FROM json_array_elements(d -> 'assignments') WITH ORDINALITY AS u (a, n)
    ORDER BY a ->> 'uid', n DESC;
END
$function$
