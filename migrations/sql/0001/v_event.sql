-- The log as an auditor reads it: one row per event, in the order of their positions.
CREATE VIEW gx.v_event AS
SELECT e.position,
       timestamptz 'epoch' + e.at_us * interval '1 microsecond' AS at,
       e.type,
       e.schema_version,
       e.gang,
       e.gang_uid,
       e.stream_version,
       e.epoch,
       e.actor,
       e.cause,
       e.cause_position,
       e.event_id,
       e.payload,
       encode(e.hash, 'hex') AS hash
FROM gx.event e
