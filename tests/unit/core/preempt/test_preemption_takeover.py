"""A preemptor of higher priority and a pending preemption: capacity is never claimed twice, and every loss is recorded."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from extender.core.admit.plan_request import TreeParts, ruled_part
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.log.events import (
    GangRemoved,
    GangScheduled,
    MemberTerminated,
    NewEvent,
    PodBound,
    PreemptionCancelled,
    PreemptionPlanned,
    ReleasedPod,
    ReservationReleased,
    VictimGone,
)
from extender.core.log.reservation_state import EMPTY, EVICTION_MEMORY_US
from extender.core.model.ids import Epoch, NodeName, PlanId
from extender.core.planner.codec.request_codec import decode, encode
from extender.core.planner.plan_types import Plan
from extender.core.planner.planning import plan
from extender.core.planner.preempt.victim_search import PreemptionPlan, preempt
from extender.core.preempt.disruption_units import EvictableContext
from extender.core.preempt.preemption_lifecycle import (
    EvictionContext,
    takeovers_by_plan,
    takeovers_by_pods,
)
from extender.core.preempt.preemption_planning import (
    decide_preemption,
    preemption_request,
    recently_evicted_units,
)
from extender.core.reconcile.reservation_checks import oversubscribed_on, reserved_capacity_users
from extender.core.verbs.filter_and_prioritize import decide_filter
from tests.support.hypothesis_profile import examples
from tests.support.planning import preemption_checker
from tests.support.service.fakes import forest_of
from tests.support.service.manifest_builders import GPU, a_group, a_node, a_pod
from tests.unit.core.preempt.test_disruption_units import RECIPE, Case, gang
from tests.unit.core.support import fold_drafts, folded

ONE = {GPU: 1}
RACK = "net/rack"
KNOWN = EvictionContext(actor="me", cause="test", epoch=Epoch(1), now_us=0)


def oversubscribed(case):
    """Return the reservations that do not fit any more."""
    names = case.state.claims_on
    return {uid for name in names for uid in oversubscribed_on(case.view, case.state, name)}


class Two(Case):
    """A cluster in which `mid` (50) makes capacity, and `high` (100) comes."""

    def request_of(self, name):
        tree, view, state = self.tree(name), self.view, self.state
        part = TreeParts().of(tree, state.gangs.get(tree.root.uid))
        ruled = ruled_part(view, state, part, rows=NodeRowCache())
        request = self.request(name)
        return preemption_request(
            view, state, forest_of(view), tree, request, ruled=ruled, moment=EvictableContext()
        )

    def ask(self, name):
        """Plan a tree; fold the preemption that comes of it with the takeovers that it causes."""
        verdict = plan(self.request(name))
        if isinstance(verdict, Plan):
            return verdict, []
        asked = self.request_of(name)
        found = preempt(asked)
        if not isinstance(found, PreemptionPlan):
            return found, []
        assert preemption_checker.faults(asked, found) == []
        return found, self.record(name, asked, found)

    def record(self, name, asked, found):
        """Fold the preemption of a tree with the takeovers that it causes; return the events."""
        recipe = msgspec.structs.replace(RECIPE, plan=PlanId(f"for {name}"))
        *first, planned = decide_preemption(
            self.view, self.state, forest_of(self.view), self.tree(name), asked, found, recipe
        )
        drafts = [*first, *takeovers_by_plan(self.view, self.state, planned, KNOWN), planned]
        self.state = fold_drafts(self.state, drafts)
        return drafts

    def pending(self, name):
        return self.state.preemptions[self.tree(name).root.uid]

    def too_much(self, more=()):
        """Name nodes on which pods that stay, capacity that is made and `more` pods of one GPU do not fit together."""
        going = {uid for p in self.state.preemptions.values() for uid in p.victims}
        used = dict.fromkeys(self.view.nodes, 0)
        for name, pods in self.view.on_node.items():
            used[name] += sum(1 for u, p in pods.items() if u not in going and not p.deleting)
        for pending in self.state.preemptions.values():
            for node, claims in pending.claims.items():
                used[node] += 0 if pending.ended else len(claims)
        for node in more:
            used[node] += 1
        return [n for n, gpus in used.items() if gpus > self.view.nodes[n].allocatable[GPU]]


@st.composite
def stories(draw):
    """Nodes with one to three GPUs, mostly full of single pods; `mid` and `high` want one to three of them."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    pods = [
        a_pod(
            f"low-{n}-{i}", node=f"n{n}", requests=ONE, priority=draw(st.sampled_from([1, 1, 60]))
        )
        for n, gpus in enumerate(sizes)
        for i in range(draw(st.integers(max(gpus - 1, 0), gpus)))
    ]
    mid, high = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    case = Two(
        *(a_node(f"n{n}", gpu=gpus) for n, gpus in enumerate(sizes)),
        *pods,
        *gang("mid", mid, 50, requests=ONE),
        *gang("high", high, 100, requests=ONE),
        *gang("late", draw(st.integers(1, 2)), 100, requests=ONE),
    )
    fate = st.sampled_from(["runs", "terminates", "gone"])
    return case, [draw(fate) for _ in pods]


