-- Write one fact: what gx.append does, without the cost of arrays, which is a quarter of such an append.
CREATE FUNCTION gx.append_one(
    p_epoch bigint,
    p_lease uuid,
    p_first bigint,
    p_previous_hash bytea,
    p_event_id uuid,
    p_at_us bigint,
    p_type text,
    p_ver smallint,
    p_root_uid text,
    p_version integer,
    p_root text,
    p_actor text,
    p_cause text,
    p_cause_position bigint,
    p_payload json,
    p_hash bytea
) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
AS $function$
BEGIN
    PERFORM gx.expect_head(p_epoch, p_lease, p_first, p_previous_hash, p_at_us);
    INSERT INTO gx.event (position, event_id, epoch, at_us, type, ver, root_uid, version, root, actor,
                          cause, cause_position, payload, hash)
    VALUES (p_first, p_event_id, p_epoch, p_at_us, p_type, p_ver, p_root_uid, p_version, p_root, p_actor,
            p_cause, p_cause_position, p_payload, p_hash);
    PERFORM pg_notify('gx_event', p_first::text);
END
$function$
