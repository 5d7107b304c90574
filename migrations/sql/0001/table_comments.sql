-- What `\d+` shows for the tables that people read.
DO $do$
DECLARE
    comments constant jsonb := '{
        "placement": ["Who held or had which node, from when to when: one row per interval, folded from the log up to the position in gx.projection. Ordinary pods are not in the log.", {
            "pod_uid": "UID of the pod; its identity, names are reused",
            "pod": "namespace/name of the pod",
            "root_uid": "UID of the root group of its tree",
            "root": "namespace/name of the root group",
            "leaf": "name of the PodGroup that the pod names, in the namespace of the root",
            "node": "name of the node",
            "kind": "reserved: room was held for the pod; bound: the pod was on the node; kept: the pod was lost and its room held for its replacement",
            "plan": "id of the admission that it belongs to; empty for pods that were bound past us",
            "priority": "of the admission; NULL where no reservation came first",
            "extra": "beyond the minimum of its group; NULL where no reservation came first",
            "resources": "requests of the pod: CPU in millicores, memory in bytes, the rest in units; NULL where no reservation came first",
            "from_position": "position of the fact that began it",
            "from_at_us": "time of that fact, microseconds since 1970",
            "to_position": "position of the fact that ended it; NULL: it goes on",
            "to_at_us": "time of that fact, microseconds since 1970; NULL: it goes on",
            "end_type": "type of the fact that ended it; NULL: it goes on",
            "end_why": "bound, replaced, or the reason in that fact (why of a release, cause of a loss)",
            "by_root": "namespace/name of the preemptor that ended it; NULL: no preemption did",
            "by_position": "position of the PreemptionPlanned that ended it; NULL: no preemption did"}],
        "root_state": ["How a root group stood, from when to when: one row per interval, folded from the log up to the position in gx.projection.", {
            "root_uid": "UID of the root group; its identity, names are reused",
            "root": "namespace/name",
            "kind": "PodGroup or CompositePodGroup; empty while the log does not have it",
            "priority": "as the log knew it then",
            "state": "observed, waiting, refused, preempting, invalid, admitted, satisfied or gone; extender/README.md describes them",
            "phase": "the same without preempting: how it stood beside the preemption",
            "outcome": "outcome of the last recorded answer while it was pending: waiting, impossible, unknown, invalid or preempting; NULL: there is none",
            "reasons": "the sentences of that answer, the most important first",
            "answer_position": "position of the fact with that answer",
            "from_position": "position of the fact that began it",
            "from_at_us": "time of that fact, microseconds since 1970",
            "to_position": "position of the fact that ended it; NULL: it goes on",
            "to_at_us": "time of that fact, microseconds since 1970; NULL: it goes on"}],
        "preemption": ["Preemptions: who asked for room that others had, and what came of it.", {
            "position": "position of its PreemptionPlanned",
            "at_us": "time of that fact, microseconds since 1970",
            "preemption": "its id",
            "root_uid": "UID of the preemptor; of the pod when that is no member",
            "root": "namespace/name of the preemptor",
            "kind": "CompositePodGroup, PodGroup or Pod",
            "priority": "of the preemptor",
            "begun": "units, Kind/namespace/name, of which a pod is gone, or may be, by our doing: they go whole",
            "evicted": "victims that are gone",
            "pending": "not ended yet, or victims that go all the same are not gone yet",
            "outcome": "completed, or why it was abandoned; NULL: under way",
            "ended_position": "position of the fact that ended it",
            "ended_at_us": "time of that fact, microseconds since 1970"}],
        "victim": ["Pods that had to go for a preemption.", {
            "position": "position of the PreemptionPlanned",
            "pod_uid": "UID of the pod",
            "pod": "namespace/name of the pod",
            "node": "where it ran",
            "unit": "the disruption unit it belongs to, Kind/namespace/name",
            "unit_priority": "of that unit",
            "fate": "going, gone, or spared: the preemption ended before its unit was begun",
            "how": "deleted or evicted by us, ended by itself or by others, gone-before it was its turn, unseen while no leader looked",
            "gone_position": "position of the fact that records it",
            "gone_at_us": "time of that fact, microseconds since 1970"}],
        "projection": ["How far placement, root_state, preemption and victim follow the log.", {
            "id": "always 1",
            "position": "they have everything up to this position of the log, and nothing after it",
            "at_us": "time of the fact there, microseconds since 1970",
            "projected_at": "when they were brought there"}]}';
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
