-- Comments of the tables that operators read; `\d+` in psql shows them.
DO $do$
DECLARE
    comments constant jsonb := '{
        "placement": ["Reservations, bound members and replacement holds: one row per pod, node and interval of time, folded from the log up to the position in gx.projection. Unmanaged pods are not in the log.", {
            "pod_uid": "UID of the pod; names are reused",
            "pod": "namespace/name of the pod",
            "gang_uid": "UID of the root group of its tree",
            "gang": "namespace/name of the root group",
            "pod_group": "name of the PodGroup that the pod names, in the namespace of the root",
            "node": "name of the node",
            "kind": "reserved: capacity was reserved for the pod; bound: the pod was bound to the node; replacement: the pod was lost and its capacity was held for its replacement",
            "plan": "id of the admission that it belongs to; empty for a pod that was bound without a reservation",
            "priority": "of the admission; NULL for a pod that was bound without a reservation",
            "extra": "whether the pod was beyond the minimum of its group; NULL for a pod that was bound without a reservation",
            "resources": "requests of the pod: CPU in millicores, memory in bytes, the rest in units; NULL for a pod that was bound without a reservation",
            "from_position": "position of the event that began the interval",
            "from_at_us": "time of that event, microseconds since 1970",
            "to_position": "position of the event that ended the interval; NULL: it has not ended",
            "to_at_us": "time of that event, microseconds since 1970; NULL: it has not ended",
            "end_type": "type of that event; NULL: it has not ended",
            "end_reason": "bound, replaced, the reason of the release, or the cause of the termination",
            "by_gang": "namespace/name of the preemptor whose preemption ended it; NULL: no preemption did",
            "by_position": "position of the PreemptionPlanned whose preemption ended it; NULL: no preemption did"}],
        "gang_state": ["States of root groups: one row per interval of time, folded from the log up to the position in gx.projection.", {
            "gang_uid": "UID of the root group; names are reused",
            "gang": "namespace/name of the root group",
            "kind": "PodGroup or CompositePodGroup; empty if the log does not have it",
            "priority": "of the tree, as recorded at that time",
            "state": "observed, waiting, unschedulable, preempting, invalid, admitted, scheduled or removed; extender/README.md describes them",
            "phase": "the state without preempting: the state that the preemption does not change",
            "outcome": "outcome of the last recorded decision while the gang was pending: waiting, impossible, unknown, invalid or preempting; NULL: there is none",
            "reasons": "the reasons of that decision, the most important first",
            "last_decision_position": "position of the event of that decision",
            "from_position": "position of the event that began the interval",
            "from_at_us": "time of that event, microseconds since 1970",
            "to_position": "position of the event that ended the interval; NULL: it has not ended",
            "to_at_us": "time of that event, microseconds since 1970; NULL: it has not ended"}],
        "preemption": ["Preemptions, with their outcome.", {
            "position": "position of the PreemptionPlanned",
            "at_us": "time of that event, microseconds since 1970",
            "preemption": "id of the preemption",
            "gang_uid": "UID of the preemptor; the UID of the pod if the preemptor is an unmanaged pod",
            "gang": "namespace/name of the preemptor",
            "kind": "CompositePodGroup, PodGroup or Pod",
            "priority": "of the preemptor",
            "started_units": "disruption units, Kind/namespace/name, of which this service evicted a pod, or may have; they are evicted as a whole",
            "evicted": "number of victims that are gone",
            "pending": "whether it has not ended, or victims of started units are not gone yet",
            "outcome": "completed, or the reason why it was cancelled; NULL: it has not ended",
            "ended_position": "position of the event that ended it",
            "ended_at_us": "time of that event, microseconds since 1970"}],
        "victim": ["Pods that a preemption planned to evict.", {
            "position": "position of the PreemptionPlanned",
            "pod_uid": "UID of the pod",
            "pod": "namespace/name of the pod",
            "node": "node of the pod",
            "unit": "disruption unit of the pod, Kind/namespace/name",
            "unit_priority": "priority of that unit",
            "status": "terminating, gone, or spared: the preemption ended before the eviction of its unit started",
            "via": "deleted or evicted: by this service; ended: by itself, or by another client; already-gone: before this service deleted it; unobserved: while no process led",
            "gone_position": "position of the event that records that it is gone",
            "gone_at_us": "time of that event, microseconds since 1970"}],
        "projection": ["How far placement, gang_state, preemption and victim follow the log.", {
            "id": "always 1",
            "position": "position of the last event that they contain",
            "at_us": "time of that event, microseconds since 1970",
            "projected_at": "when that event was added to them"}],
        "pruning": ["What db prune removed; empty if nothing was.", {
            "id": "always 1",
            "before_us": "inputs of decisions before this time may have been removed, microseconds since 1970; verify does not miss them",
            "generation": "another one after each removal: numbers of parts that were read before it may be void"}],
        "migration": ["The revision of this schema.", {
            "version_num": "the newest migration that was made",
            "oldest_compatible": "the oldest revision whose programs run on this schema"}]}';
    t record;
    c record;
BEGIN
    FOR t IN SELECT key AS name, value ->> 0 AS text, value -> 1 AS columns FROM jsonb_each(comments) LOOP
        EXECUTE format('COMMENT ON TABLE gx.%I IS %L', t.name, t.text);
        FOR c IN SELECT key AS name, value AS text FROM jsonb_each_text(t.columns) LOOP
            EXECUTE format('COMMENT ON COLUMN gx.%I.%I IS %L', t.name, c.name, c.text);
        END LOOP;
    END LOOP;
END
$do$
