"""Plans that may preempt, of random small clusters of objects, against all sets of victims: deleted from the objects, planned again.

The fields of the objects (priorities of groups and pods, disruption modes, terminating pods, spread, affinity and anti-affinity)
is read here without the service's own units, counts and rules; only the placement without evictions is that of the planner.
"""

from __future__ import annotations

import itertools
import random

import pytest

from extender.core.model.ids import GroupKey
from extender.queries.plan.plan_dto import GangVerdict
from extender.queries.plan.plan_query import PlanInput, answer_plan_query
from tests.support.hypothesis_profile import PROFILE, daily
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, RACK, Object, a_group, a_node, a_pod

HOST = "kubernetes.io/hostname"
PRIORITY = 10
CLUSTERS = 500 if PROFILE == "full" else 20
PARTS = 5
Unit = tuple[int, tuple[str, ...]]  # priority, names of pods


def _selecting(app: str) -> Object:
    return {"labelSelector": {"matchLabels": {"app": app}}}


def _rules(rng: random.Random, app: str) -> Object:
    """Return the spec of a rule between pods, or of none."""
    key, other = rng.choice([RACK, HOST]), rng.choice(["x", "y"])
    match rng.choice(["", "", "spread", "near", "apart"]):
        case "spread":
            spread = {
                "maxSkew": rng.choice([1, 2]),
                "topologyKey": key,
                "whenUnsatisfiable": "DoNotSchedule",
            }
            return {
                "topologySpreadConstraints": [{**spread, **_selecting(rng.choice([app, other]))}]
            }
        case "near":
            term = {"topologyKey": key, **_selecting(rng.choice([app, app, other]))}
            return {
                "affinity": {
                    "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
                }
            }
        case "apart":
            term = {"topologyKey": key, **_selecting(rng.choice([app, other]))}
            return {
                "affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
                }
            }
        case _:
            return {}