@examples(100, quick=10)
@given(stories())
def test_capacity_is_never_promised_twice_nor_lost_in_silence(story):
    """Whichever victims are gone: a tree that fits beside the claims goes there, and a takeover is recorded."""
    case, fates = story
    _, drafts = case.ask("mid")
    assume(drafts)
    made = case.pending("mid")
    for victim, fate in zip(
        sorted(made.victims.values(), key=lambda v: v.pod), fates, strict=False
    ):
        name = victim.pod.partition("/")[2]
        if fate == "terminates":
            case.cluster.change_pod(name, deleting=True)
        elif fate == "gone":
            case.cluster.delete_pod(name)
            event = VictimGone(
                preemption=made.id, unit=victim.unit, pod=victim.pod, uid=victim.uid, node=victim.node,
                via="deleted", requested_us=1, gone_us=2,
            )  # fmt: skip
            case.state = folded(case.state, (made.gang_uid, "default/mid", event))
    assert case.too_much() == []
    found, drafts = case.ask("high")
    if isinstance(found, Plan):
        assert case.too_much(more=[a.node for a in found.assignments]) == []
        assert not case.pending("mid").ended
        return
    late = plan(case.request("late"))
    if isinstance(late, Plan):
        assert case.too_much(more=[a.node for a in late.assignments]) == []
    ends = [d.data for d in drafts if isinstance(d.data, PreemptionCancelled)]
    plans = [d.data for d in drafts if isinstance(d.data, PreemptionPlanned)]
    if not plans:
        assert not case.pending("mid").ended
        return
    assert [s.gang for s in plans[0].superseded] == ["default/mid"] * len(ends)
    assert case.too_much() == []
    if ends:
        (end,) = ends
        assert (end.reason, end.taken_over_by, end.taken_over_by_uid) == (
            "taken-over", "PodGroup/default/high", case.tree("high").root.uid,
        )  # fmt: skip
        assert end.taken_over_nodes, "only capacity that is used is taken over"
        kept = case.state.preemptions.get(made.gang_uid)
        assert kept is None or (kept.ended and set(kept.claims).isdisjoint(end.taken_over_nodes))
    else:
        assert not case.pending("mid").ended


def making_capacity(*more):
    case = Two(
        a_node("n0", gpu=1),
        a_node("n1", gpu=1),
        a_pod("low", node="n0", requests=ONE, priority=1),
        a_pod("vip", node="n1", requests=ONE, priority=200),
        *gang("mid", 1, 50, requests=ONE),
        *gang("high", 1, 100, requests=ONE),
        *more,
    )
    case.ask("mid")
    return case


def exclusive_gang(name, pods, priority):
    """Return a gang that has a rack alone."""
    group, *members = gang(name, pods, priority, requests=ONE)
    constraints = {"exclusive": {"key": RACK, "scope": "Cluster"}}
    group = a_group(name, gang=pods, priority=priority, schedulingConstraints=constraints)
    return [group, *members]


