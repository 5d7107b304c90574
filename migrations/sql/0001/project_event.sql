-- Fold one event into the tables of intervals. The reference is the fold in extender/core/log/state_projector.py: this has a branch for
-- each branch there, and a test compares both for random logs. XE005: an event type that this version does not know.
CREATE FUNCTION gx.project_event(e gx.event) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    -- type -> newest version of its shape that is read here; a test compares it with the codec
    shapes constant jsonb := '{
        "GangObserved": 1, "GangAdmitted": 1, "GangExtended": 1, "GangUnschedulable": 1, "GangInvalid": 1, "PodBound": 1,
        "PodBindFailed": 1, "BindBarrierTimedOut": 1, "NodeRejected": 1, "ReservationReleased": 1, "GangScheduled": 1,
        "MemberTerminated": 1, "PreemptionPlanned": 1, "VictimGone": 1, "PreemptionCompleted": 1,
        "PreemptionCancelled": 1, "NodeTopologyChanged": 1, "GangRemoved": 1, "DriftDetected": 1,
        "HistoryTruncated": 1, "LeaseAcquired": 1, "CapacityMeasured": 1, "ControlPlaneFeaturesDetected": 1,
        "TreeCompiled": 1, "TreeRefused": 1, "TreeRetired": 1, "ClockStepped": 1, "CapacityHeld": 1, "CapacityHoldReleased": 1,
        "GangGroupsChanged": 1, "MovesPlanned": 1, "MoveCompleted": 1, "MovesPaused": 1, "MovesEnded": 1}';
    d json := e.payload;
    r gx.gang_state;
    known boolean;
