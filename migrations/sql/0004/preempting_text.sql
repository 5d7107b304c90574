-- The answer that stands while victims go; the words of core/log/reservation_state.py.
CREATE FUNCTION gx.preempting_text(d json) RETURNS text
LANGUAGE sql IMMUTABLE
AS $function$
    SELECT format(
        'waits for its preemption to finish: %s pod%s of %s disruption unit%s of lower priority make room',
        n.pods, CASE n.pods WHEN 1 THEN '' ELSE 's' END, n.units, CASE n.units WHEN 1 THEN '' ELSE 's' END
    )
    FROM (
        SELECT json_array_length(d -> 'victims') AS units,
               coalesce((SELECT sum(json_array_length(u -> 'pods')) FROM json_array_elements(d -> 'victims') u), 0)
               + coalesce(json_array_length(d -> 'awaits'), 0) AS pods
    ) n
$function$
