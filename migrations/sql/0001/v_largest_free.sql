-- The largest free capacity of one domain, over time: one row per measurement, resource and level.
CREATE VIEW gx.v_largest_free AS
SELECT e.position,
       to_timestamp(e.at_us / 1e6::double precision) AS at,
       r.measured ->> 'resource' AS resource,
       coalesce(nullif(r.measured ->> 'key', ''), 'node') AS level,
       r.measured ->> 'domain' AS domain,
       (r.measured ->> 'free')::bigint AS free,
       (r.measured ->> 'nodes')::integer AS nodes,
       (r.measured ->> 'total')::bigint AS total,
       (e.payload ->> 'as_of')::bigint AS as_of,
       coalesce(n.as_of, 9223372036854775807) AS next_as_of,
       coalesce(to_timestamp(n.at_us / 1e6::double precision), 'infinity'::timestamptz) AS until
FROM gx.event e
CROSS JOIN LATERAL json_array_elements(e.payload -> 'largest_free') AS r (measured)
LEFT JOIN LATERAL (
    SELECT w.at_us, (w.payload ->> 'as_of')::bigint AS as_of
    FROM gx.event w
    WHERE w.type = 'CapacityMeasured' AND w.position > e.position
    ORDER BY w.position
    LIMIT 1
) n ON true
WHERE e.type = 'CapacityMeasured'
