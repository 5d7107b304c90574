-- Which admissions took of the largest free room between one measurement and the next.
CREATE VIEW gx.v_room_taken AS
SELECT m.at,
       m.resource,
       m.level,
       m.domain,
       m.free,
       a.position,
       to_timestamp(a.at_us / 1e6::double precision) AS taken_at,
       split_part(a.root, '/', 1) AS namespace,
       a.root AS gang,
       a.root_uid AS gang_uid,
       t.taken,
       t.pods
FROM gx.v_room m
CROSS JOIN LATERAL (
    -- OFFSET 0: found by type and position, after the measurement that it is asked for
    SELECT e.position, e.at_us, e.root, e.root_uid, e.payload
    FROM gx.event e
    WHERE e.type IN ('GangAdmitted', 'GangExtended') AND e.position > m.known AND e.position <= m.next_known
    OFFSET 0
) a
CROSS JOIN LATERAL (
    SELECT sum((a.payload -> 'shapes' -> coalesce((x.assignment ->> 'shape')::integer, 0) ->> m.resource)::bigint)::bigint
               AS taken,
           count(*)::integer AS pods
    FROM json_array_elements(a.payload -> 'assignments') AS x (assignment)
    WHERE CASE m.level
              WHEN 'node' THEN x.assignment ->> 'node'
              ELSE a.payload -> 'topology' -> (x.assignment ->> 'node') ->> m.level
          END = m.domain
) t
-- an admission whose text does not have the name cannot be there; looking for it is cheaper than reading JSON
WHERE CASE WHEN m.domain ~ '^[A-Za-z0-9._-]+$' THEN strpos(a.payload::text, m.domain) > 0 ELSE true END
  AND t.taken > 0
