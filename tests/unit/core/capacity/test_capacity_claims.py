"""Claims of several preemptors on one node: each finds its capacity, whichever of the pods that they wait for end first."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from extender.core.capacity.capacity_claims import held_beyond_victims, held_by_preemptor
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.log.preemption_state import PendingPreemption
from extender.core.model.ids import Epoch, GangUid, NodeName, PlanId, PodUid, Position
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
