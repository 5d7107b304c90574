-- Bound members that terminated, with the preemptor where the log has one.
CREATE VIEW gx.v_member_terminated AS
SELECT e.position,
       to_timestamp(e.at_us / 1e6::double precision) AS at,
       split_part(e.gang, '/', 1) AS namespace,
       e.gang,
       e.gang_uid,
       e.payload ->> 'pod' AS pod,
       e.payload ->> 'uid' AS pod_uid,
       e.payload ->> 'node' AS node,
       e.payload ->> 'cause' AS cause,
       p.by_gang AS preemptor,
       p.by_position AS preemption_position,
       (p.to_at_us - p.from_at_us) / 1e6::double precision AS ran_seconds
FROM gx.event e
LEFT JOIN gx.placement p ON p.pod_uid = e.payload ->> 'uid' AND p.to_position = e.position
WHERE e.type = 'MemberTerminated'
