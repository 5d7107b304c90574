-- The newest preemption that a pod is a victim of, unless it was spared: name of the preemptor, position of the plan.
CREATE FUNCTION gx.preemptor_of(p_pod_uid text, OUT gang text, OUT "position" bigint) RETURNS SETOF record
LANGUAGE sql STABLE
AS $function$
    SELECT c.gang, c.position
    FROM gx.victim v JOIN gx.preemption c ON c.position = v.position
    WHERE v.pod_uid = p_pod_uid AND v.status <> 'spared'
    ORDER BY v.position DESC
    LIMIT 1
$function$
