-- The newest preemption that a pod is a victim of, unless it was spared: name of the preemptor, position of the plan.
CREATE FUNCTION gx.who_evicts(p_pod_uid text, OUT root text, OUT "position" bigint) RETURNS SETOF record
LANGUAGE sql STABLE
AS $function$
    SELECT c.root, c.position
    FROM gx.victim v JOIN gx.preemption c ON c.position = v.position
    WHERE v.pod_uid = p_pod_uid AND v.fate <> 'spared'
    ORDER BY v.position DESC
    LIMIT 1
$function$
