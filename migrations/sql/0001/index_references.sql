-- Index the names in the next events after the cursor, at most `p_most` events; returns how many were read.
-- Runs beside the appends and never in them. Of several replicas one does the work, the others return at once.
CREATE FUNCTION gx.index_references(p_most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = gx, pg_temp
AS $function$
DECLARE
    done bigint;
    last bigint;
BEGIN
    SELECT n.position INTO done FROM gx.event_reference_cursor n WHERE n.id = 1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    SELECT max(e.position) INTO last
    FROM (SELECT b.position FROM gx.event b WHERE b.position > done ORDER BY b.position LIMIT p_most) e;
    IF last IS NULL THEN
        RETURN 0;
    END IF;
    INSERT INTO gx.event_reference (kind, name, position)
    SELECT m.kind, m.name, e.position
    FROM gx.event e CROSS JOIN LATERAL gx.references_of(e.type, e.payload) m
    WHERE e.position > done AND e.position <= last
    ON CONFLICT DO NOTHING;
    UPDATE gx.event_reference_cursor n SET position = last WHERE n.id = 1;
    RETURN last - done;
END
$function$
