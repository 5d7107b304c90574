"""The text of a pending preemption."""

from __future__ import annotations

import pytest

from extender.core.log.events import (
    AssignmentRecord,
    PreemptionPlanned,
    SupersededRecord,
    VictimPod,
    VictimUnit,
)
from extender.core.log.reservation_state import preemption_summary
from extender.core.model.ids import NodeName, PlanId, PodUid
from tests.support.logs.random_logs import NODES, ROOTS

A_POD = VictimPod(pod="ns/v", uid=PodUid("v"), node=NODES[0])


def a_plan(victims=(), already_terminating=0, superseded=0, places=1):
    """A plan that evicts units of so many pods each, waits for terminating pods, and uses capacity of trees."""
    return PreemptionPlanned(
        preemption=PlanId("p"), kind="PodGroup", priority=1, cost={}, alternatives=(), shapes=({},),
        assignments=(AssignmentRecord(pod="ns/p", uid=PodUid("p"), group="g", node=NodeName("n")),) * places,
        victims=tuple(
            VictimUnit(kind="Pod", path=f"ns/{n}", uid=f"{n}", priority=0, pods=(A_POD,) * pods)
            for n, pods in enumerate(victims)
        ),
        already_terminating=(A_POD,) * already_terminating,
        superseded=tuple(
            SupersededRecord(gang=f"ns/{n}", gang_uid=ROOTS[0], plan=PlanId("q"), priority=0, pods=())
            for n in range(superseded)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (a_plan([1]), "uses the capacity of 1 pod of 1 disruption unit of lower priority"),
        (
            a_plan([2, 1], already_terminating=1, superseded=1),
            "uses the capacity of 3 pods of 2 disruption units of lower priority, 1 pod on the way out, "
            "reservations of 1 tree of lower priority",
        ),
        (a_plan(superseded=2), "uses the capacity of reservations of 2 trees of lower priority"),
        (a_plan(already_terminating=2), "uses the capacity of 2 pods on the way out"),
        (a_plan(), "the capacity is free"),
        (a_plan([3], places=0), "evicts its own 3 pods, to be placed anew"),
        (a_plan([1], places=0), "evicts its own 1 pod, to be placed anew"),
    ],
)
def test_the_condition_of_a_preemptor_counts_its_victims(plan, words):
    """Parts of which there are none are left out; `test_projection` holds the words of the database against these."""
    assert preemption_summary(plan) == words
