-- Admissions before a waiting tree: every admission of a tree of lower priority, or of one of equal priority that was
-- created later, while another tree was unschedulable for lack of capacity.
CREATE VIEW gx.v_queue_bypass AS
SELECT split_part(s.gang, '/', 1) AS namespace,
       s.gang,
       s.gang_uid,
       s.priority,
       coalesce(s.reasons[1], '') AS reason,
       to_timestamp(s.from_at_us / 1e6::double precision) AS since,
       coalesce(to_timestamp(s.to_at_us / 1e6::double precision), 'infinity'::timestamptz) AS until,
       a.position,
       a.at,
       a.gang AS bypassed_by,
       a.gang_uid AS bypassed_by_uid,
       a.priority AS bypassed_by_priority,
       CASE WHEN a.priority < s.priority THEN 'lower priority' ELSE 'later' END AS bypass_kind,
       a.pods
FROM gx.gang_state s
CROSS JOIN LATERAL (
    SELECT o.position FROM gx.event o WHERE o.gang_uid = s.gang_uid AND o.stream_version = 1 OFFSET 0
) first
JOIN (
    -- grouped by its key: its payload is read once and not once per pair, and conditions on its time still reach the index
    SELECT e.position,
           to_timestamp(e.at_us / 1e6::double precision) AS at,
           e.gang,
           e.gang_uid,
           (e.payload ->> 'priority')::bigint AS priority,
           json_array_length(e.payload -> 'assignments') AS pods,
           (SELECT o.position FROM gx.event o WHERE o.gang_uid = e.gang_uid AND o.stream_version = 1) AS first
    FROM gx.event e
    WHERE e.type IN ('GangAdmitted', 'GangExtended')
    GROUP BY e.position
) a ON a.position > s.from_position
   AND a.position < coalesce(s.to_position, 9223372036854775807)
   AND a.priority <= s.priority
   AND a.gang_uid <> s.gang_uid
WHERE s.state = 'unschedulable'
  AND (a.priority < s.priority OR a.first > first.position)
