-- Fold one fact into the tables of intervals. The truth is Folding in extender/core/log/reservation_state.py: this has an arm where
-- that has one, and a test holds both against each other over any log. XE005: a fact that this version does not know.
CREATE FUNCTION gx.project_fact(e gx.event) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
    -- type -> newest version of its shape that is read here; a test compares it with the codec
    shapes constant jsonb := '{
        "RootObserved": 1, "GangAdmitted": 1, "GangExtended": 1, "GangRefused": 1, "RootInvalid": 1, "PodBound": 1,
        "BindFailed": 1, "BarrierExpired": 1, "NodeVetoed": 1, "ReservationReleased": 1, "GangSatisfied": 1,
        "MemberLost": 1, "PreemptionPlanned": 1, "VictimEvicted": 1, "PreemptionCompleted": 1,
        "PreemptionAbandoned": 1, "NodeTopologyChanged": 1, "RootCompleted": 1, "DriftFound": 1,
        "HistoryTruncated": 1, "LeaseTaken": 1, "RoomMeasured": 1, "FeaturesFound": 1}';
    d json := e.payload;
    r gx.root_state;
    known boolean;
BEGIN
    IF NOT coalesce(e.ver <= (shapes ->> e.type)::integer, false) THEN
        RAISE EXCEPTION 'position %: % version % is not known here; written by a newer version?',
            e.position, e.type, e.ver USING ERRCODE = 'XE005';
    END IF;
    IF e.type IN ('NodeVetoed', 'BarrierExpired', 'BindFailed', 'DriftFound', 'LeaseTaken', 'HistoryTruncated',
                  'RoomMeasured', 'FeaturesFound') THEN
        RETURN;  -- no table of intervals depends on them
    END IF;
    IF strpos(d::text, '\u0000') > 0 THEN
        d := replace(d::text, '\u0000', '\ufffd')::json;  -- no text of PostgreSQL can hold NUL
    END IF;

    SELECT s.* INTO r FROM gx.root_state s WHERE s.root_uid = e.root_uid AND s.to_position IS NULL;
    known := coalesce(r.phase <> 'gone', false);
    IF NOT known THEN
        r.root := e.root;
        r.kind := '';
        r.priority := 0;
        r.phase := 'observed';
        r.outcome := NULL;
        r.reasons := '{}';
        r.answer_position := NULL;
    END IF;

    CASE e.type
        WHEN 'PodBound' THEN
            IF NOT EXISTS (
                SELECT FROM gx.placement p WHERE p.root_uid = e.root_uid AND p.pod_uid = d ->> 'uid'
                  AND (p.to_position IS NULL AND p.kind <> 'kept' OR p.end_why = 'node-lost')
            ) THEN  -- past us, and perhaps in the place of a lost member
                PERFORM gx.project_filled(e, ARRAY[coalesce(d ->> 'group', '')], ARRAY[d ->> 'node']);
            END IF;
            PERFORM gx.project_bound(e, d);
            IF known THEN
                RETURN;
            END IF;
        WHEN 'GangAdmitted', 'GangExtended' THEN
            PERFORM gx.project_reserved(e, d);
            PERFORM gx.project_filled(
                e,
                ARRAY(SELECT a ->> 'group' FROM json_array_elements(d -> 'assignments') a),
                ARRAY(SELECT a ->> 'node' FROM json_array_elements(d -> 'assignments') a)
            );
            r.priority := (d ->> 'priority')::bigint;
            r.outcome := NULL;
            r.reasons := '{}';
            r.answer_position := NULL;
            IF e.type = 'GangAdmitted' THEN
                r.kind := d ->> 'kind';
                IF r.phase <> 'satisfied' THEN
                    r.phase := 'admitted';
                END IF;
            END IF;
        WHEN 'RootObserved' THEN
            r.kind := d ->> 'kind';
            r.priority := coalesce((d ->> 'priority')::bigint, 0);
        WHEN 'GangSatisfied' THEN
            r.phase := 'satisfied';
        WHEN 'MemberLost' THEN
            IF NOT known OR gx.project_end(e, 'bound', ARRAY[d ->> 'uid'], d ->> 'cause') = 0 THEN
                RETURN;
            END IF;
            PERFORM gx.project_kept(e, d);
        WHEN 'ReservationReleased' THEN
            PERFORM gx.project_end(
                e, k, ARRAY(SELECT p ->> 'uid' FROM json_array_elements(d -> 'pods') p), d ->> 'why'
            )
            FROM unnest(ARRAY['reserved', 'kept']) k;
        WHEN 'RootCompleted' THEN
            PERFORM gx.project_end(e, NULL, NULL, d ->> 'why');
            PERFORM gx.project_preemption(e, d);
            r.phase := 'gone';
            r.outcome := NULL;
            r.reasons := '{}';
            r.answer_position := NULL;
        WHEN 'GangRefused' THEN
            r.outcome := d ->> 'outcome';
            r.reasons := ARRAY(SELECT json_array_elements_text(d -> 'reasons'))
                || ARRAY(SELECT json_array_elements_text(d -> 'considered'));
            r.answer_position := e.position;
            IF r.phase NOT IN ('admitted', 'satisfied') THEN
                r.phase := CASE r.outcome WHEN 'waiting' THEN 'waiting' ELSE 'refused' END;
            END IF;
        WHEN 'RootInvalid' THEN
            r.outcome := 'invalid';
            r.reasons := ARRAY(SELECT json_array_elements_text(d -> 'problems'));
            r.answer_position := e.position;
            IF r.phase NOT IN ('admitted', 'satisfied') THEN
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
            r.reasons := ARRAY[gx.preempting_text(d)];
            r.answer_position := e.position;
        ELSE  -- VictimEvicted, PreemptionCompleted, PreemptionAbandoned
            IF NOT gx.project_preemption(e, d) OR NOT known OR e.type <> 'PreemptionAbandoned'
               OR r.outcome IS DISTINCT FROM 'preempting' THEN
                RETURN;
            END IF;
            r.outcome := NULL;
            r.reasons := '{}';
            r.answer_position := NULL;
    END CASE;

    -- An admission of which nothing is left, before the minimum was bound, is undone.
    IF e.type IN ('MemberLost', 'ReservationReleased') AND r.phase = 'admitted' AND NOT EXISTS (
        SELECT FROM gx.placement p WHERE p.root_uid = e.root_uid AND p.to_position IS NULL AND p.kind <> 'kept'
    ) THEN
        r.phase := 'observed';
    END IF;
    PERFORM gx.project_root(e, r);
END
$function$
