"""Who came into reserved capacity is named, the latest first; a tree to whom it happens over and over waits longer."""

from __future__ import annotations

import pytest

from extender.core.log.events import ReservationReleased, ReservedCapacityUser
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import CAPACITY_USE_MEMORY_US
from extender.core.model.ids import NodeName, PlanId, PodUid
from extender.core.reconcile.reservation_checks import (
    PAUSE_US,
    PAUSE_US_MAX,
    reserved_capacity_users,
    retry_time_us,
)
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
from tests.unit.core.reconcile.test_cluster_reconciliation import admitted
from tests.unit.core.support import folded

FULL = {GPU: 4}


def scene(*pods, priority=0):
    """A gang of one whose capacity on n0 is held, and others on that node."""
    cluster = FakeCluster(a_node("n0", gpu=4), *a_gang("g", pods=1), *pods)
    return cluster, admitted(EMPTY, cluster, "g", {"g-0": "n0"}, priority=priority)


def named(cluster, state):
    uid = cluster.group("g").uid
    found = reserved_capacity_users(cluster.seen, state, state.gangs[uid].reservations.values())
    return [(t.pod.partition("/")[2], t.via) for t in found]


def test_it_names_scheduler_and_priority():
    """What an operator needs to find out whose pod it is."""
    cluster, state = scene(
        a_pod("alien", node="n0", requests=FULL, schedulerName="other", priority=3)
    )
    (pod,) = reserved_capacity_users(
        cluster.seen, state, state.gangs[cluster.group("g").uid].reservations.values()
    )
    assert pod == ReservedCapacityUser(
        pod="default/alien",
        uid=cluster.pod("alien").uid,
        node=NodeName("n0"),
        scheduler="other",
        priority=3,
        via="higher-priority",
    )


def test_the_latest_are_named_and_no_more_than_it_takes():
    """Who was there before the reservation did not take it; nor did who asks for something else."""
    cluster, state = scene(*(a_pod(f"p{n}", node="n0", requests={GPU: 1}) for n in range(5)))
    for n in range(5):
        cluster.change_pod(f"p{n}", assigned_us=n if n != 1 else 9)
    cluster.add(a_pod("cpu", node="n0", requests={"cpu": 1}))
    cluster.change_pod("cpu", assigned_us=99)
    assert named(cluster, state) == [("p1", "unaware"), ("p4", "unaware")]


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({}, "unaware"),
        ({"priority": 5}, "unaware"),
        ({"priority": 6}, "higher-priority"),
        ({"priority": 6, "pinned": NodeName("n0")}, "pinned"),
    ],
)
def test_how_it_came(changes, how):
    """By its priority against that of the reservation; a DaemonSet's pod has nowhere else to go."""
    cluster, state = scene(a_pod("alien", node="n0", requests=FULL), priority=5)
    cluster.change_pod("alien", **changes)
    assert named(cluster, state) == [("alien", how)]


def test_members_that_we_placed_took_nothing():
    """They were counted when the others were planned, however late they run."""
    cluster, state = scene(a_pod("alien", node="n0", requests=FULL), *a_gang("h", pods=1))
    state = admitted(state, cluster, "h", {"h-0": "n0"})
    cluster.change_pod("h-0", node=NodeName("n0"), assigned_us=99)
    assert named(cluster, state) == [("alien", "unaware")]


def released(uid, times, apart_us):
    pod = ReservedCapacityUser(
        pod="d/p", uid=PodUid("u"), node=NodeName("n"), scheduler="s", priority=0, via="unaware"
    )
    event = ReservationReleased(plan=PlanId("p"), reason="superseded", pods=(), taken_by=(pod,))
    state = EMPTY
    for n in range(times):
        state = folded(
            state, (uid, "default/g", event), at_us=CAPACITY_USE_MEMORY_US + n * apart_us
        )
    return state.gangs[uid]


def test_the_pause_doubles_up_to_a_limit():
    """At once after the first time, then 1, 2, 4, 8 and 15 s after the last."""
    waits = []
    for times in range(1, 8):
        root = released("u", times, 1)
        waits.append(max(retry_time_us(root) - root.capacity_used_us, 0))
    assert waits == [0, *(PAUSE_US * n for n in (1, 2, 4, 8)), PAUSE_US_MAX, PAUSE_US_MAX]


def test_what_happened_long_ago_is_forgotten():
    """A tree does not wait longer when its capacity is taken only now and then."""
    assert released("u", 5, CAPACITY_USE_MEMORY_US).capacity_used_times == 1
    assert released("u", 5, CAPACITY_USE_MEMORY_US - 1).capacity_used_times == 5
