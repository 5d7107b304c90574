-- The reason of a gang while its victims terminate; the same text as `preemption_summary` of extender/core/log/reservation_state.py.
CREATE FUNCTION gx.preempting_message(d json) RETURNS text
LANGUAGE sql IMMUTABLE
AS $function$
    SELECT 'waits for its preemption to finish: ' || CASE WHEN n.units > 0 AND n.places = 0 THEN format(
        'evicts its own %s pod%s, to be placed anew', n.pods, CASE n.pods WHEN 1 THEN '' ELSE 's' END
    ) ELSE coalesce(
        'uses the capacity of ' || nullif(
            concat_ws(
                ', ',
                CASE WHEN n.units > 0 THEN format(
                    '%s pod%s of %s disruption unit%s of lower priority',
                    n.pods, CASE n.pods WHEN 1 THEN '' ELSE 's' END,
                    n.units, CASE n.units WHEN 1 THEN '' ELSE 's' END
                ) END,
                CASE WHEN n.awaits > 0 THEN format(
                    '%s pod%s on the way out', n.awaits, CASE n.awaits WHEN 1 THEN '' ELSE 's' END
                ) END,
                CASE WHEN n.trees > 0 THEN format(
                    'reservations of %s tree%s of lower priority', n.trees, CASE n.trees WHEN 1 THEN '' ELSE 's' END
                ) END
            ),
            ''
        ),
        'the capacity is free'
    ) END
    FROM (
        SELECT json_array_length(d -> 'victims') AS units,
               coalesce((SELECT sum(json_array_length(u -> 'pods')) FROM json_array_elements(d -> 'victims') u), 0) AS pods,
               coalesce(json_array_length(d -> 'assignments'), 0) AS places,
               coalesce(json_array_length(d -> 'already_terminating'), 0) AS awaits,
               coalesce(json_array_length(d -> 'superseded'), 0) AS trees
    ) n
$function$
