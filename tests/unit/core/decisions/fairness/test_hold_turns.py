"""For which of several waiting trees capacity is held: priority, turns of namespaces, the longest wait, few at a time."""

from __future__ import annotations

import msgspec
import pytest
from immutables import Map

from extender.core.decisions.fairness.hold_turns import (
    HOLDS_MAX,
    displaced_holds,
    trees_to_hold_for,
)
from extender.core.log.reservation_state import (
    EMPTY,
    CapacityHold,
    GangState,
    LastDecision,
)

AFTER_US = 600_000_000
NOW_US = 10_000_000_000


def a_root(gang, *, priority=0, waits_s=1_000, outcome="impossible", when_empty="now", **changes):
    decision = LastDecision(
        outcome=outcome, reasons=("no capacity",), position=1, at_us=1, when_empty=when_empty
    )
    known = GangState(uid=f"uid-{gang}", gang=gang, kind="PodGroup", priority=priority)
    return msgspec.structs.replace(
        known,
        phase="unschedulable",
        refused_since_us=NOW_US - waits_s * 1_000_000,
        last_decision=decision,
        **changes,
    )


def a_hold(gang, *, priority=0, position=1):
    return CapacityHold(
        hold=f"hold-{gang}", gang_uid=f"uid-{gang}", gang=gang, kind="PodGroup", priority=priority,
        position=position, at_us=0, until_us=NOW_US, waiting_since_us=0, groups=(), pods=(),
    )  # fmt: skip


def a_state(*roots, holds=(), unused=()):
    return msgspec.structs.replace(
        EMPTY,
        gangs=Map({root.uid: root for root in roots}),
        capacity_holds=Map({hold.gang_uid: hold for hold in holds}),
        unused_holds=Map(dict(unused)),
    )


def turns(state, **changes):
    options = {"now_us": NOW_US, "after_us": AFTER_US} | changes
    return [root.gang for root in trees_to_hold_for(state, **options)]


def test_priority_then_unused_holds_of_the_namespace_then_the_longest_wait():
    state = a_state(
        a_root("a/old", waits_s=5_000),
        a_root("b/older", waits_s=6_000),
        a_root("c/oldest", waits_s=9_000),
        a_root("d/young", waits_s=700, priority=5),
        unused={"c": NOW_US - 5_000_000},
    )
    assert turns(state) == ["d/young", "b/older", "a/old", "c/oldest"]


@pytest.mark.parametrize(
    "root",
    [
        a_root("a/g", waits_s=599),
        a_root("a/g", when_empty="never"),
        a_root("a/g", outcome="waiting"),
        a_root("a/g", no_hold_until_us=NOW_US + 1),
        msgspec.structs.replace(a_root("a/g"), refused_since_us=0),
        msgspec.structs.replace(a_root("a/g"), last_decision=None),
        msgspec.structs.replace(a_root("a/g"), phase="pending"),
    ],
    ids=[
        "too early",
        "never fits",
        "incomplete",
        "had one lately",
        "not refused",
        "not planned",
        "pending",
    ],
)
def test_trees_without_a_turn(root):
    assert turns(a_state(root)) == []
    assert turns(a_state(a_root("a/g"))) == ["a/g"]


def test_none_for_paused_trees_and_none_when_switched_off():
    state = a_state(a_root("a/g"), a_root("b/h"))
    assert turns(state, paused=["uid-a/g"]) == ["b/h"]
    assert turns(state, after_us=0) == []


def test_a_namespace_has_one_hold_of_a_priority_or_above():
    held = a_hold("a/held", priority=5)
    state = a_state(
        a_root("a/g", priority=5), a_root("a/first", priority=6), a_root("b/g"), holds=[held]
    )
    assert turns(state) == ["a/first", "b/g"]
    assert displaced_holds(state, state.gangs["uid-a/first"]) == (held,)
    assert displaced_holds(state, state.gangs["uid-b/g"]) == ()


def test_beyond_the_limit_only_a_higher_priority_gets_one_and_the_lowest_newest_ends():
    holds = [a_hold(f"n{i}/h", priority=i // 2, position=i + 1) for i in range(HOLDS_MAX)]
    state = a_state(a_root("x/low"), a_root("y/high", priority=9), holds=holds)
    assert turns(state) == ["y/high"]
    assert displaced_holds(state, state.gangs["uid-y/high"]) == (holds[1],)