class _Cluster:
    """Objects of one cluster, and the units of lower priority among them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.nodes = [
            a_node(f"n{i}", {RACK: f"r{i // 2}"}, gpu=rng.choice([1, 2, 2]))
            for i in range(rng.randint(2, 4))
        ]
        self.free_slots = {
            n["metadata"]["name"]: int(n["status"]["allocatable"][GPU]) for n in self.nodes
        }
        self.pods: dict[str, Object] = {}
        self.groups: list[Object] = []
        self.units: list[Unit] = []
        self.going: tuple[str, ...] = ()
        for number in range(rng.randint(2, 4)):
            self._lower(f"low{number}")
        self.pending = self._preemptor()

    def _place(self, name: str, group: str, priority: int, **spec: object) -> bool:
        free = [node for node, slots in self.free_slots.items() if slots]
        if not free:
            return False
        node = self.rng.choice(free)
        self.free_slots[node] -= 1
        gone = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
        leaves = self.rng.randint(0, 7) == 0 and not group
        labels = {"app": self.rng.choice(["x", "y"])}
        self.pods[name] = a_pod(
            name, group, node=node, requests={GPU: 1}, priority=priority,
            metadata={"labels": labels, **(gone if leaves else {})}, **spec,
        )  # fmt: skip
        if leaves:
            self.going += (name,)
        return True

    def _lower(self, name: str) -> None:
        """Add a lone pod, or a running gang that is evicted whole or pod by pod; its priority is the group's (E-3)."""
        rng, priority = self.rng, self.rng.choice([0, 1, 5, 10, 20])
        size = rng.choice([0, 0, 1, 2, 3])
        if not size:
            if self._place(name, "", priority) and name not in self.going:
                self.units.append((priority, (name,)))
            return
        whole = rng.random() < 0.5
        of_pods = rng.choice([priority, priority, 0, 20])
        names = [f"{name}-{i}" for i in range(size)]
        there = tuple(pod for pod in names if self._place(pod, name, of_pods))
        if not there:
            return
        self.groups.append(
            a_group(name, gang=rng.randint(1, len(there)), whole=whole, priority=priority)
        )
        self.units += [(priority, there)] if whole else [(priority, (pod,)) for pod in there]

    def _preemptor(self) -> GroupKey:
        """Add the pending tree: a gang, or a composite of two or three, in one rack, or with a minimum below its size."""
        rng, topo = self.rng, self.rng.choice(["", "", RACK])
        rules = _rules(rng, "x")
        leaves = rng.choice([1, 1, 2, 3])
        for number in range(leaves):
            name = "hi" if leaves == 1 else f"hi{number}"
            size = rng.randint(1, 3 if leaves == 1 else 2)
            above = {} if leaves == 1 else {"parent": "hi"}
            own = topo if leaves == 1 else rng.choice(["", RACK])
            self.groups.append(
                a_group(name, gang=rng.randint(1, size), topo=own, priority=PRIORITY, **above)
            )
            for i in range(size):
                self.pods[f"{name}-{i}"] = a_pod(
                    f"{name}-{i}", name, requests={GPU: 1}, priority=PRIORITY, metadata={"labels": {"app": "x"}}, **rules
                )  # fmt: skip
        if leaves > 1:
            self.groups.append(
                a_group(
                    "hi", gang=rng.randint(1, leaves), composite=True, topo=topo, priority=PRIORITY
                )
            )
        return GroupKey("default", "hi", "PodGroup" if leaves == 1 else "CompositePodGroup")

    def verdict(self, gone: tuple[str, ...] = (), *, preemption: bool = False) -> GangVerdict:
        pods = [pod for name, pod in self.pods.items() if name not in gone]
        view = FakeCluster(*self.nodes, *self.groups, *pods).view()
        question = PlanInput(groups=frozenset([self.pending]), preemption=preemption)
        (gang,) = answer_plan_query(view, question).gangs
        return gang

    def fits_without(self, units: tuple[Unit, ...]) -> bool:
        gone = tuple(name for _, names in units for name in names)
        return self.verdict((*self.going, *gone)).verdict == "placed"


def _faults(cluster: _Cluster) -> list[str]:
    answer = cluster.verdict(preemption=True)
    lower = [unit for unit in cluster.units if unit[0] < PRIORITY]
    sets = [c for n in range(len(lower) + 1) for c in itertools.combinations(lower, n)]
    victims = {pod.split("/")[1] for line in answer.victims for pod in line.pods}
    if answer.verdict == "impossible":
        return [f"it fits without {units}" for units in sets if cluster.fits_without(units)]
    if answer.verdict == "waiting":
        return [] if cluster.fits_without(()) else ["it waits in vain"]
    if answer.verdict != "placed":
        return [] if answer.verdict == "unknown" else [f"verdict {answer.verdict}"]
    if not victims:
        return [] if cluster.verdict().verdict == "placed" else ["it is not placed"]
    chosen = tuple(unit for unit in lower if victims & set(unit[1]))
    if victims != {name for _, names in chosen for name in names}:
        return [f"{victims} are no whole units of lower priority: {lower}"]
    if not cluster.fits_without(chosen):
        return [f"it does not fit without {chosen}"]
    if not answer.search.exhausted:
        return []
    fewer = [units for units in sets if set(units) < set(chosen)]
    return [
        f"{units} would do instead of {chosen}" for units in fewer if cluster.fits_without(units)
    ]


@pytest.mark.parametrize("part", daily(2, range(PARTS)))
def test_victims_and_proofs_are_those_of_the_objects(part):
    """Impossible: no set of units helps. Placed: whole units of lower priority, with which it fits, and no smaller part of them."""
    for seed in range(part, CLUSTERS, PARTS):
        cluster = _Cluster(seed)
        faults = _faults(cluster)
        assert not faults, f"seed {seed}: {faults}\n{cluster.verdict(preemption=True)}"
