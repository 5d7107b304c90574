"""What the table of workload kinds has for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from extender.core.workloads.name_rules import NameRule
from extender.core.workloads.tree_parts import LeafUse, Part
from extender.core.workloads.tree_policy import Refusal, TreePolicy
from extender.core.workloads.workload_object import WorkloadObject


class Notice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a user should know about a tree that was made."""

    reason: str  # CamelCase, the reason of the Event
    message: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The roots of the trees of one workload."""

    roots: tuple[Part, ...]
    notices: tuple[Notice, ...] = ()


class Parts(Protocol):
    """The function that describes the trees of a workload."""

    def __call__(
        self, workload: WorkloadObject, policy: TreePolicy, uses: tuple[LeafUse, ...]
    ) -> Plan:
        """Return the roots; `uses` are the leaves that live pods of the workload name."""
        ...


class WorkloadKind(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the table: everything that the service knows about a kind of workload."""

    kind: str
    group: str  # API group; empty: core
    versions: tuple[str, ...]  # newest first; the first one that is served is read
    plural: str
    name_rules: tuple[NameRule, ...] = ()  # for the pods of this kind
    name_label: str = ""  # on pods: the name of the workload object
    template_paths: tuple[str, ...] = ()  # where pod templates are: dotted, `[]` behind a list
    # The value of LEAF_LABEL for a pod template, of what has the template (an item of the list, or the object), in
    # Python and in CEL over `item`; None and empty: the kind has no such choice. An empty value is not written.
    leaf_label: Callable[[Mapping[str, Any]], str] | None = None
    leaf_label_cel: str = ""
    part_of: tuple[str, ...] = ()  # kinds of owners that make it part of the owner's tree
    policy_from: tuple[str, ...] = ()  # kinds of owners whose annotations count instead of its own
    parts: Parts | None  # None: only the annotations of its objects count, for what they own
    # the leaves that a workload without pods will have, for `plan`, where `parts` goes by the pods; None: it does not
    planned_uses: Callable[[WorkloadObject], tuple[LeafUse, ...]] | None = None
    finished: Callable[[WorkloadObject], bool]
    suspended: Callable[[WorkloadObject], bool]
    refusals: Callable[[WorkloadObject, TreePolicy], tuple[Refusal, ...]]
    kept_out: Callable[[WorkloadObject], str]  # why it is not ours; empty: it is ours
    # the fields of `spec` that the entry reads, with their types; objects of files are checked against it
    spec_type: type[msgspec.Struct] | None = None
