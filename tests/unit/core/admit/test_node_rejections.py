"""What a refusal teaches: where else to look first, and until when it counts."""

from __future__ import annotations

import msgspec

from extender.core.admit.node_rejections import (
    NodeRejections,
    RejectionEvidence,
    decide_rejections,
)
from extender.core.admit.plan_request import TreeParts, plan_request
from extender.core.admit.verdict_events import EventContext, decide_verdict
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.log.events import NodeRejected
from extender.core.log.reservation_state import EMPTY, RejectionKey
from extender.core.model.ids import NodeName, PlanId, PodUid
from extender.core.model.pods import NEEDS_PODS
from extender.core.planner.plan_types import Plan
from extender.core.planner.planning import plan
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, a_gang, a_node
from tests.unit.core.support import fold_drafts, folded

CLAIM = ("resource claim device",)


class Scene:
    """Eight nodes, and a gang of two with claims that the planner knows nothing about."""

    def __init__(self, pods=2):
        self.cluster = FakeCluster(
            *(a_node(f"n{i}", gpu=8) for i in range(8)),
            *a_gang("g", pods=pods, requests={GPU: 8}),
        )
        for n in range(pods):
            shape = self.cluster.pod(f"g-{n}").shape
            self.cluster.change_pod(
                f"g-{n}", shape=msgspec.structs.replace(shape, unmodelled=CLAIM)
            )
        self.state = EMPTY
        self.suspicions = RejectionEvidence()
        self.book = NodeRejections()
        self.now_ms = 0

    def plan(self):
        view = self.cluster.seen
        tree = forest_of(view).trees[self.cluster.group("g").key]
        root = self.state.gangs.get(tree.root.uid)
        part = TreeParts().of(tree, root, self.suspicions.hints(view))
        rejections = self.book.holding(view, self.state, self.now_ms)
        request = plan_request(
            view, self.state, part, rows=NodeRowCache(), budget=1000, rejections=rejections
        )
        verdict = plan(request)
        assert isinstance(verdict, Plan)
        recipe = EventContext(plan=PlanId(f"p{self.now_ms}"), digest="", actor="test", cause="test")
        drafts = decide_verdict(self.state, tree, request, verdict, recipe)
        self.state = fold_drafts(self.state, drafts)
        return {a.pod.partition("/")[2]: a.node for a in verdict.assignments}

    def refuse(self, *pods, offered=()):
        """Let kube-scheduler refuse some members, again after it has settled, and learn."""
        view = self.cluster.seen
        held = next(iter(self.state.gangs.values())).reservations
        for name in pods:
            reservation = held[self.cluster.pod(name).uid]
            names = [NodeName(n) for n in offered]
            self.suspicions.suspect(view, reservation, self.now_ms, offered=names, native=False)
        self.now_ms += 2_000
        refused = self.suspicions.confirmed(view, self.state, self.now_ms)
        drafts = decide_rejections(view, self.state, refused, (), actor="test", now_ms=self.now_ms)
        self.state = fold_drafts(self.state, drafts, at_us=self.now_ms * 1000)


def test_what_was_offered_instead_is_tried_next_and_shared_out():
    """Two refusals teach a gang of two where to go, not eight; each gets a node of its own."""
    scene = Scene()
    assert set(scene.plan().values()) == {"n0", "n1"}
    scene.refuse("g-0", "g-1", offered=["n5", "n7"])
    assert set(scene.plan().values()) == {"n5", "n7"}


def test_a_hint_is_never_a_reason():
    """An offered node that the model knows to be full is not waited for."""
    scene = Scene()
    scene.plan()
    scene.refuse("g-0", "g-1", offered=["n5"])
    scene.cluster.change_node("n5", unschedulable=True)
    where = scene.plan()
    assert len(where) == 2
    assert "n5" not in where.values()


def test_hints_end_with_their_pods():
    """Got through, bound, gone."""
    scene = Scene(pods=3)
    scene.plan()
    held = next(iter(scene.state.gangs.values())).reservations
    scene.refuse("g-0", "g-1", "g-2", offered=["n5"])
    assert len(scene.suspicions.hints(scene.cluster.seen)) == 3
    scene.suspicions.accept(held[scene.cluster.pod("g-0").uid], scene.now_ms)
    scene.cluster.change_pod("g-1", node=NodeName("n1"))
    scene.cluster.delete_pod("g-2")
    assert scene.suspicions.hints(scene.cluster.seen) == {}


def test_a_member_that_needs_others_is_planned_again_alone():
    """The others wait at bind: given back, they would vanish from kube-scheduler's sight (H10)."""
    scene = Scene()
    shape = scene.cluster.pod("g-1").shape
    needs = msgspec.structs.replace(shape, unmodelled=(f"{NEEDS_PODS}zone",))
    scene.cluster.change_pod("g-1", shape=needs)
    first = scene.plan()
    scene.refuse("g-1", offered=["n5"])
    (root,) = scene.state.gangs.values()
    assert [r.pod for r in root.reservations.values()] == ["default/g-0"]
    assert scene.plan() == {"g-1": "n5"}
    (root,) = scene.state.gangs.values()
    assert {r.pod: r.node for r in root.reservations.values()} == {
        "default/g-0": first["g-0"], "default/g-1": "n5",
    }  # fmt: skip


def test_claims_are_a_pods_own():
    """A device that one pod does not get may be there for another: the rejection is by pod."""
    scene = Scene()
    scene.plan()
    scene.refuse("g-0")
    (key,) = scene.state.rejections
    assert not scene.state.rejections[key].by_shape
    assert scene.state.rejections[key].until_ms > scene.now_ms


def test_a_rejection_is_forgotten_when_pod_or_node_change():
    """Also when the pod's claim was bound meanwhile: what the model sees now, it judges itself."""
    scene = Scene()
    scene.plan()
    pod = scene.cluster.pod("g-0")
    root = scene.cluster.group("g").uid
    for change in (
        lambda: scene.cluster.change_node("n0", labels={"driver": "there"}),
        lambda: scene.cluster.change_pod("g-0", shape=msgspec.structs.replace(pod.shape, unmodelled=())),
        lambda: scene.cluster.delete_pod("g-0"),
    ):  # fmt: skip
        event = NodeRejected(
            pod=pod.path, uid=pod.uid, node=NodeName("n0"), by_shape=False, until_ms=9_000
        )
        state = folded(scene.state, (root, "default/g", event))
        key = RejectionKey(gang_uid=root, uid=PodUid(pod.uid), node=NodeName("n0"))
        book = NodeRejections()
        assert book.holding(scene.cluster.seen, state, 0) == {key}
        assert book.holding(scene.cluster.seen, state, 1) == {key}
        change()
        assert not book.holding(scene.cluster.seen, state, 2)
        assert not book.holding(scene.cluster.seen, state, 3), "it does not come back"
