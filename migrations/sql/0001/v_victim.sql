-- Victims of the preemptions of the service, one row per pod, with the outcome.
CREATE VIEW gx.v_victim AS
SELECT p.position,
       to_timestamp(p.at_us / 1e6::double precision) AS at,
       split_part(p.gang, '/', 1) AS namespace,
       p.gang AS preemptor,
       p.gang_uid AS preemptor_uid,
       p.priority,
       p.preemption,
       split_part(v.unit, '/', 1) AS victim_kind,
       substr(v.unit, strpos(v.unit, '/') + 1) AS victim,
       split_part(v.unit, '/', 2) AS victim_namespace,
       v.unit_priority AS victim_priority,
       v.pod,
       v.pod_uid,
       v.node,
       v.status,
       coalesce(v.via, '') AS via,
       v.gone_position,
       to_timestamp(v.gone_at_us / 1e6::double precision) AS gone_at
FROM gx.preemption p
JOIN gx.victim v ON v.position = p.position