@pytest.mark.parametrize("lower", [gang, exclusive_gang], ids=["taken", "closed and taken"])
def test_a_rack_is_emptied_for_a_gang_that_has_it_alone_and_kept_for_it(lower):
    """D20: a node of it is free, and all of its pods go; who has a lower priority does not come into the free node meanwhile."""
    case = Two(
        *(a_node(f"n{n}", {RACK: "r0"}, gpu=2) for n in range(2)),
        *(gang("low", 2, 1, requests=ONE) if lower is gang else lower("low", 2, 1)),
        *exclusive_gang("high", 2, 100),
        *gang("mid", 1, 50, requests=ONE),
    )
    for n in range(2):
        case.cluster.change_pod(f"low-{n}", node=NodeName("n0"))
    asked = case.request_of("high")
    assert {(d.key, d.value, len(d.pods)) for d in asked.evictable.domains} == {(RACK, "r0", 2)}
    encoded = encode(asked)
    assert decode(encoded.head, encoded.parts) == asked
    found, _ = case.ask("high")
    assert [unit.name for unit in found.victims] == ["Pod/default/low-0", "Pod/default/low-1"]
    assert plan(case.request("mid")).outcome == "impossible"
    for n in range(2):
        case.cluster.delete_pod(f"low-{n}")
    assert plan(case.request("mid")).outcome == "impossible"
    assert isinstance(plan(case.request("high")), Plan)


def test_a_rack_that_is_emptied_for_one_gang_is_taken_over_by_another():
    """D20: the claims of the preemption are in it, and go with the pods; when it has ended they keep no tree out."""
    case = Two(
        *(a_node(f"n{n}", {RACK: "r0"}, gpu=2) for n in range(2)),
        *gang("low", 1, 1, requests=ONE),
        *exclusive_gang("mid", 2, 50),
        *exclusive_gang("high", 2, 100),
    )
    case.cluster.change_pod("low-0", node=NodeName("n0"))
    case.ask("mid")
    found, drafts = case.ask("high")
    assert [unit.name for unit in found.superseded] == ["PodGroup/default/mid"]
    assert any(isinstance(d.data, PreemptionCancelled) and d.gang == "default/mid" for d in drafts)
    case.cluster.delete_pod("low-0")
    assert isinstance(plan(case.request("high")), Plan)
    assert plan(case.request("mid")).outcome == "impossible"


def test_a_rack_with_a_pod_of_higher_priority_is_not_emptied():
    """D20: then none of its pods goes."""
    case = Two(
        a_node("n0", {RACK: "r0"}, gpu=4),
        *gang("low", 1, 1, requests=ONE),
        *gang("vip", 1, 200, requests=ONE),
        *exclusive_gang("high", 1, 100),
    )
    for name in ("low-0", "vip-0"):
        case.cluster.change_pod(name, node=NodeName("n0"))
    assert not case.request_of("high").evictable.domains
    found, _ = case.ask("high")
    assert found.cause == "not-triggered"


def test_an_ordinary_pod_is_kept_away_only_where_others_will_do():
    """The same pod passes where it is offered nothing else, so no preemptor of lower priority keeps it out."""
    case = making_capacity(a_pod("alone", requests=ONE, priority=60))
    case.cluster.delete_pod("low")
    case.cluster.add(a_node("n2", gpu=1))
    pod = case.cluster.pod("alone")

    def passed(*offered):
        return decide_filter(case.view, case.state, forest_of(case.view), pod, offered).passed

    assert passed("n0", "n2") == ("n2",)
    assert passed("n0") == ("n0",)


def test_pods_of_higher_priority_in_claimed_capacity_end_the_preemption():
    """One that was there before and leaves the capacity is none; one without which there would be enough is."""
    case = making_capacity(a_pod("alone", requests=ONE, priority=60))
    assert takeovers_by_pods(case.view, case.state, (), KNOWN) == []
    case.cluster.change_pod("alone", node="n0")
    (draft,) = takeovers_by_pods(case.view, case.state, (), KNOWN)
    assert (draft.data.reason, draft.data.taken_over_by, draft.data.taken_over_nodes) == (
        "taken-over", "Pod/default/alone", ("n0",),
    )  # fmt: skip
    assert draft.data.units_spared == ("Pod/default/low",), (
        "no pod is evicted for capacity that another pod has"
    )
    assert takeovers_by_pods(case.view, case.state, (draft,), KNOWN) == [], "once"
    there = {case.pending("mid").id: frozenset({case.cluster.pod("alone").uid})}
    known = msgspec.structs.replace(KNOWN, present=there)
    assert takeovers_by_pods(case.view, case.state, (), known) == [], "it was there before"


