"""Preemptions with given victims and a given node for each pod of the preemptor.

The planner chooses no victims here, so that a test can look at what follows from a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from extender.core.log.events import (
    AssignmentRecord,
    GangObserved,
    NewEvent,
    PreemptionPlanned,
    VictimPod,
    VictimUnit,
)
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import NodeName, PlanId
from tests.support.service.fakes import Stage

Victims = Mapping[str, Sequence[str]]  # unit (Kind/name, namespace default) -> names of its pods


def _pod(view: ClusterView, name: str) -> Any:
    return next(pod for pod in view.pods.values() if pod.path == f"default/{name}")


def a_unit(view: ClusterView, name: str, pods: Sequence[str]) -> VictimUnit:
    """Make a unit of pods that run."""
    kind, _, short = name.partition("/")
    found = [_pod(view, pod) for pod in pods]
    group = next(
        (g for g in view.groups.values() if (g.key.kind, g.key.name) == (kind, short)), None
    )
    return VictimUnit(
        kind=kind,
        path=f"default/{short}",
        uid=group.uid if group is not None else found[0].uid,
        priority=group.priority if group is not None else found[0].priority,
        pods=tuple(
            VictimPod(pod=p.path, uid=p.uid, node=p.node, group=p.group.name if p.group else "")
            for p in found
        ),
    )


def a_plan(
    view: ClusterView, where: Mapping[str, str], victims: Victims, *, priority: int = 10,
    preemption: str = "preemption-1", kind: str = "PodGroup",
) -> PreemptionPlanned:  # fmt: skip
    """Plan that pods of the preemptor get nodes when the victims are gone."""
    members = [_pod(view, name) for name in where]
    return PreemptionPlanned(
        preemption=PlanId(preemption),
        kind=kind,
        priority=priority,
        victims=tuple(a_unit(view, name, pods) for name, pods in victims.items()),
        cost={"units": len(victims)},
        alternatives=(),
        shapes=tuple(dict(pod.shape.requests) for pod in members),
        assignments=tuple(
            AssignmentRecord(
                pod=pod.path, uid=pod.uid, group=pod.group.name if pod.group else "",
                node=NodeName(where[pod.name]), shape=number,
            )
            for number, pod in enumerate(members)
        ),
    )  # fmt: skip


async def order(
    stage: Stage, root: str, where: Mapping[str, str], victims: Victims, **plan: Any
) -> PreemptionPlanned:
    """Record a plan for a root group as the control loop would."""
    group = stage.cluster.group(root)
    plan = {"priority": group.priority, "kind": group.key.kind} | plan
    planned = a_plan(stage.cluster.seen, where, victims, **plan)
    drafts = [
        NewEvent(gang_uid=group.uid, gang=group.key.path, data=one, actor="test")
        for one in (GangObserved(kind=group.key.kind, priority=group.priority), planned)
        if isinstance(one, PreemptionPlanned) or group.uid not in stage.leader.pending_state.gangs
    ]
    await stage.leader.append(drafts)
    return planned
