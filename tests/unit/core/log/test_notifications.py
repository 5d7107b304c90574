"""Which notifications follow from an event or a gang that waits, their ids, and what readers of some namespaces get."""

from __future__ import annotations

import msgspec

from extender.core.log.events import (
    AssignmentRecord,
    GangUnschedulable,
    PreemptionCancelled,
    PreemptionPlanned,
    RecordedEvent,
    VictimPod,
    VictimUnit,
)
from extender.core.log.gang_phase import WaitingGang
from extender.core.log.notifications import notifications_of, waiting_notification
from extender.core.log.reservation_state import GangState, LastDecision
from extender.core.model.ids import Epoch, GangUid, NodeName, PlanId, PodUid, Position
from extender.core.model.visibility import EVERYTHING, Visibility

TEAM_A = Visibility.of(["team-a"])


def recorded(data, gang="team-b/urgent"):
    return RecordedEvent(
        position=Position(7), event_id="e", epoch=Epoch(1), at_us=1_800_000_000_000_001, gang_uid=GangUid("uid-g"),
        stream_version=1, gang=gang, actor="a", cause="", data=data,
    )  # fmt: skip


def a_victim(namespace):
    pod = VictimPod(pod=f"{namespace}/job-0", uid=PodUid("p"), node=NodeName("n1"))
    return VictimUnit(
        kind="PodGroup", path=f"{namespace}/job", uid=f"uid-{namespace}", priority=1, pods=(pod,)
    )


PLANNED = PreemptionPlanned(
    preemption=PlanId("x"), kind="PodGroup", priority=100, victims=(a_victim("team-a"), a_victim("team-c")), cost={},
    alternatives=(), shapes=({"cpu": 1},),
    assignments=(AssignmentRecord(pod="team-b/u-0", uid=PodUid("u"), group="urgent", node=NodeName("n1")),),
)  # fmt: skip


def test_each_unit_that_is_preempted_is_notified():
    """With its pods and the preemptor, and an id that is the same each time."""
    event = recorded(PLANNED)
    first, second = notifications_of(event, EVERYTHING)
    assert (first.type, first.subject) == ("preempted", "PodGroup/team-a/job")
    assert second.subject == "PodGroup/team-c/job"
    assert first.id != second.id
    assert [n.id for n in notifications_of(event, EVERYTHING)] == [first.id, second.id]
    assert first.data["preemptor"] == "PodGroup/team-b/urgent"
    assert first.data["pods"] == [{"pod": "team-a/job-0", "node": "n1"}]


def test_of_other_namespaces_there_are_no_names():
    """Only the unit of the namespace, and of the preemptor its kind, priority, size and position."""
    (only,) = notifications_of(recorded(PLANNED), TEAM_A)
    assert only.subject == "PodGroup/team-a/job"
    assert only.data["preemptor"] == "a PodGroup of priority 100 with 1 pod (log position 7)"
    assert b"team-b" not in msgspec.json.encode(only)
    assert b"team-c" not in msgspec.json.encode(only)


def test_units_that_are_spared_are_notified():
    """With the reason, not with its text, which may name others."""
    ended = PreemptionCancelled(
        preemption=PlanId("x"), reason="no-longer-needed", units_spared=("PodGroup/team-a/job", "PodGroup/team-c/job"),
        units_in_progress=(), evicted=0, message="team-b/urgent fits",
    )  # fmt: skip
    (only,) = notifications_of(recorded(ended), TEAM_A)
    assert (only.type, only.subject, only.data["reason"]) == (
        "spared", "PodGroup/team-a/job", "no-longer-needed",
    )  # fmt: skip
    assert b"team-b" not in msgspec.json.encode(only)


def test_only_a_refusal_that_holds_when_the_cluster_is_empty_is_never():
    """With what is missing then, and what helps."""
    refused = GangUnschedulable(
        outcome="impossible", reasons=("full",), help=("remove 2 pods",), when_empty="never",
        reasons_when_empty=("no rack has 9 nodes",),
    )  # fmt: skip
    (only,) = notifications_of(recorded(refused), EVERYTHING, "PodGroup")
    assert (only.type, only.subject) == ("never-fits", "PodGroup/team-b/urgent")
    assert only.data["reasons"] == ("no rack has 9 nodes",)
    assert only.data["help"] == ("remove 2 pods",)
    assert list(notifications_of(recorded(refused), TEAM_A)) == []
    for when_empty in ("", "fits", "unknown"):
        later = msgspec.structs.replace(refused, when_empty=when_empty)
        assert list(notifications_of(recorded(later), EVERYTHING)) == []


def test_a_gang_that_waits_is_notified_with_its_reasons():
    """Readers of some namespaces get the reasons without names of others."""
    decision = LastDecision(
        outcome="impossible", reasons=("team-b holds it",), position=Position(1), at_us=1,
        reasons_reduced=("another holds it",),
    )  # fmt: skip
    root = GangState(uid=GangUid("u"), gang="team-a/job", kind="PodGroup", last_decision=decision)
    gang = WaitingGang(root, "unschedulable", 1_800_000_000_000_000)
    full = waiting_notification(gang, 60_000_000, EVERYTHING)
    assert (full.type, full.subject) == ("waiting", "PodGroup/team-a/job")
    assert full.at_us == 1_800_000_060_000_000
    assert full.data["reasons"] == ("team-b holds it",)
    assert full.data["waiting_since"] == "2027-01-15T08:00:00Z"
    reduced = waiting_notification(gang, 60_000_000, TEAM_A)
    assert reduced.data["reasons"] == ("another holds it",)
    assert reduced.id == full.id
    admitted = waiting_notification(gang._replace(state="admitted"), 60_000_000, EVERYTHING)
    assert (admitted.data["reasons"], admitted.data["help"]) == ((), ()), "of further members"


def test_the_form_is_that_of_cloud_events():
    """All attributes that CloudEvents 1.0 requires, and names of extensions in lower case without other signs."""
    (first, _) = notifications_of(recorded(PLANNED), EVERYTHING)
    event = msgspec.json.decode(msgspec.json.encode(first.cloud_event("east")))
    assert event == {
        "specversion": "1.0", "id": "7-preempted-uid-team-a", "source": "east", "type": "dev.gang-extender.preempted",
        "subject": "PodGroup/team-a/job", "time": "2027-01-15T08:00:00.000001Z", "namespace": "team-a",
        "datacontenttype": "application/json", "data": msgspec.to_builtins(first.data),
    }  # fmt: skip
