"""What a built-in group was written with and lost on its way into the API server.

An API server drops fields whose feature gate is off without a word. What was written is told by an annotation that
the admission policy of deploy/ puts on groups (admission sees the field before it is dropped), and by what kubectl
keeps of the file that was applied. Where neither is there, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from extender.cluster import types as api

WRITTEN: Final = "gang-extender.dev/written"  # fields of the spec, separated by commas
APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# A policy of preemption that is lost is not missed: pods have it too, and theirs counts (SPEC B9).
FIELDS: Final = (
    "disruptionMode",
    "parentCompositePodGroupName",
    "priorityClassName",
    "resourceClaims",
    "schedulingConstraints",
)


class _Applied(msgspec.Struct):
    spec: dict[str, Any] = {}


def lost_of(found: api.Group, parent: str) -> tuple[str, ...]:
    """Name the fields of its spec that a built-in group was written with and does not have, sorted.

    Args:
        found: The group.
        parent: Its parent, wherever it is named.
    """
    annotations = found.metadata.annotations
    written = {name.strip() for name in annotations.get(WRITTEN, "").split(",")}
    if APPLIED in annotations:
        written |= asked_by(_spec_of(annotations[APPLIED]))
    return tuple(name for name in FIELDS if name in written and not _has(found, parent, name))


def asked_by(spec: Mapping[str, Any]) -> set[str]:
    """Name the fields by which a spec asks for something that it would not get without them."""
    mode = spec.get("disruptionMode")
    whole = mode == "PodGroup" or (isinstance(mode, Mapping) and "all" in mode)
    asked = {name for name in FIELDS if spec.get(name)}
    return asked if whole else asked - {"disruptionMode"}


def _spec_of(text: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(text, type=_Applied).spec
    except msgspec.MsgspecError:  # anybody may write an annotation; then it tells nothing
        return {}


def _has(found: api.Group, parent: str, name: str) -> bool:
    spec = found.spec
    constraints = spec.scheduling_constraints
    there: dict[str, object] = {
        "disruptionMode": spec.disruption_mode,
        "parentCompositePodGroupName": parent,
        "priorityClassName": spec.priority_class_name,
        "resourceClaims": spec.resource_claims,
        "schedulingConstraints": constraints.topology or constraints.topology_constraints,
    }
    return bool(there[name])
