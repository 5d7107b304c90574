-- Capacity that was reserved for a pod and not used yet: one row per reservation and resource.
CREATE VIEW gx.v_reserved AS
SELECT p.from_position AS position,
       split_part(p.gang, '/', 1) AS namespace,
       p.gang,
       p.gang_uid,
       p.pod,
       p.pod_uid,
       p.node,
       to_timestamp(p.from_at_us / 1e6::double precision) AS since,
       coalesce(to_timestamp(p.to_at_us / 1e6::double precision), 'infinity'::timestamptz) AS until,
       coalesce(p.end_reason, '') AS end_reason,
       r.key AS resource,
       CASE r.key WHEN 'cpu' THEN r.value::double precision / 1000 ELSE r.value::double precision END AS amount,
       coalesce(p.to_at_us / 1e6::double precision, extract(epoch FROM now())::double precision)
           - p.from_at_us / 1e6::double precision AS seconds
FROM gx.placement p
CROSS JOIN LATERAL jsonb_each_text(p.resources) AS r (key, value)
WHERE p.kind = 'reserved'
