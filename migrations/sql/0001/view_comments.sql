-- What `\d+` shows for the views.
DO $do$
DECLARE
    always constant jsonb := '{
        "position": "position in the log of the fact of this row",
        "at": "when that fact was recorded",
        "namespace": "namespace of the gang (of the preemptor, in views of preemptions)",
        "gang": "namespace/name of the root group; names are reused",
        "gang_uid": "UID of the root group: its identity",
        "pod": "namespace/name of the pod",
        "pod_uid": "UID of the pod: its identity",
        "node": "name of the node",
        "preemptor": "namespace/name of the root group or lone pod that room is made for",
        "preemptor_uid": "its UID",
        "priority": "priority of the gang (of the preemptor, in views of preemptions)",
        "preemption": "id of the preemption",
        "reason": "the first sentence of the reasons; empty where there is none",
        "actor": "which process decided",
        "cause": "what led to it",
        "kind": "CompositePodGroup, PodGroup, or Pod for a lone preemptor"}';
    comments constant jsonb := '{
        "v_event": ["The log: one row per fact, in the order in which the facts were recorded. Pods and groups that the service was not asked about are not in it.", {
            "type": "what kind of fact; extender/README.md lists them",
            "ver": "version of the shape of the payload",
            "root": "namespace/name of the root group that the fact is about; empty for facts about no group",
            "root_uid": "its UID",
            "version": "number of the fact among those about this root group, from 1",
            "epoch": "number of the lease under which it was written",
            "cause_position": "position of the fact that caused this one, where there is one",
            "event_id": "id under which the fact was written",
            "payload": "the fact, as JSON, byte for byte as it was written",
            "hash": "SHA-256 over this row and the hash in front of it, hex"}],
        "v_leadership": ["Who wrote the log when: one row per epoch that wrote anything.", {
            "epoch": "number of the lease",
            "since": "when its first fact was recorded",
            "first_position": "position of that fact",
            "holder": "who held the lease",
            "address": "where that process could be reached",
            "previous_holder": "who held the lease before"}],
        "v_decision": ["Decisions about trees: admissions, extensions, refusals, broken rules; one row each. A refusal is recorded when its answer changes, not on every try. Of ordinary pods the log knows nothing.", {
            "decision": "admitted: the minimum got its room; extended: members beyond it did; refused: no room, or not complete; invalid: the tree breaks a rule",
            "outcome": "placed; of a refusal impossible (proved), unknown (search budget spent) or waiting (members or groups missing); invalid",
            "priority": "of the tree; NULL where nothing was placed",
            "pods": "members that got room by it",
            "unplaced": "members that were there and got none"}],
        "v_loss": ["Bound members that went away: one row per loss. Losses of ordinary pods are not in the log, nor is who deleted a pod: cause is what the cluster showed.", {
            "node": "where the member ran",
            "cause": "preempted: by a scheduler, according to DisruptionTarget; evicted: by the Eviction API, a taint or the kubelet; node-lost: its node is gone; refused-by-kubelet: the kubelet did not let it in; ended: it ended by itself; deleted: by a client; gone: the reason is not known",
            "preemptor": "for whom this service evicted it; NULL: a loss that others caused. Known once gx.projection has come to this position",
            "preemption_position": "position of the PreemptionPlanned that it is a victim of; NULL: none of ours",
            "ran_seconds": "how long it had been bound; NULL while gx.projection is behind"}],
        "v_preemption": ["Preemptions that this service planned: one row each. Those that kube-scheduler does by itself are not in the log; their victims that were members are in v_loss.", {
            "position": "position of the PreemptionPlanned",
            "at": "when it was planned",
            "units": "disruption units that were chosen",
            "pods": "pods of those units",
            "evicted": "pods that are gone by now",
            "outcome": "pending, completed (the preemptor runs) or abandoned",
            "why": "why it was abandoned; empty otherwise",
            "until": "when it ended; infinity while it is pending",
            "seconds": "from plan to end; NULL while it is pending"}],
        "v_victim": ["Pods that had to go for preemptions of this service: one row per pod. Victims may be ordinary pods; then this is all that the log knows of them.", {
            "position": "position of the PreemptionPlanned",
            "at": "when the preemption was planned",
            "victim_kind": "kind of the disruption unit that the pod went with: CompositePodGroup, PodGroup or Pod",
            "victim": "namespace/name of that unit",
            "victim_namespace": "its namespace",
            "victim_priority": "its priority",
            "node": "where the pod ran",
            "fate": "going, gone, or spared: the preemption ended before its unit was begun",
            "how": "deleted or evicted by us, ended by itself or by others, gone-before it was its turn, unseen while no leader looked; empty while it is not gone",
            "gone_position": "position of the fact that records that it is gone",
            "gone_at": "when that was recorded; NULL: not gone"}],
        "v_pending": ["How long trees waited and why: one row per stretch of time with the same reasons (those that took no time are left out), until the tree is admitted or gone. Trees whose minimum runs and whose extras wait are not in it.", {
            "position": "position of the fact that began the stretch",
            "state": "observed: no answer yet, or all reservations were given back; waiting: members or groups are missing; refused: no room; preempting: victims are going; invalid: breaks a rule",
            "reasons": "all sentences, the most important first",
            "since": "when the stretch began",
            "until": "when it ended; infinity while it goes on",
            "seconds": "how long it took, or has taken until now"}],
        "v_passed_over": ["Who was let in front of whom: admissions of trees of lower priority, or of equal priority and later, while another tree stood refused for want of room. Later is by when the log first knew the tree. Ordinary pods that took room meanwhile are not in the log.", {
            "position": "position of the admission that passed by",
            "at": "when that was",
            "since": "when the tree that was passed over was refused",
            "until": "when that refusal ended; infinity while it stands",
            "reason": "why it was refused, the first sentence",
            "passed_by": "namespace/name of the tree that was admitted meanwhile",
            "passed_by_uid": "its UID",
            "passed_by_priority": "its priority",
            "how": "lower priority, or later",
            "pods": "members that got room by that admission"}],
        "v_room": ["The largest free room in one place over time: one row per measurement, resource and level. Measured once a minute and recorded when it differs. Counts what running pods, reservations and preemptions leave; nodes that take no pods are left out.", {
            "position": "position of the RoomMeasured",
            "at": "when it was recorded",
            "resource": "extended resource, or cpu (millicores) where no node has any",
            "level": "topology key, or node: one single node",
            "domain": "where most is free: value of the key, or name of the node; empty when nothing is free",
            "free": "how much is free there",
            "nodes": "on how many nodes of that domain",
            "total": "free in the whole cluster; free/total shows how scattered the rest is",
            "known": "the last position that is counted in it",
            "next_known": "the same of the next measurement; the largest bigint when there is none yet",
            "until": "when the next measurement was recorded; infinity when there is none yet"}],
        "v_room_taken": ["Which admissions took of the largest free room between one measurement and the next. What ordinary pods took is not in the log: it is the part of the difference that no row explains. A topology key has to be a key of the tree or in GANG_EXTENDER_TOPOLOGY_KEYS.", {
            "position": "position of the admission",
            "at": "when the room was measured",
            "resource": "what was taken",
            "level": "topology key, or node",
            "domain": "where most of it was free",
            "free": "how much was free there before",
            "taken_at": "when the admission took of it",
            "taken": "how much it took there; more than was free where victims made room",
            "pods": "by how many members"}],
        "v_reserved": ["Room that was held for a pod and not used yet: one row per reservation and resource, from the admission until the pod runs or the room is given back. amount * seconds / 3600 are its hours. What preemptions hold while victims go is not in it.", {
            "position": "position of the admission or extension that reserved it",
            "since": "when it was reserved",
            "until": "when the pod ran or the room was given back; infinity while it is held",
            "ended": "bound, replaced, or why the room was given back; empty while it is held",
            "resource": "name of the resource",
            "amount": "CPU in cores, memory in bytes, the rest in units",
            "seconds": "how long it was held, or has been until now"}]}';
    v record;
    c record;
BEGIN
    FOR v IN SELECT key AS name, value ->> 0 AS text, value -> 1 AS columns FROM jsonb_each(comments) LOOP
        EXECUTE format('COMMENT ON VIEW gx.%I IS %L', v.name, v.text);
        FOR c IN
            SELECT a.attname AS name, coalesce(v.columns ->> a.attname::text, always ->> a.attname::text) AS text
            FROM pg_attribute a
            WHERE a.attrelid = format('gx.%I', v.name)::regclass AND a.attnum > 0
        LOOP
            EXECUTE format('COMMENT ON COLUMN gx.%I.%I IS %L', v.name, c.name, c.text);
        END LOOP;
    END LOOP;
END
$do$
