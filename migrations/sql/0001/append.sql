-- Append events at the end of the log: all or none, in one round trip. First the fence, then the head, then the
-- rows: see gx.expect_head, which also describes the errors.
CREATE FUNCTION gx.append(
    p_epoch bigint,
    p_lease uuid,
    p_first bigint,
    p_previous_hash bytea,
    p_event_id uuid[],
    p_at_us bigint[],
    p_type text[],
    p_schema_version smallint[],
    p_gang_uid text[],
    p_stream_version integer[],
    p_gang text[],
    p_actor text[],
    p_cause text[],
    p_cause_position bigint[],
    p_payload text[],
    p_hash bytea[]
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
AS $function$
DECLARE
    last bigint := p_first + cardinality(p_event_id) - 1;
BEGIN
    PERFORM gx.expect_head(p_epoch, p_lease, p_first, p_previous_hash, p_at_us[1]);
    IF last > p_first AND EXISTS (
        SELECT FROM (
            SELECT u.at_us, lag(u.at_us) OVER (ORDER BY u.n) AS before
            FROM unnest(p_at_us) WITH ORDINALITY AS u (at_us, n)
        ) pair
        WHERE pair.at_us < pair.before
    ) THEN
        RAISE EXCEPTION 'recorded time falls at or after position %', p_first USING ERRCODE = 'XE004';
    END IF;
    IF last > p_first AND p_at_us[cardinality(p_at_us)]
        > greatest(p_at_us[1], (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 2000000) THEN
        RAISE EXCEPTION 'the recorded time of position % is more than 2 s ahead of the clock of the database', last
            USING ERRCODE = 'XE006';
    END IF;

    INSERT INTO gx.event (position, event_id, epoch, at_us, type, schema_version, gang_uid, stream_version, gang, actor,
                          cause, cause_position, payload, hash)
    SELECT p_first + u.n - 1, u.event_id, p_epoch, u.at_us, u.type, u.schema_version, u.gang_uid, u.stream_version, u.gang,
           u.actor, u.cause, u.cause_position, u.payload::json, u.hash
    FROM unnest(p_event_id, p_at_us, p_type, p_schema_version, p_gang_uid, p_stream_version, p_gang, p_actor, p_cause,
                p_cause_position, p_payload, p_hash)
         WITH ORDINALITY AS u (event_id, at_us, type, schema_version, gang_uid, stream_version, gang, actor, cause,
                               cause_position, payload, hash, n);

    PERFORM pg_notify('gx_event', last::text);
    RETURN last;
END
$function$
