-- Name the lost member of a leaf whose room has been kept longest, on a node (NULL: on any); empty where none is.
CREATE FUNCTION gx.kept_longest(e gx.event, p_leaf text, p_node text) RETURNS text[]
LANGUAGE sql STABLE
AS $function$
    SELECT ARRAY(
        SELECT p.pod_uid FROM gx.placement p
        WHERE p.root_uid = e.root_uid AND p.to_position IS NULL AND p.kind = 'kept' AND p.leaf = p_leaf
          AND (p_node IS NULL OR p.node = p_node)
        ORDER BY p.from_at_us, p.pod COLLATE "C", p.pod_uid COLLATE "C" LIMIT 1
    )
$function$
