-- End intervals of this root: of one kind (NULL: any) and of these pods (NULL: all). The interval of a victim
-- records its preemption as the end. Returns how many.
CREATE FUNCTION gx.project_end(e gx.event, p_kind text, p_pod_uids text[], p_reason text) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    ended bigint := 0;
    one text;
BEGIN
    -- two statements, so that each has an index: by pod, or by root
    IF p_pod_uids IS NOT NULL THEN
        -- pod by pod: for a list of them PostgreSQL before 17 prefers to read all open intervals of the root
        FOREACH one IN ARRAY p_pod_uids LOOP
            UPDATE gx.placement p
            SET to_position = e.position, to_at_us = e.at_us, end_type = e.type, end_reason = p_reason,
                (by_gang, by_position) = (SELECT c.gang, c.position FROM gx.preemptor_of(p.pod_uid) c)
            WHERE p.pod_uid = one AND p.gang_uid = e.gang_uid AND p.to_position IS NULL AND p.kind = p_kind;
            IF FOUND THEN
                ended := ended + 1;
            END IF;
        END LOOP;
    ELSE
        UPDATE gx.placement p
        SET to_position = e.position, to_at_us = e.at_us, end_type = e.type, end_reason = p_reason,
            (by_gang, by_position) = (SELECT c.gang, c.position FROM gx.preemptor_of(p.pod_uid) c)
        WHERE p.gang_uid = e.gang_uid AND p.to_position IS NULL;
        GET DIAGNOSTICS ended = ROW_COUNT;
    END IF;
    RETURN ended;
END
$function$
