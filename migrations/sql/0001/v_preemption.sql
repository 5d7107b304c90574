-- Preemptions that the service planned, each with how it ended.
CREATE VIEW gx.v_preemption AS
SELECT p.position,
       to_timestamp(p.at_us / 1e6::double precision) AS at,
       split_part(p.gang, '/', 1) AS namespace,
       p.gang AS preemptor,
       p.gang_uid AS preemptor_uid,
       p.kind,
       p.priority,
       p.preemption,
       v.units,
       v.pods,
       p.evicted,
       CASE WHEN p.outcome IS NULL THEN 'pending' WHEN p.outcome = 'completed' THEN 'completed' ELSE 'cancelled' END
           AS outcome,
       CASE WHEN p.outcome <> 'completed' THEN p.outcome ELSE '' END AS reason,
       coalesce(to_timestamp(p.ended_at_us / 1e6::double precision), 'infinity'::timestamptz) AS until,
       (p.ended_at_us - p.at_us) / 1e6::double precision AS seconds
FROM gx.preemption p
CROSS JOIN LATERAL (
    SELECT count(DISTINCT v.unit)::integer AS units, count(*)::integer AS pods
    FROM gx.victim v
    WHERE v.position = p.position
) v
