"""Find the fields of a workload that no version known here has, and those that a plan does not use.

A field that is not read is a constraint that is lost, or a count that is the default instead, so each is named. What the
API has and what does not change where pods may run is not named.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Final, Literal

import msgspec

from extender.core.model.message_formatting import did_you_mean

Fields = Mapping[str, str]  # names of fields, each with the name of its type or nothing

# By a piece of the module that the fields of some kinds were read from: the name of the product, and the kinds; the others
# are those of Kubernetes.
_PRODUCTS: Final = {
    "kubernetes": ("Kubernetes", ""),
    "jobset": ("JobSet", "JobSet"),
    "lws": ("LWS", "LeaderWorkerSet DisaggregatedSet"),
    "trainer": ("Trainer", "TrainJob TrainingRuntime ClusterTrainingRuntime"),
    "kuberay": ("KubeRay", "RayCluster RayJob RayService RayCronJob"),
    "grove": ("Grove", "PodGang PodCliqueSet"),
    "training-operator": ("training-operator", "PyTorchJob TFJob XGBoostJob PaddleJob JAXJob"),
    "mpi-operator": ("mpi-operator", "MPIJob"),
}
_PIECE_OF: Final = {kind: piece for piece, (_, of) in _PRODUCTS.items() for kind in of.split()}
_ANY_KEY: Final = "*"  # the field of a map: all its values have one type
# Fields that change where pods may run, and that no plan uses, by type; with what they do.
_VOLUMES: Final = "the nodes that the volumes of its claims can be used on are not known"
_DEVICES: Final = "devices of claims are not counted"
_NOT_USED: Final[Mapping[str, Mapping[str, str]]] = {
    "JobSet.spec": {"volumeClaimPolicies": _VOLUMES},
    "LeaderWorkerSet.spec.leaderWorkerTemplate": {"volumeClaimTemplates": _VOLUMES},
    "StatefulSetSpec": {"volumeClaimTemplates": _VOLUMES},
    "PyTorchJob.spec.runPolicy.schedulingPolicy": {  # also of its siblings, and of an MPIJob
        "minAvailable": "the gang has all pods; for fewer write the annotation gang-extender.dev/min"
    },
    "PodGang.spec": {"reuseReservationRef": "the place of another PodGang is not looked for"},
    "PodCliqueSet.spec.template": {"resourceClaimTemplates": _DEVICES, "resourceSharing": _DEVICES},
    "PodCliqueSet.spec.template.cliques": {"resourceSharing": _DEVICES},
    "PodCliqueSet.spec.template.podCliqueScalingGroups": {"resourceSharing": _DEVICES},
}
# Names of fields that are not known which mean that they limit where pods may run.
_CONSTRAINT: Final = re.compile(
    r"topology|placement|affinity|constraint|nodeselector", re.IGNORECASE
)
_POD_TYPES: Final = ("PodSpec", "ObjectMeta")  # what is below them has names of Kubernetes


class FieldNote(msgspec.Struct, frozen=True, kw_only=True):
    """A field that is not used."""

    path: str  # such as spec.template.spec.nodeSelecter
    text: str
    # constraint: an unknown one that limits where pods may run
    kind: Literal["unknown", "constraint", "unused"]

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


def field_notes(kind: str, obj: Mapping[str, Any]) -> Iterator[FieldNote]:
    """Yield the fields of an object that are not used; nothing for a kind whose fields are not known.

    Args:
        obj: The object, or some of its fields: `spec` is enough.
    """
    if kind in types():
        yield from _notes(obj, kind, "", version_of(kind), in_pod=kind == "Pod")


def version_of(kind: str) -> str:
    """Return the name and the version of the API that the fields of a kind were read from.

    >>> version_of("JobSet"), version_of("Pod")
    ('JobSet v0.12.0', 'Kubernetes v1.37.2')
    """
    piece = _PIECE_OF.get(kind, "kubernetes")
    module = next(version for version in _table()[0] if piece in version)
    return f"{_PRODUCTS[piece][0]} {module.rpartition('@')[2]}"


@functools.cache
def _table() -> tuple[list[str], list[str]]:
    """Return the modules that the fields were read from, and the lines of the table: data of the package, as its modules are."""
    text = resources.files("extender.core.workloads.fields").joinpath("api_fields.txt").read_text()
    head, _, table = text.partition("\n\n")
    return [line for line in head.splitlines() if not line.startswith("#")], table.splitlines()


@functools.cache
def types() -> Mapping[str, Fields]:
    """Return all types of the table by name."""
    by_name: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in _table()[1]:
        names = line
        if line and not line.startswith(" "):
            name, _, names = line.partition(" =")
            fields = by_name[name] = {}
        for word in names.split():
            field, _, of = word.partition(":")
            fields[field] = of
    return by_name


def _notes(
    value: object, type_: str, path: str, version: str, *, in_pod: bool
) -> Iterator[FieldNote]:
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _notes(item, type_, f"{path}[{index}]", version, in_pod=in_pod)
        return
    if not isinstance(value, Mapping):
        return
    fields, not_used = types()[type_], _NOT_USED.get(type_, {})
    if _ANY_KEY in fields:
        fields = dict.fromkeys(map(str, value), fields[_ANY_KEY])
    for field, below in value.items():
        field_path = f"{path}.{field}" if path else str(field)
        if below is None:
            continue  # not set
        if field not in fields:
            limits = not in_pod and _CONSTRAINT.search(str(field)) is not None
            text = f"there is no such field in {version}, so it is not used"
            text += did_you_mean(str(field), fields)
            yield FieldNote(path=field_path, text=text, kind="constraint" if limits else "unknown")
        elif below and field in not_used:
            yield FieldNote(path=field_path, text=f"is not used: {not_used[field]}", kind="unused")
        elif of := fields[field]:
            inside = in_pod or of in _POD_TYPES
            yield from _notes(below, of, field_path, version, in_pod=inside)
