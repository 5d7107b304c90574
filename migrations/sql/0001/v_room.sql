-- The largest free room in one place, over time: one row per measurement, resource and level.
CREATE VIEW gx.v_room AS
SELECT e.position,
       to_timestamp(e.at_us / 1e6::double precision) AS at,
       r.room ->> 'resource' AS resource,
       coalesce(nullif(r.room ->> 'key', ''), 'node') AS level,
       r.room ->> 'domain' AS domain,
       (r.room ->> 'free')::bigint AS free,
       (r.room ->> 'nodes')::integer AS nodes,
       (r.room ->> 'total')::bigint AS total,
       (e.payload ->> 'known')::bigint AS known,
       coalesce(n.known, 9223372036854775807) AS next_known,
       coalesce(to_timestamp(n.at_us / 1e6::double precision), 'infinity'::timestamptz) AS until
FROM gx.event e
CROSS JOIN LATERAL json_array_elements(e.payload -> 'rooms') AS r (room)
LEFT JOIN LATERAL (
    SELECT w.at_us, (w.payload ->> 'known')::bigint AS known
    FROM gx.event w
    WHERE w.type = 'RoomMeasured' AND w.position > e.position
    ORDER BY w.position
    LIMIT 1
) n ON true
WHERE e.type = 'RoomMeasured'