def test_who_was_evicted_is_spared_for_a_while_and_by_extras_for_ever():
    """It follows from the log, counts from the eviction, and ends with the tree."""
    case = making_capacity()
    made, low = case.pending("mid"), "Pod/default/low"
    assert recently_evicted_units(case.state, made.gang_uid, 0) == frozenset(), (
        "planned is not evicted"
    )
    (victim,) = made.victims.values()
    gone = VictimGone(
        preemption=made.id, unit=low, pod=victim.pod, uid=victim.uid, node=victim.node,
        via="deleted", requested_us=1, gone_us=2,
    )  # fmt: skip
    state = folded(case.state, (made.gang_uid, "default/mid", gone), at_us=1_000)
    assert recently_evicted_units(state, made.gang_uid, 1_000 + EVICTION_MEMORY_US - 1) == {low}
    assert recently_evicted_units(state, made.gang_uid, 1_000 + EVICTION_MEMORY_US) == frozenset()
    assert recently_evicted_units(state, "another root", 1_000) == frozenset()
    ended = msgspec.structs.replace(gone, via="ended")
    by_itself = folded(case.state, (made.gang_uid, "default/mid", ended), at_us=1_000)
    assert recently_evicted_units(by_itself, made.gang_uid, 1_000) == frozenset(), (
        "we did not do it"
    )
    later_us, whole = 1_000 + EVICTION_MEMORY_US, "PodGroup/default/low"
    state = folded(
        case.state,
        (made.gang_uid, "default/mid", msgspec.structs.replace(gone, unit=whole)),
        at_us=1_000,
    )
    bound = PodBound(plan=PlanId("p"), pod="default/mid-0", uid="mid-0", node="n0", group="mid")
    runs = folded(
        state, *((made.gang_uid, "default/mid", f) for f in (bound, GangScheduled(plan=PlanId("p"), bound=1)))
    )  # fmt: skip
    assert recently_evicted_units(runs, made.gang_uid, later_us) == {whole}, "it wants extras"
    lost = MemberTerminated(pod="default/mid-0", uid="mid-0", node="n0", cause="node-lost")
    broken = folded(runs, (made.gang_uid, "default/mid", lost))
    assert recently_evicted_units(broken, made.gang_uid, later_us) == frozenset(), (
        "it needs its minimum again"
    )
    over = folded(state, (made.gang_uid, "default/mid", GangRemoved(reason="deleted")))
    assert over.evicted_units == EMPTY.evicted_units


def test_pods_that_terminate_make_capacity_for_one_of_two_preemptors_only():
    """Both wait for the same pods; together they claim what those use and what is free beside them."""
    two = {GPU: 2}

    def on(n):
        return {"kubernetes.io/hostname": f"n{n}"}

    case = Two(
        a_node("shared", gpu=4),
        *(a_pod(f"ending-{n}", node="shared", requests=ONE, priority=60) for n in range(2)),
        *(
            part
            for n in range(2)
            for part in (
                a_node(f"n{n}", gpu=2),
                a_pod(f"low-{n}", node=f"n{n}", requests=two, priority=1),
                *gang(f"gang-{n}", 2, 50, requests=two)[:-1],
                a_pod(f"gang-{n}-1", f"gang-{n}", requests=two, priority=50, nodeSelector=on(n)),
            )
        ),
        *gang("late", 1, 50, requests=two),
        a_pod("alone", requests=two, priority=50),
    )
    for n in range(2):
        case.cluster.change_pod(f"ending-{n}", deleting=True)
    for n in range(2):
        case.ask(f"gang-{n}")
        assert "shared" in case.pending(f"gang-{n}").claims
        assert len(case.pending(f"gang-{n}").already_terminating) == 2
    assert not isinstance(plan(case.request("late")), Plan)
    pod = case.cluster.pod("alone")
    assert decide_filter(case.view, case.state, forest_of(case.view), pod, ["shared"]).passed == ()
    for n in range(2):
        case.cluster.delete_pod(f"ending-{n}")
    assert not isinstance(plan(case.request("late")), Plan)


