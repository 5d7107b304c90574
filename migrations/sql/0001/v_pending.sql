-- Waiting times of trees and their reasons: one row per interval with the same reasons.
CREATE VIEW gx.v_pending AS
SELECT s.from_position AS position,
       split_part(s.gang, '/', 1) AS namespace,
       s.gang,
       s.gang_uid,
       s.kind,
       s.priority,
       s.state,
       coalesce(s.reasons[1], '') AS reason,
       s.reasons,
       to_timestamp(s.from_at_us / 1e6::double precision) AS since,
       coalesce(to_timestamp(s.to_at_us / 1e6::double precision), 'infinity'::timestamptz) AS until,
       coalesce(s.to_at_us / 1e6::double precision, extract(epoch FROM now())::double precision)
           - s.from_at_us / 1e6::double precision AS seconds
FROM gx.gang_state s
WHERE s.state IN ('observed', 'waiting', 'unschedulable', 'preempting', 'invalid')
  AND s.to_at_us IS DISTINCT FROM s.from_at_us
