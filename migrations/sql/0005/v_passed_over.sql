-- Who was let in front of whom: every admission of a tree of lower priority, or of one of equal priority that came
-- later, while another tree stood refused for want of room.
CREATE VIEW gx.v_passed_over AS
SELECT split_part(s.root, '/', 1) AS namespace,
       s.root AS gang,
       s.root_uid AS gang_uid,
       s.priority,
       coalesce(s.reasons[1], '') AS reason,
       to_timestamp(s.from_at_us / 1e6::double precision) AS since,
       coalesce(to_timestamp(s.to_at_us / 1e6::double precision), 'infinity'::timestamptz) AS until,
       a.position,
       to_timestamp(a.at_us / 1e6::double precision) AS at,
       a.root AS passed_by,
       a.root_uid AS passed_by_uid,
       (a.payload ->> 'priority')::bigint AS passed_by_priority,
       CASE WHEN (a.payload ->> 'priority')::bigint < s.priority THEN 'lower priority' ELSE 'later' END AS how,
       json_array_length(a.payload -> 'assignments') AS pods
FROM gx.root_state s
JOIN gx.event a
  ON a.type IN ('GangAdmitted', 'GangExtended')
 AND a.position > s.from_position
 AND a.position < coalesce(s.to_position, 9223372036854775807)
 AND a.root_uid <> s.root_uid
WHERE s.state = 'refused'
  AND ((a.payload ->> 'priority')::bigint < s.priority
       OR (a.payload ->> 'priority')::bigint = s.priority
          AND (SELECT o.position FROM gx.event o WHERE o.root_uid = a.root_uid AND o.version = 1)
              > (SELECT o.position FROM gx.event o WHERE o.root_uid = s.root_uid AND o.version = 1))
