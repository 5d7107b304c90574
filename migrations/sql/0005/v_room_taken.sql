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
JOIN gx.event a
  ON a.type IN ('GangAdmitted', 'GangExtended') AND a.position > m.known AND a.position <= m.next_known
CROSS JOIN LATERAL (
    SELECT sum((a.payload -> 'shapes' -> coalesce((x.assignment ->> 'shape')::integer, 0) ->> m.resource)::bigint)::bigint AS taken,
           count(*)::integer AS pods
    FROM json_array_elements(a.payload -> 'assignments') AS x (assignment)
    WHERE CASE m.level
              WHEN 'node' THEN x.assignment ->> 'node'
              ELSE a.payload -> 'topology' -> (x.assignment ->> 'node') ->> m.level
          END = m.domain
) t
WHERE t.taken > 0
