-- Decisions about trees: one row per admission, extension, refusal and invalid tree.
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
           WHEN 'GangUnschedulable' THEN d.data ->> 'outcome'
           WHEN 'GangInvalid' THEN 'invalid'
           ELSE 'placed'
       END AS outcome,
       coalesce(d.data #>> '{reasons,0}', d.data #>> '{problems,0}', '') AS reason,
       (d.data ->> 'priority')::integer AS priority,
       coalesce(json_array_length(d.data -> 'assignments'), 0) AS pods,
       coalesce(json_array_length(d.data -> 'unplaced'), 0) AS unplaced,
       e.cause,
       e.actor
FROM gx.event e
CROSS JOIN LATERAL (
    -- no text of PostgreSQL can hold NUL, JSON can; OFFSET 0: searched once per row
    SELECT CASE
        WHEN strpos(e.payload::text, '\u0000') = 0 THEN e.payload
        ELSE replace(e.payload::text, '\u0000', '\ufffd')::json
    END AS data
    OFFSET 0
) d
WHERE e.type IN ('GangAdmitted', 'GangExtended', 'GangUnschedulable', 'GangInvalid')