BEGIN
    IF NOT coalesce(e.schema_version <= (shapes ->> e.type)::integer, false) THEN
        RAISE EXCEPTION 'position %: % version % is not known here; written by a newer version?',
            e.position, e.type, e.schema_version USING ERRCODE = 'XE005';
    END IF;
    IF e.type IN ('NodeRejected', 'BindBarrierTimedOut', 'PodBindFailed', 'DriftDetected', 'LeaseAcquired', 'HistoryTruncated',
                  'CapacityMeasured', 'ControlPlaneFeaturesDetected', 'TreeCompiled', 'TreeRefused', 'TreeRetired', 'ClockStepped',
                  'CapacityHeld', 'CapacityHoldReleased', 'GangGroupsChanged', 'MovesPlanned', 'MoveCompleted', 'MovesPaused',
                  'MovesEnded') THEN
        RETURN;  -- no table of intervals depends on them
    END IF;
    IF strpos(d::text, '\u0000') > 0 THEN
        d := replace(d::text, '\u0000', '\ufffd')::json;  -- no text of PostgreSQL can hold NUL
    END IF;

    SELECT s.* INTO r FROM gx.gang_state s WHERE s.gang_uid = e.gang_uid AND s.to_position IS NULL;
    known := coalesce(r.phase <> 'removed', false);
    IF NOT known THEN
        r.gang := e.gang;
        r.kind := '';
        r.priority := 0;
        r.phase := 'observed';
        r.outcome := NULL;
        r.reasons := '{}';
        r.last_decision_position := NULL;
    END IF;

    CASE e.type
        WHEN 'PodBound' THEN
            IF NOT EXISTS (
                SELECT FROM gx.placement p WHERE p.gang_uid = e.gang_uid AND p.pod_uid = d ->> 'uid'
                  AND (p.to_position IS NULL AND p.kind <> 'replacement' OR p.end_reason = 'node-lost')
            ) THEN  -- without a reservation, and perhaps as the replacement of a lost member
                PERFORM gx.project_hold_used(e, ARRAY[coalesce(d ->> 'group', '')], ARRAY[d ->> 'node']);
            END IF;
            PERFORM gx.project_bound(e, d);
            IF known THEN
                RETURN;
            END IF;
        WHEN 'GangAdmitted', 'GangExtended' THEN
            PERFORM gx.project_reserved(e, d);
            PERFORM gx.project_hold_used(
                e,
                ARRAY(SELECT a ->> 'group' FROM json_array_elements(d -> 'assignments') a),
                ARRAY(SELECT a ->> 'node' FROM json_array_elements(d -> 'assignments') a)
            );
            r.priority := (d ->> 'priority')::bigint;
            r.outcome := NULL;
            r.reasons := '{}';
            r.last_decision_position := NULL;
            IF e.type = 'GangAdmitted' THEN
                r.kind := d ->> 'kind';
                IF r.phase <> 'scheduled' THEN
                    r.phase := 'admitted';
                END IF;
            END IF;
        WHEN 'GangObserved' THEN
            r.kind := d ->> 'kind';
            r.priority := coalesce((d ->> 'priority')::bigint, 0);
        WHEN 'GangScheduled' THEN
            r.phase := 'scheduled';
        WHEN 'MemberTerminated' THEN
            IF NOT known OR gx.project_end(e, 'bound', ARRAY[d ->> 'uid'], d ->> 'cause') = 0 THEN
                RETURN;
            END IF;
            PERFORM gx.project_replacement_hold(e, d);
        WHEN 'ReservationReleased' THEN
            PERFORM gx.project_end(
                e, k, ARRAY(SELECT p ->> 'uid' FROM json_array_elements(d -> 'pods') p), d ->> 'reason'
            )
            FROM unnest(ARRAY['reserved', 'replacement']) k;
        WHEN 'GangRemoved' THEN
            PERFORM gx.project_end(e, NULL, NULL, d ->> 'reason');
            PERFORM gx.project_preemption(e, d);
            r.phase := 'removed';
            r.outcome := NULL;
            r.reasons := '{}';
            r.last_decision_position := NULL;
        WHEN 'GangUnschedulable' THEN
            r.outcome := d ->> 'outcome';
            r.reasons := ARRAY(SELECT json_array_elements_text(d -> 'reasons'))
                || ARRAY(SELECT json_array_elements_text(d -> 'preemption_notes'));
            r.last_decision_position := e.position;
            IF r.phase NOT IN ('admitted', 'scheduled') THEN
                r.phase := CASE r.outcome WHEN 'waiting' THEN 'waiting' ELSE 'unschedulable' END;
            END IF;
        WHEN 'GangInvalid' THEN
            r.outcome := 'invalid';
            r.reasons := ARRAY(SELECT json_array_elements_text(d -> 'problems'));
            r.last_decision_position := e.position;
            IF r.phase NOT IN ('admitted', 'scheduled') THEN
                r.phase := 'invalid';
            END IF;
        WHEN 'NodeTopologyChanged' THEN
            NULL;
        WHEN 'PreemptionPlanned' THEN
            PERFORM gx.project_preemption(e, d);
            IF d ->> 'kind' = 'Pod' THEN
                RETURN;
            END IF;
            r.outcome := 'preempting';
            r.reasons := ARRAY[gx.preempting_message(d)];
            r.last_decision_position := e.position;
        ELSE  -- VictimGone, PreemptionCompleted, PreemptionCancelled
            IF NOT gx.project_preemption(e, d) OR NOT known OR e.type <> 'PreemptionCancelled'
               OR r.outcome IS DISTINCT FROM 'preempting' THEN
                RETURN;
            END IF;
            r.outcome := NULL;
            r.reasons := '{}';
            r.last_decision_position := NULL;
    END CASE;

    -- An admission without any remaining reservation or member, before the minimum was bound, is undone.
    IF e.type IN ('MemberTerminated', 'ReservationReleased') AND r.phase = 'admitted' AND NOT EXISTS (
        SELECT FROM gx.placement p WHERE p.gang_uid = e.gang_uid AND p.to_position IS NULL AND p.kind <> 'replacement'
    ) THEN
        r.phase := 'observed';
    END IF;
    PERFORM gx.project_gang(e, r);
END
$function$
