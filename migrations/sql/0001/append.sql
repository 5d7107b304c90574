-- Write facts at the end of the log: all or none, in one round trip.
--
-- The order of the three steps is the safety of the log. FOR SHARE on the lease row makes a take-over
-- wait for this transaction and lets appends of one leader pass. plpgsql takes a new snapshot per
-- statement, so the look at the head is current even after waiting for the lock. XE001: fenced.
-- XE002: the head is elsewhere. XE004: recorded time falls.
CREATE FUNCTION gx.append(
    p_epoch bigint,
    p_lease uuid,
    p_first bigint,
    p_previous_hash bytea,
    p_event_id uuid[],
    p_at_us bigint[],
    p_type text[],
    p_ver smallint[],
    p_root_uid text[],
    p_version integer[],
    p_root text[],
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
    head_position bigint;
    head_hash bytea;
    head_at_us bigint;
    last bigint := p_first + cardinality(p_event_id) - 1;
BEGIN
    PERFORM 1 FROM gx.leader l WHERE l.id = 1 AND l.epoch = p_epoch AND l.lease = p_lease FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'epoch % does not own the log any more', p_epoch USING ERRCODE = 'XE001';
    END IF;

    SELECT e.position, e.hash, e.at_us INTO head_position, head_hash, head_at_us
    FROM gx.event e ORDER BY e.position DESC LIMIT 1;
    IF NOT FOUND THEN
        head_position := 0;
        head_hash := decode(repeat('00', 32), 'hex');
        head_at_us := 0;
    END IF;
    IF head_position <> p_first - 1 OR head_hash <> p_previous_hash THEN
        RAISE EXCEPTION 'the log ends at position %, these events begin at %', head_position, p_first
            USING ERRCODE = 'XE002';
    END IF;
    IF p_at_us[1] < head_at_us OR last > p_first AND EXISTS (
        SELECT FROM (
            SELECT u.at_us, lag(u.at_us) OVER (ORDER BY u.n) AS before
            FROM unnest(p_at_us) WITH ORDINALITY AS u (at_us, n)
        ) pair
        WHERE pair.at_us < pair.before
    ) THEN
        RAISE EXCEPTION 'recorded time falls at or after position %', p_first USING ERRCODE = 'XE004';
    END IF;

    INSERT INTO gx.event (position, event_id, epoch, at_us, type, ver, root_uid, version, root, actor,
                          cause, cause_position, payload, hash)
    SELECT p_first + u.n - 1, u.event_id, p_epoch, u.at_us, u.type, u.ver, u.root_uid, u.version, u.root,
           u.actor, u.cause, u.cause_position, u.payload::json, u.hash
    FROM unnest(p_event_id, p_at_us, p_type, p_ver, p_root_uid, p_version, p_root, p_actor, p_cause,
                p_cause_position, p_payload, p_hash)
         WITH ORDINALITY AS u (event_id, at_us, type, ver, root_uid, version, root, actor, cause,
                               cause_position, payload, hash, n);

    PERFORM pg_notify('gx_event', last::text);
    RETURN last;
END
$function$
