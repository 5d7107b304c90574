"""Find the fields of a built-in group that the API server dropped when the group was written.

An API server drops fields whose feature gate is off silently. Two annotations show what was written: that of the
admission policy of deploy/ (admission sees a field before it is dropped), and the last-applied configuration of
kubectl. Without either, dropped fields cannot be found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from extender.cluster import types as api

WRITTEN: Final = "gang-extender.dev/written"  # fields of the spec, separated by commas
APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# preemptionPolicy is not listed: that of the pods takes precedence (B9).
FIELDS: Final = (
    "disruptionMode",
    "parentCompositePodGroupName",
    "priorityClassName",
    "resourceClaims",
    "schedulingConstraints",
)


class _Applied(msgspec.Struct):
    spec: dict[str, Any] = {}


def dropped_fields_of(group: api.Group, parent: str) -> tuple[str, ...]:
    """Return the fields of its spec that a built-in group was written with and does not have, sorted.

    Args:
        group: The group.
        parent: Its parent, by the field or by an annotation; empty for none.
    """
    annotations = group.metadata.annotations
    written = {name.strip() for name in annotations.get(WRITTEN, "").split(",")}
    if APPLIED in annotations:
        written |= requested_fields(_spec_of(annotations[APPLIED]))
    return tuple(name for name in FIELDS if name in written and not _has(group, parent, name))


def requested_fields(spec: Mapping[str, Any]) -> set[str]:
    """Return the fields of a spec whose loss would change its meaning."""
    mode = spec.get("disruptionMode")
    whole = mode == "PodGroup" or (isinstance(mode, Mapping) and "all" in mode)
    fields_set = {name for name in FIELDS if spec.get(name)}
    return fields_set if whole else fields_set - {"disruptionMode"}


def _spec_of(text: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(text, type=_Applied).spec
    except msgspec.MsgspecError:  # any client may write the annotation; an invalid one is ignored
        return {}


def _has(group: api.Group, parent: str, name: str) -> bool:
    spec = group.spec
    constraints = spec.scheduling_constraints
    values: dict[str, object] = {
        "disruptionMode": spec.disruption_mode,
        "parentCompositePodGroupName": parent,
        "priorityClassName": spec.priority_class_name,
        "resourceClaims": spec.resource_claims,
        "schedulingConstraints": constraints.topology or constraints.topology_constraints,
    }
    return bool(values[name])
