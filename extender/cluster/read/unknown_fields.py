"""Fields, labels and annotations that a manifest has and that nothing reads, because their names are misspelt.

Only the kinds of groups are checked: their types here have every field of the API. Other kinds have more fields than
are read. An API server refuses unknown fields of our kinds, or drops them silently; a label it accepts whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.cluster import types as api
from extender.cluster.read.field_problems import FieldProblem
from extender.cluster.types import group_types, tree_profile_types
from extender.core.model.wording import did_you_mean

PREFIX: Final = "gang-extender.dev/"
KNOWN_NAMES: Final = frozenset(  # labels and annotations of users and of the service
    PREFIX + name
    for name in (
        *("pod-group", "parent", "tree", "leaf", "gang", "topology", "min", "workload"),
        *("tree-from", "trees", "plan", "kind", "written", "extender"),
    )
)
_METADATA: Final = frozenset(  # fields of metadata that are not read
    ("generateName", "selfLink", "managedFields", "deletionGracePeriodSeconds", "clusterName")
)
# Structs with all fields of the API, and the names of those that are not read
_WHOLE: Final[dict[type, frozenset[str]]] = {
    **dict.fromkeys(
        (
            api.PodGroup,
            api.CompositePodGroup,
            api.Workload,
            api.GroupSpec,
            api.SchedulingPolicy,
            group_types.GangPolicy,
            api.SchedulingConstraints,
            group_types.TopologyEntry,
            api.DisruptionMode,
            group_types.WorkloadRef,
            group_types.OldTemplateRef,
            group_types.TemplateRef,
            api.Template,
            api.TreeProfile,
            tree_profile_types.TreeProfileSpec,
            tree_profile_types.KindProfile,
            tree_profile_types.ProfileTopology,
        ),
        frozenset(),
    ),
    api.WorkloadSpec: frozenset({"controllerRef"}),
    api.ObjectMeta: _METADATA,
}
CHECKED: Final = (api.PodGroup, api.CompositePodGroup, api.Workload, api.TreeProfile)


def fields_not_read(kind: type[Any]) -> frozenset[str] | None:
    """Return the fields of a Struct of the API that are not read; None: not all fields of it are known."""
    return _WHOLE.get(kind)


def unknown_names(thing: Mapping[str, object]) -> Iterator[FieldProblem]:
    """Yield the labels and annotations of an object with our prefix that have no meaning."""
    metadata = thing.get("metadata")
    for field in ("labels", "annotations"):
        names = metadata.get(field) if isinstance(metadata, Mapping) else None
        for name in names if isinstance(names, Mapping) else ():
            if str(name).startswith(PREFIX) and name not in KNOWN_NAMES:
                hint = did_you_mean(str(name), KNOWN_NAMES)
                yield FieldProblem(f"metadata.{field}[{name}]", f"has no meaning{hint}")
