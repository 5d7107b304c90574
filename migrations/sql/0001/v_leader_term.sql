-- Leaders of the log: the first event of every epoch that has events.
CREATE VIEW gx.v_leader_term AS
SELECT e.epoch,
       timestamptz 'epoch' + e.at_us * interval '1 microsecond' AS since,
       e.position AS first_position,
       e.payload ->> 'holder' AS holder,
       e.payload ->> 'address' AS address,
       e.payload ->> 'previous_holder' AS previous_holder
FROM gx.event e
WHERE e.type = 'LeaseAcquired'
