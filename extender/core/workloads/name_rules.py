"""Rules that compute the name of a pod's leaf from its labels.

A pod gets its leaf when it is created, from a MutatingAdmissionPolicy; the service computes the same names for the
groups that it creates. So a rule is data, and both forms are made from it, the CEL one in `deploy/render`: they
cannot differ. CEL has no hash function, so names are made unique by pieces of UIDs and by revisions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

NAME_MAX = 63  # of the value of a label


class LabelValue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The value of a label, cut to the first `first` characters (0: the whole value); dots become dashes."""

    key: str
    first: int = 0
    ordinal: bool = False  # without the last dash and what is behind it: the number of a pod


Piece = LabelValue | str


class LabelCondition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A label is there (`value` None), or has one value; `absent` negates it."""

    key: str
    value: str | None = None
    absent: bool = False


class NameRule(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a leaf for pods that meet all conditions and have all labels of the pieces.

    The name is `head` followed by `rest`. If it is longer than a label value may be, `head` is shortened.
    """

    when: tuple[LabelCondition, ...]
    head: LabelValue
    rest: tuple[Piece, ...] = ()

    @property
    def label_keys(self) -> tuple[str, ...]:
        """Return the labels that a pod must have for this rule."""
        needed = [piece.key for piece in (self.head, *self.rest) if isinstance(piece, LabelValue)]
        return tuple(dict.fromkeys(needed))


def joined_name(head: str, rest: str) -> str:
    """Return `head` and `rest` as one name of at most NAME_MAX characters.

    `head` is shortened first, because no two names need to differ in it. A `rest` that fills the name loses its
    beginning, behind an `x`.
    """
    head, rest = head.replace(".", "-"), rest.replace(".", "-")
    if len(head) + len(rest) <= NAME_MAX:
        return head + rest
    if len(rest) < NAME_MAX:
        return head[: NAME_MAX - len(rest)] + rest
    return "x" + rest[len(rest) - NAME_MAX + 1 :]


def split_name(pattern: re.Pattern[str], head: str, name: str) -> re.Match[str] | None:
    """Return the match of `pattern` with what `joined_name` put behind `head`; None: the name belongs to another workload."""
    head = head.replace(".", "-")
    if name.startswith(head) and (match := pattern.fullmatch(name, len(head))):
        return match
    if len(name) == NAME_MAX:  # perhaps it was shortened
        for at in range(min(len(head), NAME_MAX) - 1, 0, -1):
            if name.startswith(head[:at]) and (match := pattern.fullmatch(name, at)):
                return match
    return None


def leaf_name(rules: Iterable[NameRule], labels: Mapping[str, str]) -> str:
    """Return the name of the leaf of a pod with these labels by the first rule that applies, or an empty string."""
    for rule in rules:
        if all(_meets(labels, condition) for condition in rule.when) and all(
            key in labels for key in rule.label_keys
        ):
            rest = "".join(_piece(labels, piece) for piece in rule.rest)
            return joined_name(_piece(labels, rule.head), rest)
    return ""


def labels_of_leaf(
    rules: Iterable[NameRule], labels: Mapping[str, str], name: str
) -> Mapping[str, str]:
    """Return labels with which a pod has this leaf, for callers that make pods as a controller does; inverse of `leaf_name`.

    Args:
        labels: Those that are known of the pod; they stay as they are.

    Returns:
        The labels with those that were missing; only the known ones if no rule gives the name.
    """
    rules = tuple(rules)
    for rule in rules:
        completed = _labels_by_rule(rule, labels, name)
        if leaf_name(rules, completed) == name:
            return completed
    return dict(labels)


def _labels_by_rule(rule: NameRule, labels: Mapping[str, str], name: str) -> dict[str, str]:
    completed = dict(labels)
    for condition in rule.when:
        if condition.value is not None and not condition.absent:
            completed.setdefault(condition.key, condition.value)
    if not rule.rest:
        completed.setdefault(rule.head.key, name)
        return completed
    unknown: list[str] = []
    pattern = ""
    for piece in rule.rest:
        if isinstance(piece, str) or piece.key in completed:
            pattern += re.escape(_piece(completed, piece).replace(".", "-"))
        else:
            unknown.append(piece.key)
            pattern += "(.+)"
    head = _piece(completed, rule.head) if rule.head.key in completed else ""
    matched = split_name(re.compile(pattern), head, name)
    if matched is not None:
        completed.update(zip(unknown, matched.groups(), strict=True))
    return completed


def _meets(labels: Mapping[str, str], condition: LabelCondition) -> bool:
    if condition.value is None:
        is_met = condition.key in labels
    else:
        is_met = labels.get(condition.key) == condition.value
    return is_met is not condition.absent


def _piece(labels: Mapping[str, str], piece: Piece) -> str:
    if isinstance(piece, str):
        return piece
    value = labels[piece.key]
    if piece.ordinal:
        return without_ordinal(value)
    return value[: piece.first] if piece.first else value


def without_ordinal(name: str) -> str:
    """Return the name of a pod without its number; one without a number stays as it is.

    >>> without_ordinal("web-a-12")
    'web-a'
    """
    return name.rpartition("-")[0] or name
