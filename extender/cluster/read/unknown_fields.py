"""Fields, labels and annotations that a manifest has and that nothing reads, because their names are misspelt.

Only the kinds of groups and the classes of runtimes and volumes are checked: every field of their API is known here. Other kinds have more fields than
are read. An API server refuses unknown fields of our kinds, or drops them silently; a label it accepts whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.cluster import types as api
from extender.cluster.read.field_problems import FieldProblem
from extender.core.model.message_formatting import did_you_mean, join_names

PREFIX: Final = "gang-extender.dev/"
# of users and of the service, by the field of metadata
_NAMES: Final = {
    "labels": "pod-group group total tree leaf kind exempt move",
    "annotations": "parent gang topology slices exclusive near lost-members min workload tree-from plan written last-checkpoint"
    " arrives-after arrives-every runs-for",  # these three are for `simulate`
}
_NAMED_MAX: Final = 9  # of these, the first of which are for users
_IN_TOPOLOGY: Final = {  # words of users for what an annotation has in its value
    "required": "leaf=net/rack", "preferred": "leaf=~net/rack", "balanced": "leaf=~net/rack:Balanced",
}  # fmt: skip
_FIELD_OF: Final = {PREFIX + name: field for field in _NAMES for name in _NAMES[field].split()}
_METADATA: Final = frozenset(  # fields of metadata that are not read
    ("generateName", "selfLink", "managedFields", "deletionGracePeriodSeconds", "clusterName")
)
# fields of the API that a Struct with all others of them (`Whole`) does not read
_NOT_READ: Final[dict[type, frozenset[str]]] = {
    api.WorkloadSpec: frozenset({"controllerRef"}),
    api.ObjectMeta: _METADATA,
    api.RuntimeClass: frozenset({"handler"}),
    api.PodToleration: frozenset({"tolerationSeconds"}),
    api.StorageClass: frozenset(("parameters", "reclaimPolicy", "mountOptions", "allowVolumeExpansion")),
    api.PersistentVolumeClaim: frozenset({"status"}),
    api.ClaimSpec: frozenset(("resources", "selector", "volumeMode", "dataSource", "dataSourceRef", "volumeAttributesClassName")),
}  # fmt: skip


def fields_not_read(kind: type[Any]) -> frozenset[str] | None:
    """Return the fields of a Struct of the API that are not read; None: not all fields of it are known."""
    return _NOT_READ.get(kind, frozenset()) if issubclass(kind, api.Whole) else None


def is_unknown_name(field: str, name: str) -> bool:
    """Return whether a label or annotation, by the field of metadata, has our prefix and no meaning."""
    return name.startswith(PREFIX) and _FIELD_OF.get(name) != field


def unknown_names(manifest: Mapping[str, object]) -> Iterator[FieldProblem]:
    """Yield the labels and annotations of an object, and of templates in it, with our prefix that have no meaning there."""
    for part in ("metadata", "spec"):
        yield from _unknown_names(manifest.get(part), part)


def _unknown_names(value: object, path: str) -> Iterator[FieldProblem]:
    if isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _unknown_names(item, f"{path}[{number}]")
    if not isinstance(value, Mapping):
        return
    for field, below in value.items():
        field_path = f"{path}.{field}"
        if field in _NAMES and isinstance(below, Mapping):
            for name in below:
                text = str(name)
                if not is_unknown_name(field, text):
                    continue
                yield FieldProblem(
                    f"{field_path}[{text}]", f"has no meaning; {_meant(field, text)}"
                )
        elif isinstance(below, Mapping | list | tuple):
            yield from _unknown_names(below, field_path)


def _meant(field: str, name: str) -> str:
    """Return what may be meant by a label or annotation without a meaning."""
    if name in _FIELD_OF:
        return f"it is one of the {_FIELD_OF[name]}"
    if value := _IN_TOPOLOGY.get(name.removeprefix(PREFIX)):
        return f"a workload has it in {PREFIX}topology, such as {value}, a group in spec.schedulingConstraints"
    hint = did_you_mean(name, _FIELD_OF).removeprefix("; ")
    return hint or f"the {field} are {join_names(_NAMES[field].split(), _NAMED_MAX)}"
