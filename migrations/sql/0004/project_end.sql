-- End intervals of this root: of one kind (NULL: any) and of these pods (NULL: all). A pod that is a victim of a
-- preemption ends by that. Says how many.
CREATE FUNCTION gx.project_end(e gx.event, p_kind text, p_pod_uids text[], p_why text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    ended bigint;
BEGIN
    -- two statements, so that each has an index: by pod, or by root
    IF p_pod_uids IS NOT NULL THEN
        UPDATE gx.placement p
        SET to_position = e.position, to_at_us = e.at_us, end_type = e.type, end_why = p_why,
            (by_root, by_position) = (SELECT c.root, c.position FROM gx.who_evicts(p.pod_uid) c)
        WHERE p.pod_uid = ANY (p_pod_uids) AND p.root_uid = e.root_uid AND p.to_position IS NULL AND p.kind = p_kind;
    ELSE
        UPDATE gx.placement p
        SET to_position = e.position, to_at_us = e.at_us, end_type = e.type, end_why = p_why,
            (by_root, by_position) = (SELECT c.root, c.position FROM gx.who_evicts(p.pod_uid) c)
        WHERE p.root_uid = e.root_uid AND p.to_position IS NULL;
    END IF;
    GET DIAGNOSTICS ended = ROW_COUNT;
    RETURN ended;
END
$function$
