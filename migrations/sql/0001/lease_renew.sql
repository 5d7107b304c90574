-- Prolong the lease. XE001: it was taken over or released.
CREATE FUNCTION gx.lease_renew(p_epoch bigint, p_lease uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
AS $function$
BEGIN
    UPDATE gx.lease l
    SET renewed_at = clock_timestamp(), backend = pg_backend_pid()
    WHERE l.id = 1 AND l.epoch = p_epoch AND l.lease_id = p_lease AND l.renewed_at IS NOT NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'epoch % does not own the log any more', p_epoch USING ERRCODE = 'XE001';
    END IF;
END
$function$
