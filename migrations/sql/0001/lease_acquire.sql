-- Take the lease: when it is free, when it has run out by this server's clock, or when the same holder
-- calls again. XE003: another holder has it. An append in flight makes this wait (row lock), at most
-- lock_timeout; the head is read by a later statement and so includes what that append wrote.
-- The new epoch is above `p_above` as well: a restored copy of this table would grant epochs again that
-- writers still use. The epoch and holder before are returned, so that a caller can see that it is a copy.
CREATE FUNCTION gx.lease_acquire(
    p_holder text,
    p_address text,
    p_ttl_ms integer,
    p_above bigint,
    OUT granted_epoch bigint,
    OUT granted_lease uuid,
    OUT granted_timeline text,
    OUT previous_epoch bigint,
    OUT previous_holder text,
    OUT head_position bigint,
    OUT head_hash bytea,
    OUT head_at_us bigint
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
SET lock_timeout = '500ms'
AS $function$
DECLARE
    old gx.lease%ROWTYPE;
BEGIN
    -- First without the lock: candidates that call repeatedly must not delay the appends of the leader.
    FOR look IN 1..2 LOOP
        IF look = 1 THEN
            SELECT l.* INTO STRICT old FROM gx.lease l WHERE l.id = 1;
        ELSE
            SELECT l.* INTO STRICT old FROM gx.lease l WHERE l.id = 1 FOR NO KEY UPDATE;
        END IF;
        IF old.holder <> p_holder
           AND clock_timestamp() < old.renewed_at + old.ttl_ms * interval '1 millisecond' THEN
            RAISE EXCEPTION 'the lease is held by % at %', old.holder, old.address USING ERRCODE = 'XE003';
        END IF;
    END LOOP;

    UPDATE gx.lease l
    SET epoch = greatest(old.epoch, p_above) + 1,
        lease_id = gen_random_uuid(),
        holder = p_holder,
        address = p_address,
        renewed_at = clock_timestamp(),
        ttl_ms = p_ttl_ms,
        backend = pg_backend_pid(),
        timeline = substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
    WHERE l.id = 1
    RETURNING l.epoch, l.lease_id, l.timeline INTO granted_epoch, granted_lease, granted_timeline;
    previous_epoch := old.epoch;
    previous_holder := old.holder;

    SELECT e.position, e.hash, e.at_us INTO head_position, head_hash, head_at_us
    FROM gx.event e ORDER BY e.position DESC LIMIT 1;
END
$function$
