-- Release the lease. Its id is replaced, so that nothing can be appended under it afterwards.
-- Returns whether there was a lease to release.
CREATE FUNCTION gx.lease_release(p_epoch bigint, p_lease uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
AS $function$
BEGIN
    UPDATE gx.lease l
    SET renewed_at = NULL, lease_id = gen_random_uuid(), backend = NULL
    WHERE l.id = 1 AND l.epoch = p_epoch AND l.lease_id = p_lease;
    RETURN FOUND;
END
$function$