def test_a_reservation_yields_to_the_claim_of_a_higher_priority_when_a_pod_takes_capacity():
    """kube-scheduler lets the pod use the capacity of a lower priority: it is the reservation that is lost, not the claim."""
    two = {GPU: 2}
    case = Two(
        a_node("n0", gpu=4),
        a_pod("low", node="n0", requests=two, priority=1),
        a_pod("vip", node="n0", requests=two, priority=200),
        *gang("mid", 1, 50, requests=two),
        *gang("high", 1, 100, requests=two),
    )
    case.ask("high")
    case.cluster.delete_pod("vip")
    case.admit("mid")
    case.cluster.delete_pod("low")
    assert set(case.pending("high").claims) == {"n0"}
    assert oversubscribed(case) == set()
    case.cluster.add(a_pod("alone", requests=ONE, priority=100))
    pod = case.cluster.pod("alone")
    assert decide_filter(case.view, case.state, forest_of(case.view), pod, ["n0"]).passed == ("n0",)
    case.cluster.change_pod("alone", node="n0")
    lost = oversubscribed(case)
    assert lost == {case.cluster.pod("mid-0").uid}
    held = case.state.gangs[case.tree("mid").root.uid].reservations
    (user,) = reserved_capacity_users(case.view, case.state, [held[uid] for uid in lost])
    assert (user.pod, user.via) == ("default/alone", "higher-priority")
    assert takeovers_by_pods(case.view, case.state, (), KNOWN) == []


def test_the_pod_that_took_the_capacity_of_an_admitted_preemptor_is_named():
    """And not one of higher priority that runs beside it on another of its nodes."""
    case = Two(
        a_node("n0", gpu=2),
        a_node("n1", gpu=1),
        *(a_pod(f"low-{n}", node=f"n{n}", requests=ONE, priority=1) for n in range(2)),
        a_pod("vip", node="n0", requests=ONE, priority=200),
        *gang("mid", 2, 50, requests=ONE),
    )
    case.ask("mid")
    for name in ("low-0", "low-1"):
        case.cluster.delete_pod(name)
    case.admit("mid")  # on both nodes: n0 alone cannot hold it
    case.cluster.delete_pod("vip")
    case.cluster.add(
        a_pod("beside", node="n0", requests=ONE, priority=100),
        a_pod("pusher", node="n1", requests=ONE, priority=100),
    )
    root = case.state.gangs[case.tree("mid").root.uid]
    lost = [root.reservations[uid] for uid in oversubscribed(case)]
    released = ReservationReleased(
        plan=root.plan,
        reason="superseded",
        pods=tuple(
            ReleasedPod(pod=r.pod, uid=r.uid, node=r.node) for r in root.reservations.values()
        ),
        taken_by=reserved_capacity_users(case.view, case.state, lost),
    )
    draft = NewEvent(
        gang_uid=case.tree("mid").root.uid, gang="default/mid", data=released, actor="me", cause="test"
    )  # fmt: skip
    (end,) = takeovers_by_pods(case.view, case.state, (draft,), KNOWN)
    assert (end.data.taken_over_by, end.data.taken_over_nodes) == ("Pod/default/pusher", ("n1",))


def test_a_claim_of_lower_priority_does_not_explain_a_lost_reservation():
    """The pod that took what was claimed below the reservation did not take the reservation."""
    two = {GPU: 2}
    case = Two(
        a_node("n0", gpu=5),
        a_pod("staying", node="n0", requests=two, priority=200),
        a_pod("victim", node="n0", requests=ONE, priority=1),
        a_pod("vip", node="n0", requests=two, priority=200),
        *gang("mid", 1, 50, requests=ONE),
        *gang("high", 1, 100, requests=two),
    )
    case.ask("mid")
    case.cluster.delete_pod("vip")
    case.admit("high")
    case.cluster.delete_pod("victim")
    assert set(case.pending("mid").claims) == {"n0"}
    assert oversubscribed(case) == set()
    case.cluster.change_pod("staying", assigned_us=0)
    for n in range(2):
        case.cluster.add(a_pod(f"new-{n}", node="n0", requests=ONE, priority=200))
        case.cluster.change_pod(f"new-{n}", assigned_us=n + 1)
    lost = oversubscribed(case)
    assert lost == {case.cluster.pod("high-0").uid}
    held = case.state.gangs[case.tree("high").root.uid].reservations
    users = reserved_capacity_users(case.view, case.state, [held[uid] for uid in lost])
    assert [user.pod for user in users] == ["default/new-1"]
