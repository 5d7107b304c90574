"""Who must leave which claims free; and several preemptors on one node find their capacity whichever pods end first."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from extender.core.capacity.capacity_claims import (
    CLAIM_RULES,
    claims_against,
    held_beyond_victims,
    held_by_preemptor,
    not_free,
)
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.log.reservation_state import EMPTY, PendingPreemption, claims_by_node
from extender.core.model.ids import Epoch, GangUid, NodeName, PlanId, PodUid, Position
from extender.core.verbs.filter_and_prioritize import free_beside_held
from tests.support.hypothesis_profile import examples
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, a_node, a_pod

NODE = NodeName("n0")


def preemption(number, gpus, awaited):
    claim = CapacityClaim(
        kind="preemption", plan=PlanId(f"plan-{number}"), gang_uid=GangUid(f"gang-{number}"), pod=f"default/p{number}",
        uid=PodUid(f"p{number}"), group="", node=NODE, requests={GPU: gpus}, priority=50 - number, at_us=0,
    )  # fmt: skip
    return PendingPreemption(
        id=PlanId(f"plan-{number}"), gang_uid=GangUid(f"gang-{number}"), gang=f"default/g{number}", kind="PodGroup",
        priority=50 - number, position=Position(number + 1), epoch=Epoch(1), at_us=0, progress_us=0, units=(),
        priorities=(), victims=Map(), claims=Map({NODE: (claim,)}), already_terminating=frozenset(awaited),
    )  # fmt: skip


@st.composite
def claims(draw):
    """Pods of one to three GPUs on a node, and up to four preemptors that wait for some of them."""
    cluster = FakeCluster(a_node("n0", gpu=64))
    sizes = draw(st.lists(st.integers(1, 3), max_size=4))
    cluster.add(*(a_pod(f"v{n}", node="n0", requests={GPU: gpus}) for n, gpus in enumerate(sizes)))
    going = {cluster.pod(f"v{n}").uid: gpus for n, gpus in enumerate(sizes)}
    some = st.sets(st.sampled_from(sorted(going))) if going else st.just(set())
    wanted = draw(st.lists(st.tuples(st.integers(1, 4), some), min_size=1, max_size=4))
    return cluster.seen, going, wanted


def needed(going, wanted):
    """Return the most that some of the preemptors need beside the pods that any of them waits for."""
    return max(
        sum(gpus for gpus, _ in some) - sum(going[uid] for uid in set().union(*(of for _, of in some)))
        for size in range(1, len(wanted) + 1)
        for some in combinations(wanted, size)
    )  # fmt: skip


@examples(300, quick=60)
@given(claims())
def test_what_is_held_is_what_they_need(case):
    """Never less; and for two preemptors, as nearly always, not more."""
    view, going, wanted = case
    pending = [preemption(n, gpus, awaited) for n, (gpus, awaited) in enumerate(wanted)]
    held = held_beyond_victims(view, pending, NODE).get(GPU, 0)
    assert held >= max(needed(going, wanted), 0)
    if len(wanted) <= 2:
        assert held == max(needed(going, wanted), 0)
    by = held_by_preemptor(view, reversed(pending), NODE)
    assert [one for one, _ in by] == pending, "the highest priority first"
    assert sum(amounts.get(GPU, 0) for _, amounts in by) == held


# --- who must leave which kind free


def one_claim(kind, ended=False):
    """Return a state with one claim of 2 GPUs for a pod of priority 5, whose gang preempts."""
    claim = msgspec.structs.replace(
        *preemption(45, 2, ()).claims[NODE], kind=kind, uid=PodUid("expected")
    )
    pending = msgspec.structs.replace(
        preemption(45, 2, ()), claims=Map({NODE: (claim,)}), ended=ended
    )
    return msgspec.structs.replace(
        EMPTY, claims_on=claims_by_node([claim]), preemptions=Map({claim.gang_uid: pending})
    )


def kept(state, view, priority, gang_uid="other", *, lower=False):
    """Return how many GPUs a tree or pod must leave free."""
    claims = claims_against(state, NODE, priority=priority, gang_uid=gang_uid, lower=lower)
    return not_free(view, state, NODE, claims, gang_uid).get(GPU, 0)


@pytest.mark.parametrize("kind", CLAIM_RULES)
def test_who_must_leave_a_claim_free(kind):
    view, state = FakeCluster(a_node("n0", gpu=8)).seen, one_claim(kind)
    assert [kept(state, view, priority) for priority in (4, 5, 6)] == [2, 2, 0]
    own = 2 * (kind == "move")  # until the member has left, see `test_moves`
    assert kept(state, view, 5, "gang-45") == own, "its own gang"
    from_higher = kind in ("reservation", "preemption")
    assert kept(state, view, 6, lower=True) == 2 * from_higher
    assert kept(one_claim(kind, ended=True), view, 6, lower=True) == 0, "its preemption has ended"


@pytest.mark.parametrize("kind", CLAIM_RULES)
def test_a_claim_counts_until_its_pod_uses_it(kind):
    cluster = FakeCluster(a_node("n0", gpu=8))
    cluster.add(a_pod("expected", node="n0", requests={GPU: 2}))
    claim = msgspec.structs.replace(
        next(iter(one_claim(kind).claims_on[NODE].values())), uid=cluster.pod("expected").uid
    )
    pending = msgspec.structs.replace(preemption(45, 2, ()), claims=Map({NODE: (claim,)}))
    state = msgspec.structs.replace(
        EMPTY, claims_on=claims_by_node([claim]), preemptions=Map({claim.gang_uid: pending})
    )
    assert kept(state, cluster.seen, 5) == 0
    other = a_pod("other", requests={GPU: 7})
    cluster.add(other)
    examined = free_beside_held(cluster.seen, state, NODE, cluster.pod("other")) is not None
    assert examined == (kind in ("preemption", "replacement"))


def test_a_capacity_hold_leaves_the_capacity_of_a_lost_member_to_its_gang():
    view = FakeCluster(a_node("n0", gpu=8)).seen
    (hold,) = one_claim("hold").claims_on[NODE].values()
    lost = msgspec.structs.replace(
        hold, kind="replacement", gang_uid=GangUid("other"), uid=PodUid("lost"), requests={GPU: 1}
    )
    state = msgspec.structs.replace(EMPTY, claims_on=claims_by_node([hold, lost]))
    assert kept(state, view, 5) == 1
    assert kept(state, view, 5, "third") == 3
