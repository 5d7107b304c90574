-- Members that got room take the place of lost ones of their leaf: on the same node first, then where the oldest was.
CREATE FUNCTION gx.project_filled(e gx.event, p_leaves text[], p_nodes text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    elsewhere text[] := '{}';
    i integer;
    ended bigint;
BEGIN
    IF NOT EXISTS (
        SELECT FROM gx.placement p
        WHERE p.root_uid = e.root_uid AND p.to_position IS NULL AND p.kind = 'kept'
    ) THEN
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(p_leaves) LOOP
        ended := gx.project_end(e, 'kept', gx.kept_longest(e, p_leaves[i], p_nodes[i]), 'replaced');
        IF ended = 0 THEN
            elsewhere := elsewhere || p_leaves[i];
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(elsewhere) LOOP
        PERFORM gx.project_end(e, 'kept', gx.kept_longest(e, elsewhere[i], NULL), 'replaced');
    END LOOP;
END
$function$
