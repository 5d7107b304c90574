"""Rules that compute the name of a pod's leaf from its labels, in Python and as CEL.

A pod gets its leaf when it is created, from a MutatingAdmissionPolicy; the service computes the same names for the
groups that it creates. So a rule is data, and both forms are made from it: they cannot differ. CEL has no hash
function, so names are made unique by pieces of UIDs and by revisions.
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


# --- CEL


def cel_of(rules: Iterable[NameRule], labels: str = "variables.labels") -> str:
    """Return the CEL expression of the leaf's name; an empty string where no rule applies.

    It is a list of what each rule gives and not one condition inside of another: kube-apiserver refuses expressions with more
    than 32 levels.

    Args:
        rules: The first one that applies counts.
        labels: The CEL expression of the labels of the pod, a map.
    """
    names = []
    for rule in rules:
        conditions = [_cel_condition(labels, condition) for condition in rule.when]
        conditions += [f"{_cel_text(key)} in {labels}" for key in rule.label_keys]
        name = _cel_name(_cel_piece(labels, rule.head), [_cel_piece(labels, p) for p in rule.rest])
        names.append(f"({' && '.join(conditions)})\n? {name} : ''")
    joined = ",\n".join(names)
    return f"([{joined}].filter(leaf, leaf != '') + [''])[0]"


def _cel_condition(labels: str, condition: LabelCondition) -> str:
    key = _cel_text(condition.key)
    expression = f"{key} in {labels}"
    if condition.value is not None:
        expression = f"{expression} && {labels}[{key}] == {_cel_text(condition.value)}"
    return f"!({expression})" if condition.absent else f"({expression})"


def _cel_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _cel_piece(labels: str, piece: Piece) -> str:
    if isinstance(piece, str):
        return _cel_text(piece)
    value = f"{labels}[{_cel_text(piece.key)}]"
    if piece.ordinal:
        dash = f"{value}.lastIndexOf('-')"
        return f"({dash} > 0 ? {value}.substring(0, {dash}) : {value})"
    if piece.first:
        value = f"(size({value}) > {piece.first} ? {value}.substring(0, {piece.first}) : {value})"
    return value


def _cel_name(head: str, rest: list[str]) -> str:
    """Return the CEL form of `joined_name`; head and rest are joined in a list so that each is written once."""
    pair = f"[({head}).replace('.', '-'), ({' + '.join(rest) if rest else _cel_text('')}).replace('.', '-')]"
    return (
        f"[{pair}].map(n, size(n[0]) + size(n[1]) <= {NAME_MAX} ? n[0] + n[1]"
        f" : size(n[1]) < {NAME_MAX} ? n[0].substring(0, {NAME_MAX} - size(n[1])) + n[1]"
        f" : 'x' + n[1].substring(size(n[1]) - {NAME_MAX - 1}))[0]"
    )
