-- Name the lost member of a leaf whose replacement hold is the oldest, on a node (NULL: on any); empty where there is none.
CREATE FUNCTION gx.oldest_replacement_hold(e gx.event, p_pod_group text, p_node text) RETURNS text[]
LANGUAGE sql STABLE
AS $function$
    SELECT ARRAY(
        SELECT p.pod_uid FROM gx.placement p
        WHERE p.gang_uid = e.gang_uid AND p.to_position IS NULL AND p.kind = 'replacement' AND p.pod_group = p_pod_group
          AND (p_node IS NULL OR p.node = p_node)
        ORDER BY p.from_at_us, p.pod COLLATE "C", p.pod_uid COLLATE "C" LIMIT 1
    )
$function$
