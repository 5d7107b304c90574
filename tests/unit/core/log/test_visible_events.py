"""Each type of event as a reader of one namespace sees it, field by field."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from extender.core.log.events import (
    AnyEventData,
    CapacityMeasured,
    ClockStepped,
    ControlPlaneFeaturesDetected,
    HistoryTruncated,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    ReservationReleased,
    VictimGone,
)
from extender.core.log.visible_events import ENDS, SHARED_TYPES, visible_event
from extender.core.model.ids import NIL_GANG
from extender.core.model.visibility import Visibility
from tests.support.service.tenant_story import filled
from tests.support.service.two_tenants import FOREIGN, OWN

TYPES = get_args(AnyEventData)
ABOUT_CLUSTER = (CapacityMeasured, ClockStepped, ControlPlaneFeaturesDetected, HistoryTruncated)
READER = Visibility.of([OWN])
# Of an event of an own gang: ids and texts of the own plan, which the test fills with the marker too.
OWN_FIELDS = frozenset(
    {
        "preemption", "planner", "input_digest", "plan", "reason", "via", "cost", "shapes", "unit_reason",
        "assignments", "not_reprieved_reason", "message",
    }
)  # fmt: skip


def recorded(data, *, gang="", uid=NIL_GANG):
    return RecordedEvent(
        position=7,
        event_id=f"{FOREIGN}-event",
        epoch=1,
        at_us=1,
        gang_uid=uid,
        stream_version=3,
        gang=gang,
        actor=f"{FOREIGN}-replica",
        cause=f"preempt of pod {FOREIGN}/x",
        data=data,
    )


def test_an_event_of_another_gang_is_not_shown(subtests):
    """Nothing in it is about the reader; only what is about the cluster is shown, and not as of a gang."""
    for kind in TYPES:
        with subtests.test(kind.__name__):
            event = recorded(
                filled(kind, FOREIGN), gang=f"{FOREIGN}/{FOREIGN}-g", uid=f"{FOREIGN}-uid"
            )
            assert visible_event(event, READER) is None
            assert visible_event(event, Visibility.all()) is event
            assert visible_event(event, Visibility.of([])) is None


def test_an_event_of_no_gang_is_shown_if_it_is_about_the_cluster_or_an_own_workload(subtests):
    """Leases have names of replicas, and drift of memory has names of any object: neither is shown."""
    for kind in TYPES:
        with subtests.test(kind.__name__):
            theirs = visible_event(recorded(filled(kind, FOREIGN)), READER)
            ours = visible_event(recorded(filled(kind, OWN)), READER)
            assert (theirs is not None) == (kind in ABOUT_CLUSTER)
            of_workload = "workload" in kind.__struct_fields__
            assert (ours is not None) == (kind in ABOUT_CLUSTER or of_workload)
            if ours is not None:
                assert FOREIGN not in str(ours), "actor and cause are not the reader's"
                assert kind.__name__ in SHARED_TYPES, "the query of the log has to find it"


def _marked(value, path=()):
    """Yield the path of each field whose text has the marker of the other tenant."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _marked(getattr(value, field), (*path, field))
    elif isinstance(value, tuple | list | frozenset):
        for item in value:
            yield from _marked(item, path)
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            yield from _marked(item, path)
    elif isinstance(value, str) and FOREIGN in value:
        yield path


@pytest.mark.parametrize(
    "kind", [PreemptionPlanned, VictimGone, PreemptionCancelled, ReservationReleased]
)
def test_an_own_event_about_objects_of_others_has_no_name_of_them(kind):
    """Victims, superseded trees, pods that use the capacity: every field but those of the own plan."""
    data = filled(kind, FOREIGN)
    if isinstance(data, ReservationReleased):
        data = msgspec.structs.replace(data, pods=())  # those of the own gang
    event = recorded(data, gang=f"{OWN}/{OWN}-g", uid="own-uid")
    before, shown = set(_marked(event)), visible_event(event, READER)
    left = {path[-1] for path in _marked(shown) if not OWN_FIELDS & set(path)}
    assert not left
    assert {path[-1] for path in before} - {path[-1] for path in _marked(shown)}


def test_a_plan_of_others_shows_a_victim_what_it_needs_to_know():
    """Own units whole; of the preemptor kind, priority and number of pods; nothing of its other victims."""
    theirs, ours = filled(PreemptionPlanned, FOREIGN), filled(PreemptionPlanned, OWN)
    both = msgspec.structs.replace(
        theirs, kind="CompositePodGroup", priority=1000, victims=(*theirs.victims, *ours.victims)
    )
    event = recorded(both, gang=f"{FOREIGN}/{FOREIGN}-g", uid=f"{FOREIGN}-uid")
    shown = visible_event(event, READER)
    assert shown.gang == "a CompositePodGroup of priority 1000 with 1 pod (log position 7)"
    assert shown.data.victims == ours.victims
    assert shown.gang_uid == NIL_GANG
    assert not {path[-1] for path in _marked(shown)} - {"preemption", "planner"}
    assert len(shown.data.assignments) == len(both.assignments)


@pytest.mark.parametrize("kind", [PreemptionCompleted, PreemptionCancelled])
def test_the_end_of_a_preemption_of_others_is_shown_to_its_victims(kind):
    """The caller of the projection knows which plans have victims of the reader."""
    data = msgspec.structs.replace(filled(kind, FOREIGN), preemption="p1")
    event = recorded(data, gang=f"{FOREIGN}/{FOREIGN}-g", uid=f"{FOREIGN}-uid")
    assert visible_event(event, READER, {"p2"}) is None
    shown = visible_event(event, READER, {"p1"})
    assert not list(_marked(shown)) or {p[-1] for p in _marked(shown)} <= {"reason"}
    assert kind.__name__ in ENDS


def test_the_text_for_readers_of_the_namespace_replaces_that_with_names():
    """A refusal and a release have two texts; the second one is shown."""
    release = ReservationReleased(
        plan="p",
        reason="superseded",
        pods=(),
        message=f"PodGroup/{FOREIGN}/x takes the capacity",
        message_reduced="a PodGroup takes the capacity",
    )
    shown = visible_event(recorded(release, gang=f"{OWN}/g", uid="u"), READER)
    assert shown.data.message == "a PodGroup takes the capacity"
