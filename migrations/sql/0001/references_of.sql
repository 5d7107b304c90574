-- The names in one event besides its gang: all nodes, the UIDs of victims (units, their pods, and the gangs whose
-- reservations are superseded), and the id of a plan that was decided.
--
-- jsonb cannot hold a NUL character, json can: it is removed, because no name contains one. An escaped backslash in front
-- of "u0000" is not one. No settings of its own, so that the server can inline it into the calling query.
CREATE FUNCTION gx.references_of(p_type text, p_payload json, OUT kind text, OUT name text) RETURNS SETOF record
LANGUAGE sql IMMUTABLE
AS $function$
    WITH event AS MATERIALIZED (
        SELECT CASE
            WHEN strpos(p_payload::text, '\u0000') = 0 THEN p_payload::jsonb
            ELSE regexp_replace(p_payload::text, '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::jsonb
        END AS data
    ), found AS (
        SELECT 'node' AS kind, node #>> '{}' AS name
        FROM event, jsonb_path_query(data, 'strict $.**.node') AS node
        UNION
        SELECT 'victim', uid #>> '{}'
        FROM event, jsonb_path_query(data, '$.victims[*].uid') AS uid
        WHERE p_type = 'PreemptionPlanned'
        UNION
        SELECT 'victim', uid #>> '{}'
        FROM event, jsonb_path_query(data, '$.victims[*].pods[*].uid') AS uid
        WHERE p_type = 'PreemptionPlanned'
        UNION
        SELECT 'victim', uid #>> '{}'
        FROM event, jsonb_path_query(data, '$.superseded[*].gang_uid') AS uid
        WHERE p_type = 'PreemptionPlanned'
        UNION
        SELECT 'victim', data ->> 'uid' FROM event WHERE p_type = 'VictimGone'
        UNION
        SELECT 'plan', data ->> 'plan' FROM event WHERE p_type IN ('GangAdmitted', 'GangExtended')
        UNION
        SELECT 'plan', data ->> 'preemption' FROM event WHERE p_type = 'PreemptionPlanned'
    )
    -- longer strings are not names of Kubernetes objects, and the size of an index entry is limited
    SELECT found.kind, found.name FROM found WHERE found.name <> '' AND octet_length(found.name) <= 1024
$function$
