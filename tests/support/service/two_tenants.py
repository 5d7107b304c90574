"""Objects of two tenants whose every name has a marker of its namespace, and the search for markers in what is written.

A text that readers of one namespace get must not have the marker of the other. `leaks` returns the texts that have it;
with the setting that shows names it must find some, so that a test can fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.service.manifest_builders import GPU, Object, a_group, a_pod

OWN, FOREIGN = "zzown", "zzforeign"
TENANTS = (OWN, FOREIGN)
ONE = {GPU: 1}


def other(tenant: str) -> str:
    """Return the other tenant."""
    return FOREIGN if tenant == OWN else OWN


def tenant_gang(
    tenant: str,
    name: str,
    *,
    nodes: tuple[str, ...] = (),
    pods: int = 2,
    priority: int = 0,
    whole: bool = False,
    **spec: Any,
) -> list[Object]:
    """Make a gang of a tenant, running on nodes or waiting; its names, labels and classes have the marker."""
    group = f"{tenant}-{name}"
    labels = {f"{tenant}.example.com/key": f"{tenant}-value"}
    count = len(nodes) or pods
    made = a_group(
        group,
        gang=count,
        whole=whole,
        priority=priority,
        namespace=tenant,
        workload=f"{tenant}-workload",
        metadata={"labels": labels, "uid": f"{tenant}-uid-{name}"},
    )
    members = [
        a_pod(
            f"{group}-{n}",
            group,
            node=nodes[n] if nodes else "",
            requests=ONE,
            priority=priority,
            namespace=tenant,
            metadata={"labels": labels, "uid": f"{tenant}-uid-{name}-{n}"},
            **spec,
        )
        for n in range(count)
    ]
    return [made, *members]


def tenant_pod(tenant: str, name: str, *, node: str = "", priority: int = 0, **spec: Any) -> Object:
    """Make a pod of a tenant outside of groups."""
    return a_pod(
        f"{tenant}-{name}",
        node=node,
        requests=ONE,
        priority=priority,
        namespace=tenant,
        metadata={"uid": f"{tenant}-uid-{name}", "labels": {f"{tenant}.example.com/key": tenant}},
        schedulerName=f"{tenant}-scheduler",
        **spec,
    )


def leaks(stage: Any) -> list[tuple[str, str]]:
    """Return namespace/name and text of each write of a stage to an object of one tenant with the marker of the other."""
    return [
        (path, text)
        for path, text in _writes(stage)
        for tenant in TENANTS
        if path.startswith(f"{tenant}/") and other(tenant) in text
    ]


def _writes(stage: Any) -> Iterator[tuple[str, str]]:
    for _, path, text in stage.cluster.calls:
        yield path, text
    for notice in stage.cluster.notices:
        yield f"{notice.namespace}/{notice.name}", repr(notice)
