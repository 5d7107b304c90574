-- What one fact names beside its root: nodes wherever they stand, the UIDs of who has to go (units, their pods,
-- and the roots whose reservations give way), and the id of a plan that was decided.
--
-- jsonb cannot hold a NUL character, json can: it is left out, for no name has one. An escaped backslash in front
-- of "u0000" is not one. No settings of its own, so that the server can make it part of the query that asks.
CREATE FUNCTION gx.references_of(p_type text, p_payload json, OUT kind text, OUT name text) RETURNS SETOF record
LANGUAGE sql IMMUTABLE
AS $function$
    WITH fact AS MATERIALIZED (
        SELECT CASE
            WHEN strpos(p_payload::text, '\u0000') = 0 THEN p_payload::jsonb
            ELSE regexp_replace(p_payload::text, '(?<!\\)((?:\\\\)*)\\u0000', '\1', 'g')::jsonb
        END AS data
    ), found AS (
        SELECT 'node' AS kind, node #>> '{}' AS name
        FROM fact, jsonb_path_query(data, 'strict $.**.node') AS node
        UNION
        SELECT 'victim', uid #>> '{}'
        FROM fact, jsonb_path_query(data, '$.victims[*].uid') AS uid
        WHERE p_type = 'PreemptionPlanned'
        UNION
        SELECT 'victim', uid #>> '{}'
        FROM fact, jsonb_path_query(data, '$.victims[*].pods[*].uid') AS uid
        WHERE p_type = 'PreemptionPlanned'
        UNION
        SELECT 'victim', uid #>> '{}'
        FROM fact, jsonb_path_query(data, '$.superseded[*].gang_uid') AS uid
        WHERE p_type = 'PreemptionPlanned'
        UNION
        SELECT 'victim', data ->> 'uid' FROM fact WHERE p_type = 'VictimGone'
        UNION
        SELECT 'plan', data ->> 'plan' FROM fact WHERE p_type IN ('GangAdmitted', 'GangExtended')
        UNION
        SELECT 'plan', data ->> 'preemption' FROM fact WHERE p_type = 'PreemptionPlanned'
    )
    -- longer ones are no names of Kubernetes, and an index entry has its limit
    SELECT found.kind, found.name FROM found WHERE found.name <> '' AND octet_length(found.name) <= 1024
$function$
