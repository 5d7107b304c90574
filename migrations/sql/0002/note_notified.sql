-- Record up to where the receiver of notifications has been notified. It never goes back: of two leaders in succession the
-- later one may be further.
CREATE FUNCTION gx.note_notified(p_position bigint, p_waited_us bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
AS $function$
BEGIN
    INSERT INTO gx.notification_cursor AS n (id, position, waited_us) VALUES (1, p_position, p_waited_us)
    ON CONFLICT (id) DO UPDATE
    SET position = greatest(n.position, p_position), waited_us = greatest(n.waited_us, p_waited_us);
END
$function$
