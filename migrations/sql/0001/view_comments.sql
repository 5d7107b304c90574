-- Comments of the views; `\d+` in psql shows them.
DO $do$
DECLARE
    always constant jsonb := '{
        "position": "position of the event of this row",
        "at": "time of that event",
        "namespace": "namespace of the gang (in views of preemptions: of the preemptor)",
        "gang": "namespace/name of the root group; names are reused",
        "gang_uid": "UID of the root group",
        "pod": "namespace/name of the pod",
        "pod_uid": "UID of the pod",
        "node": "name of the node",
        "preemptor": "namespace/name of the root group or unmanaged pod that gets the capacity",
        "preemptor_uid": "UID of the preemptor",
        "priority": "priority of the gang (in views of preemptions: of the preemptor)",
        "preemption": "id of the preemption",
        "reason": "the first of the reasons; empty if there is none",
        "actor": "the process that recorded the event",
        "cause": "the call of kube-scheduler or the change of the cluster that led to the event",
        "kind": "CompositePodGroup, PodGroup, or Pod for an unmanaged pod that preempts"}';
    comments constant jsonb := '{
        "v_event": ["The log: one row per event, in the order of recording. Pods and groups that this service does not schedule are not in it.", {
            "type": "type of the event; extender/README.md lists them",
            "schema_version": "version of the schema of the payload",
            "gang": "namespace/name of the root group that the event is about; empty for events about no group",
            "gang_uid": "UID of that root group",
            "stream_version": "number of the event among those about this root group, from 1",
            "epoch": "epoch of the lease under which the event was written",
            "cause_position": "position of the event that caused this one; NULL: none did",
            "event_id": "id of the event",
            "payload": "data of the event, as JSON, byte for byte as it was written",
            "hash": "SHA-256 of this row and the hash of the row before it, hex"}],
        "v_leader_term": ["Terms of leaders: one row per epoch in which events were written.", {
            "epoch": "epoch of the lease",
            "since": "time of the first event of the epoch",
            "first_position": "position of that event",
            "holder": "identity of the process that held the lease",
            "address": "URL of that process",
            "previous_holder": "identity of the holder before"}],
        "v_decision": ["Decisions about trees: one row per admission, extension, refusal and broken rule. A refusal is recorded when its outcome or reasons change, not for every attempt. Unmanaged pods are not in the log.", {
            "decision": "admitted: the minimum got reservations; extended: more members got reservations; unschedulable: no capacity, or not complete; invalid: the tree breaks a rule",
            "outcome": "placed; for a refusal impossible (proved), unknown (the search budget was spent) or waiting (members or groups are missing); invalid",
            "priority": "of the tree; NULL if nothing was placed",
            "pods": "members that got reservations",
            "unplaced": "members that existed and got no reservation"}],
        "v_member_terminated": ["Bound members that were lost: one row per member. Unmanaged pods are not in the log. Kubernetes does not record which client deleted a pod.", {
            "node": "node of the member",
            "cause": "preempted: by a scheduler, according to DisruptionTarget; evicted: by the Eviction API, a taint or the kubelet; node-lost: its node was deleted; rejected-by-kubelet: the kubelet did not admit it; ended: it ended by itself; deleted: by a client; unknown",
            "preemptor": "the gang or pod for which this service evicted it; NULL: it had another cause. Set once gx.projection has reached this position",
            "preemption_position": "position of the PreemptionPlanned of that preemption; NULL: it had another cause",
            "ran_seconds": "how long it had been bound; NULL until gx.projection has reached this position"}],
        "v_preemption": ["Preemptions that this service planned: one row each. Preemptions by kube-scheduler itself are not in the log; members that it evicted are in v_member_terminated.", {
            "position": "position of the PreemptionPlanned",
            "at": "when it was planned",
            "units": "number of disruption units that were chosen as victims",
            "pods": "number of pods of those units",
            "evicted": "number of victims that are gone",
            "outcome": "pending, completed (the preemptor is bound) or cancelled",
            "reason": "why it was cancelled; empty otherwise",
            "until": "when it ended; infinity while it is pending",
            "seconds": "from its plan to its end; NULL while it is pending"}],
        "v_victim": ["Pods that preemptions of this service planned to evict: one row per pod. Of victims that are unmanaged pods the log has nothing else.", {
            "position": "position of the PreemptionPlanned",
            "at": "when the preemption was planned",
            "victim_kind": "kind of the disruption unit of the pod: CompositePodGroup, PodGroup or Pod",
            "victim": "namespace/name of that unit",
            "victim_namespace": "namespace of that unit",
            "victim_priority": "priority of that unit",
            "node": "node of the pod",
            "status": "terminating, gone, or spared: the preemption ended before the eviction of its unit started",
            "via": "deleted or evicted: by this service; ended: by itself, or by another client; already-gone: before this service deleted it; unobserved: while no process led; empty while it is not gone",
            "gone_position": "position of the event that records that it is gone; NULL: it is not gone",
            "gone_at": "time of that event; NULL: it is not gone"}],
        "v_pending": ["Waiting times of trees: one row per interval in which a tree was pending for the same reasons (intervals of no length are left out), until it is admitted or removed. Trees whose minimum is bound and whose extra members wait are not in it.", {
            "position": "position of the event that began the interval",
            "state": "observed: no decision yet, or all reservations were released; waiting: members or groups are missing; unschedulable: no capacity; preempting: victims terminate; invalid: the tree breaks a rule",
            "reasons": "all reasons, the most important first",
            "since": "begin of the interval",
            "until": "end of the interval; infinity while it has not ended",
            "seconds": "length of the interval, until now if it has not ended"}],
        "v_queue_bypass": ["Queue bypasses: one row per admission of a tree of lower priority, or of a later one of equal priority, while another tree was unschedulable. Later is by the first event of the tree in the log. Unmanaged pods that were scheduled meanwhile are not in the log.", {
            "position": "position of the admission",
            "at": "time of the admission",
            "since": "when the bypassed tree became unschedulable",
            "until": "when that ended; infinity while it has not ended",
            "reason": "the first reason why the bypassed tree was unschedulable",
            "bypassed_by": "namespace/name of the tree that was admitted",
            "bypassed_by_uid": "UID of that tree",
            "bypassed_by_priority": "priority of that tree",
            "bypass_kind": "lower priority, or later",
            "pods": "members that got reservations by that admission"}],
        "v_largest_free": ["The largest free domain over time: one row per measurement, resource and level. Measured once a minute and recorded when it differs. Free is what running pods, reservations and preemptions leave on schedulable nodes.", {
            "position": "position of the CapacityMeasured",
            "at": "when it was recorded",
            "resource": "extended resource, or cpu (millicores) if no node has any",
            "level": "topology key, or node: a single node",
            "domain": "the domain with the most free capacity: value of the key, or name of the node; empty if nothing is free",
            "free": "free capacity of that domain",
            "nodes": "number of nodes of that domain with free capacity",
            "total": "free capacity of the whole cluster",
            "as_of": "position of the last event that is counted in it",
            "next_as_of": "the same of the next measurement; the largest bigint if there is none yet",
            "until": "when the next measurement was recorded; infinity if there is none yet"}],
        "v_largest_free_used": ["Admissions that used capacity of the largest free domain between two measurements. What unmanaged pods used is not in the log: it is the difference that no row explains. Recorded for topology keys of the tree and of GANG_EXTENDER_TOPOLOGY_KEYS.", {
            "position": "position of the admission",
            "at": "when the free capacity was measured",
            "resource": "the resource that was used",
            "level": "topology key, or node",
            "domain": "the largest free domain at the measurement",
            "free": "free capacity of that domain at the measurement",
            "used_at": "time of the admission",
            "used": "capacity that the admission used there; more than was free if victims were evicted",
            "pods": "number of members that used it"}],
        "v_reserved": ["Capacity that was reserved for pods that did not run yet: one row per reservation and resource, from the admission until the pod is bound or the reservation is released. amount * seconds / 3600 are its hours. Capacity claims of preemptions are not in it.", {
            "position": "position of the admission or extension that reserved it",
            "since": "when it was reserved",
            "until": "when the pod was bound or the reservation was released; infinity while it is reserved",
            "end_reason": "bound, replaced, or the reason of the release; empty while it is reserved",
            "resource": "name of the resource",
            "amount": "CPU in cores, memory in bytes, the rest in units",
            "seconds": "how long it was reserved, until now if it still is"}]}';
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
