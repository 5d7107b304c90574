-- Raise an error unless the lease is still `p_lease`, the log ends right in front of `p_first`, with that hash and no
-- later time, and the time is not ahead of this server's clock. XE001: fenced. XE002: the head has another position or
-- hash. XE004: the recorded time would go back. XE006: the recorded time is more than 2 s ahead of the clock; a time that
-- is in the log already stays permitted, so that a clock that steps back does not end all appends.
--
-- FOR SHARE on the lease row makes a take-over wait for this transaction and lets appends of one leader
-- pass. plpgsql takes a new snapshot per statement, so the head that it reads is current even after waiting
-- for the lock.
CREATE FUNCTION gx.expect_head(
    p_epoch bigint,
    p_lease uuid,
    p_first bigint,
    p_previous_hash bytea,
    p_at_us bigint
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    head_position bigint;
    head_hash bytea;
    head_at_us bigint;
    newest_us bigint;  -- 2 s: the leader learns the time from an answer that was on its way
BEGIN
    PERFORM 1 FROM gx.lease l WHERE l.id = 1 AND l.epoch = p_epoch AND l.lease_id = p_lease FOR SHARE;
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
    IF p_at_us < head_at_us THEN
        RAISE EXCEPTION 'recorded time falls at or after position %', p_first USING ERRCODE = 'XE004';
    END IF;
    newest_us := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 2000000;
    IF p_at_us > head_at_us AND p_at_us > newest_us THEN
        RAISE EXCEPTION 'the recorded time of position % is more than 2 s ahead of the clock of the database, by % ms',
            p_first, (p_at_us - newest_us) / 1000 USING ERRCODE = 'XE006';
    END IF;
END
$function$
