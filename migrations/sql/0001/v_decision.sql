-- What was decided about trees: one row per admission, extension, refusal and broken rule.
CREATE VIEW gx.v_decision AS
SELECT e.position,
       to_timestamp(e.at_us / 1e6::double precision) AS at,
       split_part(e.gang, '/', 1) AS namespace,
       e.gang,
       e.gang_uid,
       CASE e.type
           WHEN 'GangAdmitted' THEN 'admitted'
           WHEN 'GangExtended' THEN 'extended'
           WHEN 'GangUnschedulable' THEN 'unschedulable'
           ELSE 'invalid'
       END AS decision,
       CASE e.type
           WHEN 'GangUnschedulable' THEN d.fact ->> 'outcome'
           WHEN 'GangInvalid' THEN 'invalid'
           ELSE 'placed'
       END AS outcome,
       coalesce(d.fact #>> '{reasons,0}', d.fact #>> '{problems,0}', '') AS reason,
       (d.fact ->> 'priority')::integer AS priority,
       coalesce(json_array_length(d.fact -> 'assignments'), 0) AS pods,
       coalesce(json_array_length(d.fact -> 'unplaced'), 0) AS unplaced,
       e.cause,
       e.actor
FROM gx.event e
CROSS JOIN LATERAL (
    -- no text of PostgreSQL can hold NUL, JSON can; OFFSET 0: looked for once per row
    SELECT CASE
        WHEN strpos(e.payload::text, '\u0000') = 0 THEN e.payload
        ELSE replace(e.payload::text, '\u0000', '\ufffd')::json
    END AS fact
    OFFSET 0
) d
WHERE e.type IN ('GangAdmitted', 'GangExtended', 'GangUnschedulable', 'GangInvalid')
