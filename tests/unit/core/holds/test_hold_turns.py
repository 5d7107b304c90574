"""For which of several waiting trees capacity is held: priority, turns of namespaces, the longest wait, few at a time."""

from __future__ import annotations

import msgspec
import pytest
from immutables import Map

from extender.core.holds.hold_planning import (
    HOLDS_MAX,
    displaced_holds,
    trees_to_hold_for,
)
from extender.core.log.events import CapacityHeld, CapacityHoldReleased, NewEvent
from extender.core.log.reservation_state import (
    EMPTY,
    CapacityHold,
    GangState,
    LastDecision,
    UnusedHolds,
)
from extender.core.log.state_projector import HOLD_DELAY_MAX_US
from extender.core.model.ids import PlanId
from tests.unit.core.support import fold_drafts

AFTER_US = 600_000_000
NOW_US = 10_000_000_000
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


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


def unused(ended_us, until_us=0):
    """Return the holds of a namespace that were not used, an hour."""
    return UnusedHolds(held_us=HOUR_US, ended_us=ended_us, until_us=until_us or ended_us)


def turns(state, **changes):
    options = {"now_us": NOW_US, "after_us": AFTER_US} | changes
    return [root.gang for root in trees_to_hold_for(state, **options)]


def test_priority_then_unused_holds_of_the_namespace_then_the_longest_wait():
    state = a_state(
        a_root("a/old", waits_s=5_000),
        a_root("b/older", waits_s=6_000),
        a_root("c/oldest", waits_s=9_000),
        a_root("d/young", waits_s=700, priority=5),
        unused={"c": unused(NOW_US - 5_000_000)},
    )
    assert turns(state) == ["d/young", "b/older", "a/old", "c/oldest"]


@pytest.mark.parametrize(
    "root",
    [
        a_root("a/g", waits_s=599),
        a_root("a/g", when_empty="never"),
        a_root("a/g", outcome="waiting"),
        msgspec.structs.replace(a_root("a/g"), refused_since_us=0),
        msgspec.structs.replace(a_root("a/g"), last_decision=None),
        msgspec.structs.replace(a_root("a/g"), phase="pending"),
    ],
    ids=[
        "too early",
        "never fits",
        "incomplete",
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


def test_a_delayed_namespace_has_no_turn_and_a_day_after_the_delay_it_is_like_the_others():
    old, new = a_root("a/g", waits_s=9_000), a_root("b/g", waits_s=700)
    delayed = unused(NOW_US - HOUR_US, until_us=NOW_US + 1)
    assert turns(a_state(old, new, unused={"a": delayed})) == ["b/g"]
    assert turns(a_state(old, new, unused={"a": unused(NOW_US - 1)})) == ["b/g", "a/g"]
    forgotten = unused(NOW_US - DAY_US - 1)
    assert turns(a_state(old, new, unused={"a": forgotten})) == ["a/g", "b/g"]


def test_a_tree_whose_hold_was_not_used_comes_after_the_others_of_its_namespace():
    """One that can never be admitted does not keep its neighbours from their turn."""
    stuck = a_root("a/stuck", waits_s=9_000, no_hold_until_us=NOW_US - 1)
    young = a_root("a/young", waits_s=700)
    assert turns(a_state(stuck, young, unused={"a": unused(NOW_US - 1)})) == ["a/young", "a/stuck"]
    assert turns(a_state(stuck, young)) == ["a/stuck", "a/young"], "it is forgotten"


class HeldTree:
    """A tree for which capacity is held again and again; the state is the fold of the events."""

    def __init__(self, gang="a/g", longest_us=HOUR_US):
        self.root = a_root(gang)
        self.state, self.now_us, self.longest_us = a_state(self.root), 0, longest_us

    def fold(self, data):
        draft = NewEvent(gang_uid=self.root.uid, gang=self.root.gang, data=data, actor="", cause="")
        self.state = fold_drafts(self.state, [draft], at_us=self.now_us)

    def hold(self, lasts_us=HOUR_US, reason="expired"):
        """Hold capacity, and end it; return for how long the namespace gets none."""
        name = PlanId(f"hold-{self.now_us}")
        self.fold(
            CapacityHeld(
                hold=name, kind="PodGroup", priority=0, waiting_since_us=0,
                until_us=self.now_us + self.longest_us, groups=(), shapes=(), assignments=(), fitting=0,
            )
        )  # fmt: skip
        self.now_us += lasts_us
        self.fold(CapacityHoldReleased(hold=name, reason=reason))
        delayed = self.state.unused_holds.get("a")
        return max(delayed.until_us - self.now_us, 0) if delayed is not None else 0


def test_the_delay_of_a_namespace_doubles_up_to_a_day():
    """A tree that is never admitted has an hour of 25 in the end."""
    tree = HeldTree()
    delays = []
    for _ in range(8):
        delays.append(tree.hold())
        tree.now_us += delays[-1]
    assert [delay // HOUR_US for delay in delays] == [1, 2, 4, 8, 16, 24, 24, 24]
    assert delays[-1] == HOLD_DELAY_MAX_US
    tree.now_us += DAY_US + 1
    assert tree.hold() == HOUR_US, "a day without a hold forgets the earlier ones"


def test_short_holds_delay_shortly_until_they_are_an_hour_together():
    tree = HeldTree()
    minute_us = HOUR_US // 60
    delays = []
    for _ in range(62):
        delays.append(tree.hold(minute_us, reason="changed"))
        tree.now_us += delays[-1]
    assert delays == [minute_us] * 60 + [2 * minute_us] * 2


@pytest.mark.parametrize("reason", ["admitted", "node-lost", "preempting", "disabled"])
def test_a_hold_that_was_used_or_that_others_ended_delays_nothing(reason):
    tree = HeldTree()
    assert tree.hold(reason=reason) == 0
    assert tree.state.unused_holds == Map()


def test_a_hold_that_a_higher_priority_ended_counts_for_the_next_delay():
    """Trees of rising priority of one namespace that take the turn from each other do not hold for longer."""
    tree = HeldTree()
    assert tree.hold(reason="superseded") == 0
    assert tree.hold(reason="superseded") == 0
    assert tree.hold() == 4 * HOUR_US
