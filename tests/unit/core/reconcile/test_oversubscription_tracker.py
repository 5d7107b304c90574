"""A node is examined again only after a change that can make it too full, and the result is that of an examination."""

from __future__ import annotations

import msgspec
import pytest

from extender.core.model.cluster_view import with_pod, without_pod
from extender.core.model.ids import NodeName
from extender.core.model.pods import Pod
from extender.core.reconcile import reservation_checks as oversubscription_tracker
from extender.core.reconcile.reservation_checks import OversubscriptionTracker, oversubscribed_on
from tests.support.hypothesis_profile import daily
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
from tests.unit.control.admission.test_request_builder import Life
from tests.unit.core.reconcile.test_cluster_reconciliation import admitted

NODES = ("n0", "n1")
REQUESTS = {GPU: 1, "cpu": 1}  # as the admissions of `admitted` have them


class CrowdedLife(Life):
    """Members are reserved on two small nodes, and other pods come onto them, change their requests, and go."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cluster.add(a_node("n0", gpu=3), a_node("n1", gpu=3))
        self.others: list[str] = []
        self.missed: Pod | None = None

    def step(self) -> None:
        """Change one thing."""
        if self.chance.random() < 0.6:
            super().step()
        else:
            self.chance.choice(
                (
                    self._other,
                    self._resize,
                    self._end_other,
                    self._node,
                    self._miss,
                    self._terminate,
                )
            )()

    def _come(self, name: str) -> None:
        self.made += 1
        self.cluster.add(
            a_pod(f"{name}-{self.made}", name, requests=REQUESTS, schedulingGates=GATED)
        )

    def _admit(self, name: str) -> None:
        known = self.state.gang_of
        pods = [(n, self.cluster.pod(n)) for n in self._pods(name)]
        waiting = [n for n, pod in pods if pod.node is None and pod.uid not in known]
        if waiting:
            where = {pod: self.chance.choice(NODES) for pod in waiting}
            self.state = admitted(self.state, self.cluster, name, where)

    def _bind(self, name: str) -> None:
        """Most members are bound where their reservation is, others elsewhere."""
        root = self.state.gangs.get(self.cluster.group(name).uid)
        for pod in self._pods(name):
            uid = self.cluster.pod(pod).uid
            held = root.reservations.get(uid) if root is not None else None
            if held is not None and self.chance.random() < 0.7:
                node = (
                    held.node if self.chance.random() < 0.8 else NodeName(self.chance.choice(NODES))
                )
                self.cluster.change_pod(pod, node=node, gates=())

    def _other(self) -> None:
        self.made += 1
        self.others.append(f"other-{self.made}")
        node = self.chance.choice(NODES)
        self.cluster.add(a_pod(self.others[-1], node=node, requests=REQUESTS))

    def _resize(self) -> None:
        """A pod that may be bound already gets one GPU more, or has one again."""
        pods = sorted(pod.name for pod in self.cluster.seen.pods.values())
        if pods:
            pod = self.cluster.pod(self.chance.choice(pods))
            requests = dict(pod.shape.requests)
            requests[GPU] = 3 - requests[GPU]
            shape = msgspec.structs.replace(pod.shape, requests=tuple(sorted(requests.items())))
            self.cluster.change_pod(pod.name, shape=shape)

    def _miss(self) -> None:
        """A pod is gone from the view and comes back, as when a list of all pods is read from an older cache."""
        if self.missed is not None:
            self.cluster.seen = with_pod(self.cluster.seen, self.missed)
            self.missed = None
        elif pods := sorted(self.cluster.seen.pods.values(), key=lambda pod: pod.name):
            self.missed = self.chance.choice(pods)
            self.cluster.seen = without_pod(self.cluster.seen, self.missed.uid)

    def _terminate(self) -> None:
        pods = sorted(p.name for p in self.cluster.seen.pods.values() if p.node is None)
        if pods and self.chance.random() < 0.5:
            self.cluster.change_pod(self.chance.choice(pods), deleting=True)

    def _end_other(self) -> None:
        if self.others and self.missed is None:
            self.cluster.delete_pod(self.others.pop(self.chance.randrange(len(self.others))))

    def _node(self) -> None:
        allocatable = {GPU: self.chance.randint(1, 4), "cpu": 64_000, "pods": 110}
        self.cluster.change_node(self.chance.choice(NODES), allocatable=allocatable)


@pytest.mark.parametrize("seed", daily(10, range(40)))
def test_it_finds_what_an_examination_finds(seed, monkeypatch):
    """Also where it is asked after some of the changes only, and forgets nodes all the time."""
    if seed % 2:
        monkeypatch.setattr(oversubscription_tracker, "NODES_MIN", -10)
    life, tracker, found = CrowdedLife(seed), OversubscriptionTracker(), 0
    for _ in range(300):
        life.step()
        if life.chance.random() < 0.3:
            continue
        for node in NODES:
            expected = tuple(oversubscribed_on(life.cluster.seen, life.state, node))
            assert tracker.oversubscribed_on(life.cluster.seen, life.state, node) == expected
            found += len(expected)
    assert found, "every node was large enough all the time"


def test_members_that_are_bound_as_reserved_cause_no_examination(monkeypatch):
    """A node with sixty members would be examined sixty times, each time through all of them."""
    examined = []

    def counting(view, state, name):
        examined.append(name)
        return oversubscribed_on(view, state, name)

    monkeypatch.setattr(oversubscription_tracker, "oversubscribed_on", counting)
    life, tracker = CrowdedLife(0), OversubscriptionTracker()
    life.cluster.add(*a_gang("g", pods=3, requests=REQUESTS, schedulingGates=GATED))
    names = ["g-0", "g-1", "g-2"]
    life.state = admitted(life.state, life.cluster, "g", dict.fromkeys(names, "n0"))
    for name in names:
        assert tracker.oversubscribed_on(life.cluster.seen, life.state, "n0") == ()
        life.cluster.change_pod(name, node="n0", gates=())
    assert tracker.oversubscribed_on(life.cluster.seen, life.state, "n0") == ()
    assert examined == ["n0"]
    life.cluster.add(a_pod("other", node="n0", requests=REQUESTS))
    tracker.oversubscribed_on(life.cluster.seen, life.state, "n0")
    assert examined == ["n0", "n0"]


def test_the_first_look_is_at_the_reservations_of_the_node_alone(monkeypatch):
    """A tracker is made for each burst of Bindings; all pods of a large cluster would take longer than the burst."""
    life, tracker = CrowdedLife(0), OversubscriptionTracker()
    life.cluster.add(*a_gang("g", pods=1, requests=REQUESTS, schedulingGates=GATED))
    life.state = admitted(life.state, life.cluster, "g", {"g-0": "n0"})
    monkeypatch.setattr(oversubscription_tracker, "changed_pods", None)  # not called
    assert tracker.oversubscribed_on(life.cluster.seen, life.state, "n0") == ()
