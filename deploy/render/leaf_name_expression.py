"""The rules of the names of leaves as CEL, for the policy that labels pods."""

from __future__ import annotations

from collections.abc import Iterable

from deploy.render.tree_policy_expressions import text
from extender.core.workloads.name_rules import NAME_MAX, LabelCondition, NameRule, Piece


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
        conditions += [f"{text(key)} in {labels}" for key in rule.label_keys]
        name = _cel_name(_cel_piece(labels, rule.head), [_cel_piece(labels, p) for p in rule.rest])
        names.append(f"({' && '.join(conditions)})\n? {name} : ''")
    joined = ",\n".join(names)
    return f"([{joined}].filter(leaf, leaf != '') + [''])[0]"


def _cel_condition(labels: str, condition: LabelCondition) -> str:
    key = text(condition.key)
    expression = f"{key} in {labels}"
    if condition.value is not None:
        expression = f"{expression} && {labels}[{key}] == {text(condition.value)}"
    return f"!({expression})" if condition.absent else f"({expression})"


def _cel_piece(labels: str, piece: Piece) -> str:
    if isinstance(piece, str):
        return text(piece)
    value = f"{labels}[{text(piece.key)}]"
    if piece.ordinal:
        dash = f"{value}.lastIndexOf('-')"
        return f"({dash} > 0 ? {value}.substring(0, {dash}) : {value})"
    if piece.first:
        value = f"(size({value}) > {piece.first} ? {value}.substring(0, {piece.first}) : {value})"
    return value


def _cel_name(head: str, rest: list[str]) -> str:
    """Return the CEL form of `joined_name`; head and rest are joined in a list so that each is written once."""
    pair = f"[({head}).replace('.', '-'), ({' + '.join(rest) if rest else text('')}).replace('.', '-')]"
    return (
        f"[{pair}].map(n, size(n[0]) + size(n[1]) <= {NAME_MAX} ? n[0] + n[1]"
        f" : size(n[1]) < {NAME_MAX} ? n[0].substring(0, {NAME_MAX} - size(n[1])) + n[1]"
        f" : 'x' + n[1].substring(size(n[1]) - {NAME_MAX - 1}))[0]"
    )
