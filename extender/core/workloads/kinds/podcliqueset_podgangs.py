"""The PodGangs that Grove's operator makes from a PodCliqueSet, for a plan before it is submitted.

Source: grove.io/v1alpha1 of Grove v0.1.0-alpha.12. A replica of the set has a base PodGang: the cliques in no scaling
group, and those of the first `minAvailable` replicas of each scaling group. A further replica is a scaled PodGang.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Required

import msgspec

from extender.core.model.errors import BadInput
from extender.core.model.message_formatting import did_you_mean
from extender.core.workloads.kinds.podgang_kind import CLIQUE_LABEL, SCHEDULER_LABEL
from extender.core.workloads.workload_kind import (
    METADATA_FIELDS,
    POD_FIELDS,
    PODS_MAX,
    PodCount,
    PodSize,
    fields_type,
    number,
)
from extender.core.workloads.workload_object import WorkloadObject, controller_reference

GROUP = "grove.io"
TOPOLOGY = "grove-topology"  # the only one that an operator before `topologyName` reads
BASE_LABEL = "grove.io/base-podgang"

VERSION = "Grove v0.1.0-alpha.12"
_CONSTRAINT = ("topologyName", "pack", "packDomain")  # fields of a topologyConstraint
_PACK = ("required", "preferred")  # and of its `pack`

_Item = Mapping[str, Any]


class PlannedPodGang(msgspec.Struct, frozen=True, kw_only=True):
    """One PodGang, and the templates of its pods by the names of its pod groups."""

    manifest: Mapping[str, Any]
    templates: Mapping[str, Mapping[str, Any]]


class PodGangs:
    """The PodGangs of a PodCliqueSet.

    Args:
        topologies: Of each topology of Grove, by its name, the keys of node labels by their domains.

    Raises:
        BadInput: A scaling group names a clique that does not exist, a topology constraint cannot be kept, or a number
            is one that the webhook of Grove refuses, or too large.
    """

    def __init__(self, owner: WorkloadObject, topologies: Mapping[str, Mapping[str, str]]) -> None:
        self._owner = owner
        self._topologies = topologies
        self._template: _Item = owner.spec.get("template") or {}
        self._cliques = {
            str(clique["name"]): clique for clique in self._template.get("cliques") or ()
        }
        self._scaling: tuple[_Item, ...] = tuple(self._template.get("podCliqueScalingGroups") or ())
        self._grouped: set[str] = set()
        for at, scaling_group in enumerate(self._scaling):
            names = scaling_group.get("cliqueNames") or ()
            self._check_names(names, f"podCliqueScalingGroups[{at}].cliqueNames")
            self._grouped.update(names)
        self._check_numbers()
        self._packs = {id(part): self._pack(part, *where) for part, *where in self._constrained()}

    def _check_names(self, names: Iterable[str], field: str) -> None:
        for name in names:
            if name not in self._cliques:
                text = f"there is no clique {name!r}; there are {', '.join(self._cliques)}"
                raise BadInput(f"spec.template.{field}: {text}")

    def _check_numbers(self) -> None:
        """Raise BadInput if there are too many pods, or a part asks for more than it has."""
        specs = {name: clique.get("spec") or {} for name, clique in self._cliques.items()}
        pods = {name: number(spec, "replicas", 0) or 1 for name, spec in specs.items()}
        parts = [
            (f"cliques[{at}].spec", spec, pods[name], pods[name])
            for at, (name, spec) in enumerate(specs.items())
        ]
        parts += [
            (f"podCliqueScalingGroups[{at}]", group, number(group, "replicas", 1), 1)
            for at, group in enumerate(self._scaling)
        ]
        for place, part, replicas, least in parts:
            if (needed := number(part, "minAvailable", least)) > replicas:
                text = f"is {needed}, more than replicas, which is {replicas}"
                raise BadInput(f"spec.template.{place}.minAvailable: {text}")
        for at, clique in enumerate(self._cliques.values()):
            after = (clique.get("spec") or {}).get("startsAfter") or ()
            self._check_names(after, f"cliques[{at}].spec.startsAfter")
        grouped = (
            number(group, "replicas", 1)
            * sum(pods[name] for name in group.get("cliqueNames") or ())
            for group in self._scaling
        )
        alone = (count for name, count in pods.items() if name not in self._grouped)
        total = number(self._owner.spec, "replicas", 0) * (sum(alone) + sum(grouped))
        if total > PODS_MAX:
            raise BadInput(f"spec: asks for {total} pods at once, at most {PODS_MAX} are planned")

    def gangs(self) -> tuple[PlannedPodGang, ...]:
        """Return the PodGangs, all base ones first."""
        replicas = range(number(self._owner.spec, "replicas", 0))
        names = [f"{self._owner.name}-{index}" for index in replicas]
        return (*map(self._base, names), *(gang for name in names for gang in self._scaled(name)))

    def _base(self, name: str) -> PlannedPodGang:
        cliques = {
            f"{name}-{clique}": clique for clique in self._cliques if clique not in self._grouped
        }
        configs = []
        for scaling_group in self._scaling:
            for replica in range(number(scaling_group, "minAvailable", 1)):
                prefix = f"{name}-{scaling_group['name']}-{replica}"
                names = scaling_group.get("cliqueNames") or ()
                members = {f"{prefix}-{clique}": clique for clique in names}
                cliques |= members
                if constraint := self._packed(scaling_group):
                    configs.append({"name": prefix, "podGroupNames": [*members], **constraint})
        spec = {"topologyConstraintGroupConfigs": configs} if configs else {}
        return self._gang(name, cliques, {**spec, **self._packed(self._template)}, {})

    def _scaled(self, base: str) -> Iterator[PlannedPodGang]:
        for scaling_group in self._scaling:
            least = number(scaling_group, "minAvailable", 1)
            for replica in range(least, number(scaling_group, "replicas", 1)):
                group = f"{base}-{scaling_group['name']}"
                names = scaling_group.get("cliqueNames") or ()
                cliques = {f"{group}-{replica}-{clique}": clique for clique in names}
                spec = self._packed(scaling_group) or self._packed(self._template)
                # The first scaled PodGang is number 0, whatever replica it holds.
                yield self._gang(f"{group}-{replica - least}", cliques, spec, {BASE_LABEL: base})

    def _gang(
        self, name: str, cliques: Mapping[str, str], spec: _Item, labels: Mapping[str, str]
    ) -> PlannedPodGang:
        """Return a PodGang; `cliques`: the names of the cliques in the PodCliqueSet, by the names of its pod groups."""
        owner = self._owner
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": owner.namespace,
            "ownerReferences": [controller_reference(owner)],
        }
        pods = [each.get("spec", {}).get("podSpec", {}) for each in self._cliques.values()]
        if scheduler := next(filter(None, (pod.get("schedulerName") for pod in pods)), None):
            metadata["labels"] = {SCHEDULER_LABEL: scheduler}
        priority = self._template.get("priorityClassName")
        manifest = {
            "apiVersion": "scheduler.grove.io/v1alpha1",
            "kind": "PodGang",
            "metadata": metadata,
            "spec": {
                "podgroups": [self._pod_group(*item) for item in cliques.items()],
                **({"priorityClassName": priority} if priority else {}),
                **spec,
            },
        }
        templates = {
            key: self._pod(key, self._cliques[clique], labels) for key, clique in cliques.items()
        }
        return PlannedPodGang(manifest=manifest, templates=templates)

    def _pod_group(self, name: str, clique: str) -> dict[str, Any]:
        template = self._cliques[clique]
        spec = template.get("spec") or {}
        replicas = number(spec, "replicas", 0) or 1
        return {
            "name": name,
            "minReplicas": number(spec, "minAvailable", replicas),
            "podReferences": [
                {"namespace": self._owner.namespace, "name": f"{name}-{index}"}
                for index in range(replicas)
            ],
            **self._packed(template),
        }

    def _pod(self, name: str, clique: _Item, labels: Mapping[str, str]) -> dict[str, Any]:
        spec = dict((clique.get("spec") or {}).get("podSpec") or {})
        if priority := self._template.get("priorityClassName"):
            spec.setdefault("priorityClassName", priority)
        own = {**(clique.get("labels") or {}), **labels, CLIQUE_LABEL: name}
        metadata = {"labels": own, "annotations": clique.get("annotations") or {}}
        return {"metadata": metadata, "spec": spec}

    def _packed(self, part: _Item) -> dict[str, Any]:
        """Return the topology constraint of a part of the set, as a PodGang has it; empty: it has none."""
        pack = self._packs[id(part)]
        return {"topologyConstraint": {"packConstraint": pack}} if pack else {}

    def _constrained(self) -> Iterator[tuple[_Item, str, str]]:
        """Yield each part that may have a topology constraint, its path, and the topology that it inherits."""
        of_set = _topology_name(self._template)
        of_clique: dict[str, str] = {}
        yield self._template, "spec.template", ""
        for at, scaling_group in enumerate(self._scaling):
            yield scaling_group, f"spec.template.podCliqueScalingGroups[{at}]", of_set
            for clique in scaling_group.get("cliqueNames") or ():
                of_clique.setdefault(clique, _topology_name(scaling_group))
        for at, (name, clique) in enumerate(self._cliques.items()):
            inherited = of_clique.get(name) or of_set
            yield clique, f"spec.template.cliques[{at}]", inherited

    def _pack(self, part: _Item, place: str, inherited: str) -> dict[str, str]:
        """Return the keys of node labels that a part is packed by: `required`, `preferred`, both or none.

        Raises:
            BadInput: The constraint cannot be kept as it is: an unknown topology, domain or field, or none of them.
        """
        constraint = part.get("topologyConstraint")
        if constraint is None:
            return {}
        place = f"{place}.topologyConstraint"
        pack = constraint.get("pack") or {}
        for path, item, names in (("", constraint, _CONSTRAINT), (".pack", pack, _PACK)):
            for name in item:
                if name not in names:
                    hint = did_you_mean(str(name), names) or f"; the fields are {', '.join(names)}"
                    raise BadInput(f"{place}{path}.{name}: {VERSION} has no such field{hint}")
        older = constraint.get("packDomain")
        if older and pack.get("required"):
            raise BadInput(f"{place}: has packDomain and pack.required; leave out packDomain")
        domains = {
            "pack.required": pack.get("required"),
            "packDomain": older,
            "pack.preferred": pack.get("preferred"),
        }
        if not any(domains.values()):
            raise BadInput(f"{place}: names no domain; set pack.required or pack.preferred")
        topology = str(constraint.get("topologyName") or inherited or TOPOLOGY)
        return {
            "preferred" if field == "pack.preferred" else "required": self._key(
                str(domain), topology, f"{place}.{field}"
            )
            for field, domain in domains.items()
            if domain
        }

    def _key(self, domain: str, topology: str, place: str) -> str:
        """Return the key of the node label of a domain.

        Raises:
            BadInput: The files do not have the topology, or it does not have the domain.
        """
        domains = self._topologies.get(topology, {})
        if domain in domains:
            return domains[domain]
        state = f"it has {', '.join(domains)}" if domains else "it is not there"
        text = f"{domain!r} is not in the ClusterTopologyBinding {topology} of the files ({state})"
        command = f"kubectl get clustertopologybinding {topology} -o yaml"
        raise BadInput(f"{place}: {text}; add the output of `{command}`")


def _topology_name(part: _Item) -> str:
    return str((part.get("topologyConstraint") or {}).get("topologyName") or "")


_CONSTRAINT_FIELDS: Mapping[str, Any] = {
    "topologyName": str,
    "pack": {"required": str, "preferred": str},
    "packDomain": str,  # the older form of pack.required
}
_CLIQUE_FIELDS: Mapping[str, Any] = {
    **METADATA_FIELDS,  # of its pods
    "name": Required[str],
    "spec": {
        "replicas": PodCount,
        "minAvailable": PodSize,
        "startsAfter": [str],
        "podSpec": POD_FIELDS,
    },
    "topologyConstraint": _CONSTRAINT_FIELDS,
}
_SCALING_GROUP_FIELDS: Mapping[str, Any] = {
    "name": Required[str],
    "cliqueNames": [str],
    "replicas": PodCount,
    "minAvailable": PodSize,
    "topologyConstraint": _CONSTRAINT_FIELDS,
}
PODCLIQUESET_SPEC = fields_type(
    "PodCliqueSetSpec",
    {
        "replicas": PodCount,
        "template": {
            "cliques": [_CLIQUE_FIELDS],
            "podCliqueScalingGroups": [_SCALING_GROUP_FIELDS],
            "priorityClassName": str,
            "topologyConstraint": _CONSTRAINT_FIELDS,
        },
    },
)
