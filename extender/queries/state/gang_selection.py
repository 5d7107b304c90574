"""The part of the gangs, or of the trees of workloads, that a list has: by namespace, state and labels.

Label selectors are those of kubectl: `a=b,c!=d,e in (x,y),f notin (z),g,!h`. Labels are those of the cluster now; the log has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import msgspec

from extender.core.log.reservation_state import DerivedPhase, GangState, Phase, TreeOutcome
from extender.core.model.errors import BadInput
from extender.core.model.ids import GroupKey, GroupKind
from extender.ports.cluster_ports import Cluster
from extender.ports.workload_ports import Workloads
from extender.queries.state.gang_status import SUSPENDED

GANG_STATES: Final[tuple[str, ...]] = (*get_args(Phase), *get_args(DerivedPhase), SUSPENDED)
TREE_OUTCOMES: Final[tuple[str, ...]] = get_args(TreeOutcome)
TREE_STATES: Final[tuple[str, ...]] = (*TREE_OUTCOMES, *GANG_STATES)


class GangSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which gangs or trees a list has; empty fields do not restrict it."""

    namespace: str = ""
    states: tuple[str, ...] = ()
    selector: LabelSelector = ()

    def in_namespace(self, name: str) -> bool:
        """Return whether `namespace/name` is in the requested namespace."""
        return not self.namespace or name.startswith(f"{self.namespace}/")

    def has_labels(self, labels: Mapping[str, str]) -> bool:
        """Return whether the label selector selects an object with these labels."""
        return all(requirement.matches(labels) for requirement in self.selector)

    def in_state(self, *states: str) -> bool:
        """Return whether one of the states of an object is requested."""
        return not self.states or any(state in self.states for state in states)


FORMS: Final = "KEY, !KEY, KEY=VALUE, KEY!=VALUE, KEY in (VALUE,VALUE), KEY notin (VALUE,VALUE)"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = rf"(?:[a-z0-9][a-z0-9.-]{{0,252}}/)?{_NAME}"
_VALUE = re.compile(rf"(?:{_NAME})?")
_ONE = rf"(?:!?{_KEY}|{_KEY}(?:==|=|!=)(?:{_NAME})?|{_KEY} (?:in|notin) \((?:{_NAME})?(?:,(?:{_NAME})?)*\))"
# of selectors without needless spaces, for the OpenAPI document
PATTERN: Final = f"^{_ONE}(?:,{_ONE})*$"
_REQUIREMENT = re.compile(
    rf"(?P<absent>!)?\s*(?P<key>{_KEY})"
    r"(?:\s*(?P<equality>==|=|!=)\s*(?P<value>\S*)|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?"
)


class LabelRequirement(msgspec.Struct, frozen=True, gc=False):
    """One requirement on labels; `NotIn` also matches labels without the key, as in Kubernetes."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet the requirement."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


LabelSelector = tuple[LabelRequirement, ...]


def parse_selector(text: str, field: str) -> LabelSelector:
    """Return the requirements of a label selector.

    >>> [one.operator for one in parse_selector("a=b,c!=d,e in (x, y),!f", "-l")]
    ['In', 'NotIn', 'In', 'DoesNotExist']

    Args:
        text: The selector; an empty one has no requirements.

    Raises:
        BadInput: A requirement has none of the forms, or its key or a value cannot be that of a label.
    """
    return tuple(_requirement(part, field) for part in _parts(text)) if text.strip() else ()


def _parts(text: str) -> Iterator[str]:
    """Yield what is between commas outside parentheses."""
    depth = begin = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield text[begin:place].strip()
            begin = place + 1
    yield text[begin:].strip()


def _requirement(part: str, field: str) -> LabelRequirement:
    match = _REQUIREMENT.fullmatch(part)
    if match is None or (match["absent"] and (match["equality"] or match["set"])):
        raise BadInput(f"{field}: {part[:80]!r} is not a requirement on labels; there are {FORMS}")
    key, values = match["key"], [match["value"] or ""]
    if match["set"]:
        values = [value.strip() for value in match["values"].split(",")]
    for value in values:
        if not _VALUE.fullmatch(value):
            raise BadInput(
                f"{field}: {value[:80]!r} cannot be the value of label {key}: at most 63 letters, digits, '-', '_' or '.', "
                "a letter or digit first and last"
            )
    if match["equality"] or match["set"]:
        excluded = match["equality"] == "!=" or match["set"] == "notin"
        return LabelRequirement(key, "NotIn" if excluded else "In", frozenset(values))
    return LabelRequirement(key, "DoesNotExist" if match["absent"] else "Exists")


_NO_LABELS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True)
class ObjectLabels:
    """The labels of objects of a cluster."""

    cluster: Cluster
    workloads: Workloads

    def of_gang(self, root: GangState, workload_uid: str) -> Mapping[str, str]:
        """Return the labels of a root group and of the workload that it was made for.

        Of a key that both have, the value is that of the root group.

        Args:
            root: The gang; a root group that was deleted, or is not known yet, has no labels.
            workload_uid: The UID of its workload; empty: it has none.
        """
        namespace, _, name = root.gang.partition("/")
        kind: GroupKind = "CompositePodGroup" if root.kind == "CompositePodGroup" else "PodGroup"
        group = self.cluster.view().groups.get(GroupKey(namespace, name, kind))
        labels = group.labels if group is not None and group.uid == root.uid else _NO_LABELS
        return {**self.of_workload(workload_uid), **labels} if workload_uid else labels

    def of_workload(self, uid: str) -> Mapping[str, str]:
        """Return the labels of a workload; one that is gone, or not known yet, has none."""
        workload = self.workloads.view().objects.get(uid)
        return workload.labels if workload is not None else _NO_LABELS
