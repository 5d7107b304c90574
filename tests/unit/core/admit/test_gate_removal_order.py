"""Members that are spread are let go so that kube-scheduler never refuses one, in whatever order they come."""

from __future__ import annotations

import itertools
import random

import immutables
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.admit.gate_removal_order import (
    GateRemovalStages,
    next_to_release,
    spread_rules,
)
from extender.core.log.events import GroupRecord
from extender.core.log.reservation_state import EMPTY, GangState, Reservation
from extender.core.model.ids import GangUid, NodeName, PlanId
from tests.support.hypothesis_profile import examples
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import a_node, a_pod

ZONES = "abcd"


def members(number, skew):
    spread = {
        "maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "g"}},
    }  # fmt: skip
    labels = {"labels": {"app": "g"}}
    return [
        a_pod(f"g-{n:02}", "g", metadata=labels, topologySpreadConstraints=[spread])
        for n in range(number)
    ]


def held(cluster, name, zone):
    pod = cluster.pod(name)
    return Reservation(
        kind="reservation",
        plan=PlanId("plan"), gang_uid=GangUid("r"), pod=pod.path, uid=pod.uid, group="g",
        node=NodeName(zone), requests={}, priority=0, extra=False, at_us=0,
    )  # fmt: skip


@examples(150)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=4), st.data())
def test_every_member_gets_its_turn_and_none_is_refused(final, data):
    """From what runs to what is planned, one by one, each within the skew when it comes."""
    skew = data.draw(st.integers(1, 3))
    begin = [data.draw(st.integers(0, n)) for n in final]
    if max(final) - min(final) > skew or max(begin) - min(begin) > skew:
        return
    zones = ZONES[: len(final)]
    cluster = FakeCluster(
        *(a_node(z, {"zone": z}) for z in zones),
        *members(sum(final), skew),
    )
    names = [f"g-{n:02}" for n in range(sum(final))]
    plan = dict(
        zip(names, [z for z, n in zip(zones, final, strict=True) for _ in range(n)], strict=True)
    )
    for zone, n in zip(zones, begin, strict=True):
        for name in [m for m in names if plan[m] == zone][:n]:
            cluster.change_pod(name, node=NodeName(zone))
    waiting = [held(cluster, m, plan[m]) for m in names if cluster.pod(m).node is None]
    dice = random.Random(data.draw(st.integers(0, 99)))
    dice.shuffle(waiting)
    count = dict(zip(zones, begin, strict=True))
    on_way, at_bind = [], []
    while waiting or on_way:
        arrived = {r.uid for r in at_bind}
        chosen = next_to_release(cluster.seen, waiting, [*on_way, *at_bind], arrived.__contains__)
        waiting = [r for r in waiting if r not in chosen]
        on_way += chosen
        assert on_way, "no gate can be removed, and no member is on its way"
        dice.shuffle(on_way)
        for reservation in [on_way.pop() for _ in range(dice.randint(1, len(on_way)))]:
            assert count[reservation.node] + 1 - min(count.values()) <= skew
            count[reservation.node] += 1
            at_bind.append(reservation)
    assert list(count.values()) == final


@pytest.mark.parametrize("labelled", [True, False])
def test_a_member_that_its_own_rule_does_not_mean_is_let_go(labelled):
    cluster = FakeCluster(a_node("a", {"zone": "a"}), *members(1, 1))
    if not labelled:
        cluster.change_pod("g-00", labels={})
    one = held(cluster, "g-00", "a")
    assert next_to_release(cluster.seen, [one], [], lambda uid: False) == (one,)


def test_only_spread_takes_turns():
    cluster = FakeCluster(a_node("a"), *members(1, 1), a_pod("x"))
    assert len(spread_rules(cluster.seen, held(cluster, "g-00", "a"))) == 1
    assert spread_rules(cluster.seen, held(cluster, "x", "a")) == ()
    gone = msgspec.structs.replace(held(cluster, "x", "a"), uid="gone")
    assert spread_rules(cluster.seen, gone) == ()
    assert list(itertools.chain(next_to_release(cluster.seen, [], [], lambda uid: True))) == []


NEEDS = {
    "affinity": {
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": {"app": "g"}}, "topologyKey": "zone"}
            ]
        }
    }
}
COMMITS = {"resourceClaims": [{"name": "device", "resourceClaimName": "mine"}]}
KINDS = {"plain": {}, "commits": COMMITS, "needs": NEEDS, "both": COMMITS | NEEDS}
ORDER = {"plain": 0, "commits": 1, "needs": 2, "both": 2}


def tree_of(cluster, leaves):
    """Return the state in which a Basic root holds capacity for every pod of its gangs."""
    held_ = {}
    groups = [GroupRecord(kind="CompositePodGroup", name="root", basic=True)]
    for leaf, kinds in leaves.items():
        groups.append(GroupRecord(kind="PodGroup", name=leaf, parent="root", minimum=len(kinds)))
        for n, _ in enumerate(kinds):
            one = msgspec.structs.replace(held(cluster, f"{leaf}-{n}", "a"), group=leaf)
            held_[one.uid] = one
    root = GangState(
        uid=GangUid("r"),
        gang="default/root",
        groups=tuple(groups),
        reservations=immutables.Map(held_),
    )
    return msgspec.structs.replace(EMPTY, gangs=immutables.Map({root.uid: root})), list(
        held_.values()
    )


@examples(150)
@given(
    st.lists(
        st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4), min_size=1, max_size=2
    ),
    st.randoms(use_true_random=False),
)
def test_what_is_committed_comes_after_its_own_gang_and_who_needs_pods_after_all(kinds, dice):
    """Every member is released, in whatever order they arrive; members of a sibling do not hold up a commit."""
    leaves = {f"l{n}": found for n, found in enumerate(kinds)}
    kind_of = {f"default/{leaf}-{n}": k for leaf, ks in leaves.items() for n, k in enumerate(ks)}
    pods = [
        a_pod(f"{leaf}-{n}", leaf, **KINDS[kind])
        for leaf, found in leaves.items() for n, kind in enumerate(found)
    ]  # fmt: skip
    cluster = FakeCluster(a_node("a", {"zone": "a"}), *pods)
    state, waiting = tree_of(cluster, leaves)
    arrived, on_way = set(), []
    while waiting or on_way:
        stages = GateRemovalStages(cluster.seen, state, arrived.__contains__)
        going = [r for r in waiting if not stages.must_wait(r)]
        for r in going:
            mine = ORDER[kind_of[r.pod]]
            behind = [
                o for o in (*waiting, *on_way)
                if ORDER[kind_of[o.pod]] < mine and (mine == 2 or o.group == r.group)
            ]  # fmt: skip
            assert not behind, (r.pod, behind)
        waiting = [r for r in waiting if r not in going]
        on_way += going
        assert on_way, "no gate can be removed, and no member is on its way"
        arrived.add(on_way.pop(dice.randrange(len(on_way))).uid)
