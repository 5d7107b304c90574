-- Append one event: like gx.append, without the cost of arrays, which is a quarter of such an append.
CREATE FUNCTION gx.append_one(
    p_epoch bigint,
    p_lease uuid,
    p_first bigint,
    p_previous_hash bytea,
    p_event_id uuid,
    p_at_us bigint,
    p_type text,
    p_schema_version smallint,
    p_gang_uid text,
    p_stream_version integer,
    p_gang text,
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
    INSERT INTO gx.event (position, event_id, epoch, at_us, type, schema_version, gang_uid, stream_version, gang, actor,
                          cause, cause_position, payload, hash)
    VALUES (p_first, p_event_id, p_epoch, p_at_us, p_type, p_schema_version, p_gang_uid, p_stream_version, p_gang, p_actor,
            p_cause, p_cause_position, p_payload, p_hash);
    PERFORM pg_notify('gx_event', p_first::text);
END
$function$
