"""The sides that are measured (ours, kube-scheduler's own gangs, ordinary pods) and what they place.

A shape is written once and rendered in the API of each side, so that all place the same. The built-in
gangs run with their gates on and without an extender, ours with stock gates, by the same programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec
import yaml

from tests.controlplane.objects import BIND, MEMBER, a_pod
from tests.controlplane.plane import native_switches
from tests.e2e.scenarios.service import ROOT
from tests.support.certificates import point_at
from tests.support.service.manifest_builders import a_group

Object = dict[str, Any]
# The admission policy that puts our gate on members holds in the first namespace only (stand.py).
NAMESPACE = {
    "ours": "ours",
    "writes": "ours",
    "calls": "ours",
    "computes": "ours",
    "ungated": "theirs",
    "native": "theirs",
    "ordinary": "theirs",
}
# Sides whose groups are of our kinds
OUR_GROUPS = ("ours", "ungated", "calls", "computes")
OUR_LABEL = (*OUR_GROUPS, "writes")  # sides whose pods have our label
BUILT_IN = {"1.36": "scheduling.k8s.io/v1alpha2", "1.37": "scheduling.k8s.io/v1alpha3"}
OUR_VERSION = "gang-extender.dev/v1alpha1"
RACK, ZONE = "topology.kubernetes.io/rack", "topology.kubernetes.io/zone"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """So many trees, each of so many groups of so many pods; one group means a flat gang."""

    trees: int = 1
    groups: int = 1
    pods: int
    topology: bool = False  # zone over rack

    @property
    def total(self) -> int:
        return self.trees * self.groups * self.pods

    def __str__(self) -> str:
        if self.groups == 1:
            text = f"{self.pods:,} pods" if self.trees == 1 else f"{self.trees} x {self.pods} pods"
        else:
            text = f"{self.trees} trees x {self.groups} groups x {self.pods} pods"
        return text + (", zone over rack" if self.topology else "")


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One competitor."""

    name: Literal["ours", "writes", "calls", "computes", "ungated", "native", "ordinary"]
    config: Callable[[str], Object]  # of kube-scheduler, given the URL of the service
    gates: Callable[[str], Mapping[str, bool]]  # of kube-scheduler, by Kubernetes version
    service: bool = False
    echo: bool = False  # kube-scheduler asks an extender that only answers (echo/main.go)
    # of the service: another module in its place
    command: tuple[str, ...] = ("extender", "serve")
    computes_ms: float = 0  # CPU time of that extender before each answer of filter

    @property
    def namespace(self) -> str:
        return NAMESPACE[self.name]

    def groups(self, shape: Shape, minor: str, prefix: str = "g", **spec: Any) -> list[Object]:
        """Return the groups of a shape, parents first; each has `spec`."""
        if self.name in ("ordinary", "writes"):
            return []
        version = OUR_VERSION if self.name in OUR_GROUPS else BUILT_IN[minor]
        common: Object = {"version": version, "namespace": self.namespace, **spec}
        made = []
        for tree in range(shape.trees):
            root = f"{prefix}{tree}"
            if shape.groups == 1:
                made.append(a_group(root, gang=shape.pods, **common))
                continue
            zone, rack = (ZONE, RACK) if shape.topology else ("", "")
            made.append(a_group(root, gang=shape.groups, composite=True, topo=zone, **common))
            made += [
                a_group(f"{root}-{n}", gang=shape.pods, parent=root, topo=rack, **common)
                for n in range(shape.groups)
            ]
        return made

    def pods(self, shape: Shape, prefix: str = "g", **spec: Any) -> Iterator[Object]:
        """Yield the pods of a shape, tree by tree; each has `spec`."""
        for tree in range(shape.trees):
            for number in range(shape.groups):
                root = f"{prefix}{tree}"
                group = root if shape.groups == 1 else f"{root}-{number}"
                for pod in range(shape.pods):
                    yield self.pod(f"{group}-{pod}", group, **spec)

    def pod(self, name: str, group: str, *resources: str, **spec: Any) -> Object:
        """Make one pod of a group: 1 CPU unless `spec` has `requests`, and one of each extended resource."""
        more: Object = {"namespace": self.namespace, "markers": resources, **spec}
        if self.name in OUR_LABEL:
            more["metadata"] = {"labels": {"gang-extender.dev/pod-group": group}}
        if self.name == "ungated":  # what the policy would add, but for the gate
            more |= {"schedulerName": "gang-scheduler", "markers": (*resources, MEMBER, BIND)}
        if self.name == "native":
            return a_pod(name, schedulingGroup={"podGroupName": group}, **more)
        return a_pod(name, **more)


def shipped_config(url: str, file: str = "scheduler-config") -> Object:
    """Return a configuration of deploy/kubernetes, pointed at a service that is called without TLS, on loopback."""
    text = (ROOT / "deploy" / "kubernetes" / f"{file}.yaml").read_text()
    return point_at(yaml.safe_load(text), url)


def answers_config(url: str) -> Object:
    """Return the shipped configuration with no verb but filter: kube-scheduler binds by itself, without a barrier."""
    config = shipped_config(url)
    members, at_bind = config["extenders"]
    for verb in ("prioritizeVerb", "preemptVerb", "weight"):
        del members[verb]
    members["managedResources"] += at_bind["managedResources"]
    config["extenders"] = [members]
    return config


def _stock(_url: str) -> Object:
    return {}


def _no_gates(_minor: str) -> Mapping[str, bool]:
    return {}


def _gang_gates(minor: str) -> Mapping[str, bool]:
    # In 1.37 GenericWorkload contains GangScheduling; in 1.36 it is a gate of kube-scheduler's own.
    return {"GenericWorkload": True} | ({"GangScheduling": True} if minor == "1.36" else {})


def _tree_gates(minor: str) -> Mapping[str, bool]:
    return native_switches(minor)["--feature-gates"] | _gang_gates(minor)


OURS = Side(name="ours", config=shipped_config, gates=_no_gates, service=True)
# Another service in our place, with nothing but the calls that trees need, and the log
CALLS = msgspec.structs.replace(OURS, name="calls", command=("tests.bench.calls_and_log",))
# The same without our gate: members reach kube-scheduler at once and are refused until their plan stands
UNGATED = Side(name="ungated", config=shipped_config, gates=_no_gates, service=True)
# Flat gangs with what they need and no more: with topology and composites on as well, kube-scheduler
# 1.37 spends 30 s of CPU on a gang of 1,000 instead of 5 s, which would flatter us.
NATIVE = Side(name="native", config=_stock, gates=_gang_gates)
NATIVE_TREES = Side(name="native", config=_stock, gates=_tree_gates)
# No scheduler runs: the loader does the three writes that each member of ours costs, and nothing else happens.
WRITES = Side(name="writes", config=_stock, gates=_no_gates)
# Another extender in our place, that decides nothing and answers after as much CPU time per member as ours may take
# (`CPU of the service` in quick.py): the loader writes nomination and removal of the gate.
COMPUTES = Side(name="computes", config=answers_config, gates=_no_gates, echo=True, computes_ms=2.0)
WRITTEN = (WRITES, COMPUTES)  # the loader writes for their members
ORDINARY = Side(name="ordinary", config=_stock, gates=_no_gates)
