"""The objects that Grove's operator makes of a PodCliqueSet, as recorded in tests/golden/controllers/grove. Pure.

A PodCliqueSet replica has a base PodGang: the cliques in no scaling group, and those of the first `minAvailable`
replicas of each scaling group. Every further replica of a scaling group is a scaled PodGang.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.controlplane.api import Object

GATE = "grove.io/podgang-pending-creation"
GROVE = "grove.io/v1alpha1"
SCHEDULER = "scheduler.grove.io/v1alpha1"
MANAGED = {"app.kubernetes.io/managed-by": "grove-operator"}
INDEX = "grove.io/podcliqueset-replica-index"
PODGANG = "grove.io/podgang"
POD_INDEX = "grove.io/podclique-pod-index"
SCALING_GROUP = "grove.io/podcliquescalinggroup"


@dataclass(frozen=True)
class Clique:
    """One PodClique: pods of one template, and the group of a PodGang."""

    name: str
    template: Mapping[str, Any]  # of the PodCliqueSet
    labels: Mapping[str, str]
    environment: tuple[Mapping[str, Any], ...] = ()

    @property
    def replicas(self) -> int:
        """Return how many pods it has."""
        return int(self.template["spec"].get("replicas", 1))

    @property
    def minimum(self) -> int:
        """Return how many of them a gang needs."""
        return int(self.template["spec"].get("minAvailable", self.replicas))


@dataclass(frozen=True)
class Gang:
    """One PodGang: a base one, or a scaled one that waits for its base."""

    name: str
    base: str = ""
    cliques: list[Clique] = field(default_factory=list)
    topology: str = ""  # a domain, such as "rack"
    groups: dict[str, tuple[str, list[str]]] = field(default_factory=dict)  # domain, cliques


def selector_of(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def scaling_groups_of(owner: Mapping[str, Any]) -> list[Object]:
    wanted = []
    for index in range(owner["spec"].get("replicas", 1)):
        for one in owner["spec"]["template"].get("podCliqueScalingGroups", ()):
            name = f"{owner['metadata']['name']}-{index}-{one['name']}"
            labels = managed_labels(owner, "pcs-podcliquescalinggroup", name) | {INDEX: str(index)}
            spec = {key: one[key] for key in ("cliqueNames", "minAvailable", "replicas")}
            wanted.append({"metadata": owned_metadata(owner, name, labels), "spec": spec})
    return wanted


def pod_clique(clique: Clique, parent: Mapping[str, Any]) -> Object:
    """Return the PodClique object; its labels are those of its pods, with the hash of their template."""
    template = clique.template["spec"]
    digest = hashlib.sha256(msgspec.json.encode(template["podSpec"], order="sorted")).hexdigest()
    labels = {**clique.labels, "grove.io/pod-template-hash": digest[:19]}
    return {"metadata": owned_metadata(parent, clique.name, labels), "spec": dict(template)}


def gangs_of(owner: Mapping[str, Any], replicas: Mapping[str, int]) -> Iterator[Gang]:
    """Yield the PodGangs of a PodCliqueSet, base ones before their scaled ones.

    Args:
        owner: The PodCliqueSet.
        replicas: Of its scaling groups by their full names.
    """
    template = owner["spec"]["template"]
    scaling = template.get("podCliqueScalingGroups", ())
    grouped = {name for one in scaling for name in one["cliqueNames"]}
    for index in range(owner["spec"].get("replicas", 1)):
        base = Gang(f"{owner['metadata']['name']}-{index}", topology=domain_of(template))
        for one in template["cliques"]:
            if one["name"] not in grouped:
                labels = managed_labels(owner, "pcs-podclique", f"{base.name}-{one['name']}")
                labels |= {INDEX: str(index), PODGANG: base.name}
                base.cliques.append(Clique(f"{base.name}-{one['name']}", one, labels))
        scaled = []
        for one in scaling:
            group, least = f"{base.name}-{one['name']}", int(one["minAvailable"])
            for number in range(least):
                base.cliques.extend(_replica(owner, one, group, number, base))
                if domain := domain_of(one):
                    members = [f"{group}-{number}-{name}" for name in one["cliqueNames"]]
                    base.groups[f"{group}-{number}"] = (domain, members)
            for number in range(least, replicas[group]):
                # The first scaled PodGang is number 0, whatever replica it holds.
                gang = Gang(
                    f"{group}-{number - least}",
                    base=base.name,
                    topology=domain_of(one) or domain_of(template),
                )
                gang.cliques.extend(_replica(owner, one, group, number, gang))
                scaled.append(gang)
        yield base
        yield from scaled


def _replica(
    owner: Mapping[str, Any], scaling: Mapping[str, Any], group: str, number: int, gang: Gang
) -> Iterator[Clique]:
    """Yield the cliques of one replica of a scaling group."""
    templates = {one["name"]: one for one in owner["spec"]["template"]["cliques"]}
    members = [templates[name] for name in scaling["cliqueNames"]]
    size = sum(int(one["spec"].get("replicas", 1)) for one in members)
    for one in members:
        name = f"{group}-{number}-{one['name']}"
        labels = managed_labels(owner, "pcsg-podclique", name) | {
            INDEX: (gang.base or gang.name).rpartition("-")[2],
            PODGANG: gang.name,
            SCALING_GROUP: group,
            f"{SCALING_GROUP}-replica-index": str(number),
        }
        if gang.base:
            labels["grove.io/base-podgang"] = gang.base
        environment = (
            _from_label("GROVE_PCSG_NAME", SCALING_GROUP),
            {"name": "GROVE_PCSG_TEMPLATE_NUM_PODS", "value": str(size)},
            _from_label("GROVE_PCSG_INDEX", f"{SCALING_GROUP}-replica-index"),
        )
        yield Clique(name, one, labels, environment)


def a_grove_pod(clique: Clique, index: int, parent: Object) -> Object:
    """Return a pod of a clique, gated until its PodGang is initialized."""
    labels = parent["metadata"]["labels"]
    template = clique.template["spec"]["podSpec"]
    number = labels[INDEX]
    name = labels["app.kubernetes.io/part-of"]
    environment = [
        {"name": "GROVE_PCS_NAME", "value": name},
        {"name": "GROVE_PCS_INDEX", "value": number},
        {"name": "GROVE_PCLQ_NAME", "value": clique.name},
        {
            "name": "GROVE_HEADLESS_SERVICE",
            "value": f"{name}-{number}.{parent['metadata']['namespace']}.svc.cluster.local",
        },
        _from_label("GROVE_PCLQ_POD_INDEX", POD_INDEX),
        *clique.environment,
    ]
    containers = [
        one | {"env": [*one.get("env", ()), *environment]} for one in template["containers"]
    ]
    more = {"grove.io/podclique": clique.name, POD_INDEX: str(index)}
    metadata = owned_metadata(parent, "", {**labels, **more})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"generateName": f"{clique.name}-"},
        "spec": {
            **template,
            "containers": containers,
            "hostname": f"{clique.name}-{index}",
            "subdomain": f"{name}-{number}",
            "schedulingGates": [*template.get("schedulingGates", ()), {"name": GATE}],
        },
    }


def owned_metadata(owner: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> Object:
    """Return the metadata of an object that another one controls."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        **({"name": name} if name else {}),
        "namespace": owner["metadata"]["namespace"],
        "labels": dict(labels),
        "ownerReferences": [reference],
    }


def managed_labels(owner: Mapping[str, Any], component: str, name: str = "") -> dict[str, str]:
    named = {"app.kubernetes.io/name": name} if name else {}
    part_of = {"app.kubernetes.io/part-of": owner["metadata"]["name"]}
    return {**MANAGED, **part_of, **named, "app.kubernetes.io/component": component}


def _from_label(name: str, key: str) -> Object:
    path = f"metadata.labels['{key}']"
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def domain_of(part: Mapping[str, Any]) -> str:
    """Return the domain that a part of a PodCliqueSet must lie in, or an empty string."""
    return str((part.get("topologyConstraint") or {}).get("packDomain", ""))
