-- Members with a new reservation end the replacement holds of their leaf: on the same node first, then the oldest hold.
CREATE FUNCTION gx.project_hold_used(e gx.event, p_pod_groups text[], p_nodes text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    elsewhere text[] := '{}';
    i integer;
    ended bigint;
BEGIN
    IF NOT EXISTS (
        SELECT FROM gx.placement p
        WHERE p.gang_uid = e.gang_uid AND p.to_position IS NULL AND p.kind = 'replacement'
    ) THEN
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(p_pod_groups) LOOP
        ended := gx.project_end(e, 'replacement', gx.oldest_replacement_hold(e, p_pod_groups[i], p_nodes[i]), 'replaced');
        IF ended = 0 THEN
            elsewhere := elsewhere || p_pod_groups[i];
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(elsewhere) LOOP
        PERFORM gx.project_end(e, 'replacement', gx.oldest_replacement_hold(e, elsewhere[i], NULL), 'replaced');
    END LOOP;
END
$function$
