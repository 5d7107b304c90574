"""A log and a cluster full of two tenants, with an event of every type that names the foreign one in every field."""

from __future__ import annotations

from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from extender.core.log.events import (
    AnyEventData,
    CapacityMeasured,
    ControlPlaneFeaturesDetected,
    GangObserved,
    NewEvent,
    TreeCompiled,
    TreeRefused,
    TreeRetired,
)
from extender.core.model.ids import NIL_GANG, GangUid
from tests.support.service.fakes import FakeClock, Stage
from tests.support.service.manifest_builders import RACK, a_node
from tests.support.service.two_tenants import (
    FOREIGN,
    OWN,
    TENANTS,
    tenant_gang,
    tenant_pod,
)

PAST_US = 1_700_000_000_000_000  # a database takes no event with a time ahead of its own
NODES = tuple(f"n{number}" for number in range(6))


# fields of events with Kind/namespace/name; the others have namespace/name
WITH_KIND = (
    "unit",
    "units",
    "units_spared",
    "units_in_progress",
    "taken_over_by",
    "object",
    "owner",
)


async def two_tenants_stage(**settings: Any) -> Stage:
    """Return a leading stage after preemptions in both directions, with waiting, running and broken trees of both.

    `own-low` is evicted for `foreign-hi`, `foreign-low` for `own-hi`; both tenants have a gang that waits for lack of
    capacity, one whose group does not exist, a lone pod, and workloads.
    """
    clock = FakeClock()
    clock.us = PAST_US
    stage = Stage(
        *(a_node(name, {RACK: f"r{name}"}, gpu=1) for name in NODES),
        *tenant_gang(OWN, "low", nodes=("n0", "n1"), whole=True),
        *tenant_gang(FOREIGN, "low", nodes=("n2", "n3")),
        tenant_pod(OWN, "lone", node="n4", priority=5000),
        tenant_pod(FOREIGN, "lone", node="n5", priority=5000),
        clock=clock,
        **settings,
    )
    await stage.lead()
    stage.start(stage.parts.evictor.run())
    await passes(stage, 2)
    stage.cluster.add(*tenant_gang(FOREIGN, "hi", priority=1000))
    await passes(stage, 6)
    stage.cluster.add(*tenant_gang(OWN, "hi", priority=900))
    await passes(stage, 6)
    for name in ("low-0", "low-1"):
        for tenant in TENANTS:
            if any(pod.name == f"{tenant}-{name}" for pod in stage.cluster.seen.pods.values()):
                pod = stage.cluster.pod(f"{tenant}/{tenant}-{name}")
                if pod.deleting and name == "low-0":
                    stage.cluster.delete_pod(f"{tenant}/{tenant}-{name}")
    await passes(stage, 4)
    for tenant in TENANTS:
        stage.cluster.add(
            *tenant_gang(tenant, "wait", pods=5, priority=1),
            *tenant_gang(tenant, "orphan", pods=1)[1:],
            tenant_pod(tenant, "pending", priority=1),
        )
    await passes(stage, 6)
    await stage.leader.append(list(events_of_every_type()))
    stage.later(1)
    return stage


async def passes(stage: Stage, count: int) -> None:
    """Run passes, and everything beside them."""
    from tests.unit.control.admission.test_preemption_policy import settled

    await settled(stage, count)


def events_of_every_type() -> list[NewEvent]:
    """Return an event of each type in the stream of a foreign gang, and of each type that is about no gang."""
    found = []
    for number, kind in enumerate(get_args(AnyEventData)):
        # what the cluster has is no tenant's
        about_cluster = kind in (CapacityMeasured, ControlPlaneFeaturesDetected)
        data = filled(kind, "cluster" if about_cluster else FOREIGN)
        other_uid = {"uid": "retired"} if kind is TreeRetired else {}
        data = msgspec.structs.replace(data, **other_uid)
        uid, gang = f"{FOREIGN}-uid-filled-{number}", f"{FOREIGN}/{FOREIGN}-x"
        found += [_draft(uid, gang, GangObserved(kind="PodGroup")), _draft(uid, gang, data)]
        if kind in (TreeCompiled, TreeRefused, TreeRetired):
            found += [
                _draft(NIL_GANG, "", msgspec.structs.replace(filled(kind, tenant), **other_uid))
                for tenant in TENANTS
            ]
    return [one for one in found if not _breaks_the_fold(one)]


def _draft(uid: str, gang: str, data: AnyEventData) -> NewEvent:
    return NewEvent(
        gang_uid=GangUid(uid),
        gang=gang,
        data=data,
        actor=f"{FOREIGN}-actor",
        cause=f"{FOREIGN}-cause",
    )


def _breaks_the_fold(one: NewEvent) -> bool:
    """Return whether the event cannot be recorded here: members that the state does not have, and an end of the log."""
    return type(one.data).__name__ in {
        "MemberTerminated",
        "PodBound",
        "HistoryTruncated",
        "LeaseAcquired",
        "GangRemoved",
        "PreemptionPlanned",
    }


def filled(kind: Any, tenant: str) -> Any:
    """Return a value of a type with the marker of a tenant in every text.

    Names are `tenant/tenant-name`, so that a field with a namespace has that of the tenant.
    """
    hints = get_type_hints(kind)
    given = {}
    for field in msgspec.structs.fields(kind):
        given[field.name] = _value(hints[field.name], tenant, field.name)
    if "kind" in given:
        given["kind"] = "Job" if "workload" in given and "uid" in given else "PodGroup"
    return kind(**given)


def _value(hint: Any, tenant: str, name: str) -> Any:
    origin = get_origin(hint)
    if hint is str or getattr(hint, "__supertype__", None) is str:
        if name in ("node", "taken_over_nodes"):
            return "n0"
        path = f"{tenant}/{tenant}-{name.replace('_', '-')}"
        return f"PodGroup/{path}" if name in WITH_KIND else path
    if hint is int or getattr(hint, "__supertype__", None) is int:
        return 0 if name == "shape" else 1
    if hint is bool:
        return False
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return filled(hint, tenant)
    if origin is tuple:
        return (_value(get_args(hint)[0], tenant, name),)
    if origin is dict:
        key, value = get_args(hint)
        if name in ("topology", "before", "after", "domain"):
            tenant = "cluster"  # labels of nodes
        if value is int:
            return {"cpu": 1}  # names of resources are the cluster's
        return {f"{tenant}-key" if key is str else "n0": _value(value, tenant, name)}
    args = get_args(hint)
    return _value(args[0], tenant, name) if not isinstance(args[0], str) else args[0]
