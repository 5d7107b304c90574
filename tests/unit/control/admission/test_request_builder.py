"""Which trees are pending is found from what has changed, and is the same as a look at all of them."""

from __future__ import annotations

import random

import pytest

from extender.control.admission import request_builder
from extender.control.admission.request_builder import RequestBuilder
from extender.core.admit.node_rejections import RejectionEvidence
from extender.core.admit.plan_request import EMPTY_HINTS
from extender.core.log.events import ReleasedPod, ReservationReleased
from extender.core.log.reservation_state import EMPTY
from extender.core.model.cluster_view import forest_after, forest_of
from extender.core.model.ids import NodeName, PlanId
from extender.core.model.pods import GATE
from extender.settings import Settings
from tests.support.service.fakes import FakeClock, FakeCluster
from tests.support.service.manifest_builders import a_group, a_node, a_pod
from tests.unit.core.reconcile.test_cluster_reconciliation import admitted
from tests.unit.core.support import folded

NAMES = ("a", "b", "c", "d")
STEPS = 40


def a_builder() -> RequestBuilder:
    return RequestBuilder(Settings(), FakeClock(), RejectionEvidence(), frozenset, frozenset)


class Life:
    """Groups of one cluster that come, are admitted and released, change, and go, at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = FakeCluster(a_node("n0", gpu=64))
        self.state = EMPTY
        self.made = 0

    def step(self) -> None:
        """Change one thing."""
        name = self.chance.choice(NAMES)
        if name not in {key.name for key in self.cluster.seen.groups}:
            self.cluster.add(a_group(name, gang=1))
            return
        act = self.chance.choice(
            (self._come, self._come, self._admit, self._release, self._bind, self._end, self._spoil)
        )
        act(name)

    def _pods(self, name: str) -> list[str]:
        group = self.cluster.group(name).key
        return sorted(pod.name for pod in self.cluster.seen.pods.values() if pod.group == group)

    def _come(self, name: str) -> None:
        self.made += 1
        self.cluster.add(a_pod(f"{name}-{self.made}", name, schedulingGates=[{"name": GATE}]))

    def _admit(self, name: str) -> None:
        waiting = [n for n in self._pods(name) if self.cluster.pod(n).node is None]
        if waiting:
            self.state = admitted(self.state, self.cluster, name, dict.fromkeys(waiting, "n0"))

    def _release(self, name: str) -> None:
        root = self.state.gangs.get(self.cluster.group(name).uid)
        if root is not None and root.reservations:
            held = next(iter(root.reservations.values()))
            pods = (ReleasedPod(pod=held.pod, uid=held.uid, node=held.node),)
            data = ReservationReleased(
                plan=PlanId(held.plan), reason="expired", pods=pods, message=""
            )
            self.state = folded(self.state, (root.uid, root.gang, data))

    def _bind(self, name: str) -> None:
        for pod in self._pods(name):
            self.cluster.change_pod(pod, node=NodeName("n0"), gates=())

    def _end(self, name: str) -> None:
        if pods := self._pods(name):
            self.cluster.delete_pod(self.chance.choice(pods))
        else:
            self.cluster.delete_group(name)

    def _spoil(self, name: str) -> None:
        """Let a parent that does not exist come or go: a group that names one belongs to no tree."""
        parent = None if self.cluster.group(name).parent else name
        self.cluster.change_group(name, parent=parent)


@pytest.mark.parametrize("seed", range(25))
def test_it_finds_what_a_builder_without_a_past_finds(seed, monkeypatch):
    """Also where the cache of parts is pruned all the time, and where trees are held."""
    monkeypatch.setattr(request_builder, "PARTS_MIN", -10)
    life, follows, found = Life(seed), a_builder(), 0
    view = life.cluster.seen
    forest = forest_of(view)
    held: set[str] = set()
    follows.is_held = lambda root: root.key.name in held
    for _ in range(STEPS):
        life.step()
        held = {name for name in NAMES if life.chance.random() < 0.1}
        anew = a_builder()
        anew.is_held = follows.is_held
        forest, view = forest_after(view, forest, life.cluster.seen), life.cluster.seen
        answers = []
        for builder in (follows, anew):
            pending = list(builder.pending(life.state, forest, EMPTY_HINTS))
            parts = [None if part is None else (part.root, part.shapes) for _, part in pending]
            answers.append(([tree.root.key for tree, _ in pending], parts, builder.holds_back))
        assert answers[0] == answers[1]
        found += len(answers[0][0])
    assert found, "nothing was ever pending"
