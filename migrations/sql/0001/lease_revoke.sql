-- End the sessions that hold the row lock of a lease which `p_holder` may take: a stopped or blocked
-- leader in the middle of an append. Its open transaction is rolled back. Sessions that wait for the row
-- themselves are left alone. Returns how many were terminated.
CREATE FUNCTION gx.lease_revoke(p_holder text) RETURNS integer
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
AS $function$
    SELECT count(*) FILTER (WHERE pg_terminate_backend(k.pid))::integer
    FROM gx.lease l,
         LATERAL (
             SELECT DISTINCT k.pid
             FROM pg_locks k
             WHERE k.locktype = 'relation'
               AND k.relation = 'gx.lease'::regclass
               AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
               AND k.mode IN ('RowShareLock', 'RowExclusiveLock')
               AND k.granted
               AND k.pid <> pg_backend_pid()
               AND NOT EXISTS (SELECT FROM pg_locks w WHERE w.pid = k.pid AND NOT w.granted)
         ) k
    WHERE l.id = 1
      AND (l.renewed_at IS NULL
           OR l.holder = p_holder
           OR clock_timestamp() >= l.renewed_at + l.ttl_ms * interval '1 millisecond')
$function$
