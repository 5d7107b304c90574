"""Answer plan queries about capacity: how often trees fit, without or with some nodes, with weaker requirements.

Copies are planned one after the other, as trees that are created one after the other are admitted: each in the capacity
that those before it leave, and no copy is evicted for a later one. So the number of copies that fit is exact for this
order; it is not the most that any arrangement of them all would allow.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.model.cluster_view import ClusterView, forest_of, with_group, with_node, with_pod
from extender.core.model.errors import BadInput
from extender.core.model.ids import GroupKey, PodUid
from extender.core.model.message_formatting import did_you_mean, join_names, spaced
from extender.core.model.pod_groups import Group
from extender.core.model.pods import Pod
from extender.queries.plan import plan_query
from extender.queries.plan.cluster_changes import further_nodes, without_nodes
from extender.queries.plan.plan_dto import (
    COPIES_MAX,
    CopiesLine,
    GangVerdict,
    PlanAnswer,
    PlanQuestion,
)
from extender.queries.plan.plan_steps import GroupOrigin, RefusedWorkload


class TreeCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of the planned trees, under names that nothing in the cluster has."""

    groups: tuple[Group, ...]
    pods: tuple[Pod, ...]
    order: Mapping[GroupKey | PodUid, int]
    origins: Mapping[GroupKey, GroupOrigin] = {}
    refused: tuple[RefusedWorkload, ...] = ()
    original: Mapping[GroupKey, GroupKey] = {}  # the group that each group is a copy of


CopyMaker = Callable[[int], TreeCopy]  # of a number from 2
Progress = Callable[[int, int], None]  # copies that fit, copies that are wanted (0: as many as fit)


def no_progress(_done: int, _copies: int) -> None:
    """Report no progress."""


def answer_capacity_query(
    view: ClusterView,
    question: plan_query.PlanInput,
    asked: PlanQuestion,
    make_copy: CopyMaker,
    progress: Progress = no_progress,
    *,
    most: int = COPIES_MAX,
) -> PlanAnswer:
    """Return the answer to a plan query on a changed cluster, for one or more copies of the trees.

    Args:
        question: The trees of the query.
        asked: The query, for what it supposes and how often it plans the trees.
        make_copy: Makes copies of the trees; called only if more than one copy is planned.
        progress: Called after each copy that fits.
        most: Copies that are planned where as many are wanted as fit.

    Raises:
        BadInput: A change names nothing that exists, or does not go with another; names option and value.
    """
    _check(question, asked)
    trees = [t for t in forest_of(view).trees.values() if plan_query.is_requested_tree(t, question)]
    groups = {group.key: group for tree in trees for group in tree.groups}
    groups |= {key: view.groups[key] for key in question.groups if key in view.groups}
    named = tuple(groups[key] for key in sorted(groups))
    relaxed = tuple(_relaxation(text, named, question.origins) for text in asked.relax)
    pods = question.pods.union(pod.uid for tree in trees for pod in tree.pods)
    nodes, given_with = further_nodes(view, asked.with_)
    changed = without_nodes(
        view, question.state, asked.without, planned=lambda pod: pod.uid in pods
    )
    view = changed.view
    for node in nodes:
        view = with_node(view, node)
    for relaxation in relaxed:
        view = with_group(view, relaxation.of(view.groups[relaxation.group]))
    question = replace(question, state=changed.state)
    rows = NodeRowCache(question.topology_keys)
    answer = _Copies(view, question, relaxed, make_copy, rows, most).answer(asked, progress)
    given = (
        *changed.given,
        *given_with,
        *(relaxation.text(groups[relaxation.group]) for relaxation in relaxed),
    )
    return replace(answer, given=given) if given else answer


def _check(question: plan_query.PlanInput, asked: PlanQuestion) -> None:
    counting = bool(asked.copies) or asked.max_copies
    if asked.copies and asked.max_copies:
        raise BadInput("copies and max-copies: give one of them")
    if counting and question.all_pending:
        option = "copies" if asked.copies else "max-copies"
        raise BadInput(
            f"{option}: counts copies of the trees that are given, so there must be such trees, and no query for all "
            "pending trees of the cluster"
        )


@dataclass
class _Copies:
    """Plans copies of trees, each on the cluster with those before it."""

    _view: ClusterView
    _question: plan_query.PlanInput
    _relaxed: tuple[GroupRelaxation, ...]
    _make_copy: CopyMaker
    _rows: NodeRowCache
    _most: int

    def answer(self, asked: PlanQuestion, progress: Progress) -> PlanAnswer:
        """Return the answer for all copies."""
        if not asked.copies and not asked.max_copies:
            verdicts, _ = plan_query.plan_in_order(self._view, self._question, self._rows)
            return PlanAnswer(verdict=plan_query.worst_verdict(verdicts), gangs=verdicts)
        self._question = replace(self._question, keep_placed=True)
        most = asked.copies or self._most
        fit = 0
        gangs: list[GangVerdict] = []
        refused: tuple[GangVerdict, ...] = ()
        while fit < most and not refused:
            verdicts = self._next(fit + 1)
            if not gangs and not verdicts:
                return PlanAnswer(verdict="nothing", gangs=())
            gangs += (replace(verdict, copy=fit + 1) for verdict in verdicts)
            refused = tuple(verdict for verdict in verdicts if verdict.verdict != "placed")
            if not refused:
                fit += 1
                progress(fit, asked.copies)
        unknown = any(verdict.verdict == "unknown" for verdict in refused)
        limited = asked.max_copies and not refused
        counted = gangs if asked.copies or not fit else ()
        return PlanAnswer(
            verdict=plan_query.worst_verdict(counted) if counted else "placed",
            gangs=tuple(gangs),
            copies=CopiesLine(
                wanted=asked.copies, fit=fit, proved=not unknown and not limited, limited=limited
            ),
        )

    def _next(self, number: int) -> tuple[GangVerdict, ...]:
        """Return the answers for one copy; the cluster keeps its pods if all its trees are placed."""
        view, question = self._view, self._question
        if number > 1:
            view, question = self._with_copy(self._make_copy(number))
        verdicts, after = plan_query.plan_in_order(view, question, self._rows)
        if all(verdict.verdict == "placed" for verdict in verdicts):
            self._view = after
        return verdicts

    def _with_copy(self, copy: TreeCopy) -> tuple[ClusterView, plan_query.PlanInput]:
        view = self._view
        for group in copy.groups:
            weaker = [r for r in self._relaxed if r.group == copy.original.get(group.key)]
            view = with_group(view, functools.reduce(lambda g, r: r.of(g), weaker, group))
        for pod in copy.pods:
            view = with_pod(view, pod)
        question = replace(
            self._question,
            groups=frozenset(group.key for group in copy.groups),
            pods=frozenset(pod.uid for pod in copy.pods),
            order=copy.order,
            origins=copy.origins,
            refused=copy.refused,
        )
        return view, question


FIELDS: Final = ("topology", "slices", "exclusive", "minCount", "minGroupCount")
GROUPS_SHOWN_MAX: Final = 20
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


class GroupRelaxation(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement of one group that is dropped, or lowered to `minimum`."""

    group: GroupKey
    field: Literal["topology", "slices", "exclusive", "minimum"]
    minimum: int = 0

    def of(self, group: Group) -> Group:
        """Return the group with the requirement dropped or lowered."""
        if self.field == "topology":
            return _with(group, topology=(), exclusive=None)
        if self.field == "slices":
            return _with(group, slices=())
        if self.field == "exclusive":
            return _with(group, topology=group.constraints.domain_keys, exclusive=None)
        return replace(group, minimum=self.minimum)

    def text(self, group: Group) -> str:
        """Return what is changed about the group, as a sentence."""
        name = spaced(group.key)
        if self.field == "topology":
            return f"{name} without its topology constraint ({', '.join(group.constraints.domain_keys)})"
        if self.field == "slices":
            levels = ", ".join(f"{level.size} by {level.key}" for level in group.constraints.slices)
            return f"{name} without its slices ({levels})"
        if self.field == "exclusive" and group.constraints.exclusive is not None:
            return f"{name} sharing its domain of {group.constraints.exclusive.key} with others"
        return f"{name} with {_minimum_field(group)} {self.minimum} in place of {group.minimum}"


def _with(group: Group, **constraints: object) -> Group:
    changed = replace(group.constraints, **constraints)
    return replace(group, constraints=changed)


def _relaxation(
    text: str, groups: tuple[Group, ...], origins: Mapping[GroupKey, GroupOrigin]
) -> GroupRelaxation:
    """Return the relaxation that a user wrote.

    Args:
        text: As in the message below; GROUP is the name of a group, with namespace or kind and namespace where that is needed, or its
            role in a workload.

    Raises:
        BadInput: The form, the group, the field or the number is wrong; the message has those that exist.
    """
    name, colon, change = text.rpartition(":")
    field, equals, number = change.partition("=")
    if not colon or not name:
        raise BadInput(
            f'relax "{text}": write GROUP:topology, GROUP:slices, GROUP:exclusive, GROUP:minCount=N or GROUP:minGroupCount=N'
        )
    group = _group_named(text, name, groups, origins)
    if field not in FIELDS:
        hint = did_you_mean(field, FIELDS) or f"; it is one of {', '.join(FIELDS)}"
        raise BadInput(f'relax "{text}": {spaced(group.key)} has no requirement "{field}"{hint}')
    constraints = group.constraints
    dropped = {
        "topology": (constraints.domain_keys, "topology constraint"),
        "slices": (constraints.slices, "slices"),
        "exclusive": (constraints.exclusive, "exclusive domain"),
    }
    if field in dropped:
        constraint, noun = dropped[field]
        if equals:
            raise BadInput(f'relax "{text}": {field} takes no value; the constraint is dropped')
        if not constraint:
            raise BadInput(f'relax "{text}": {spaced(group.key)} has no {noun}')
        return GroupRelaxation(group=group.key, field=field)  # type: ignore[arg-type]
    right = _minimum_field(group)
    if field != right:
        raise BadInput(f'relax "{text}": {spaced(group.key)} has {right}, not {field}')
    if group.basic:
        raise BadInput(
            f'relax "{text}": {spaced(group.key)} has the policy basic, which needs no minimum'
        )
    least = max(1, len(group.required))
    if not _NUMBER.fullmatch(number) or not least <= int(number) <= group.minimum:
        always = f", and it requires {least} of its groups" if group.required else ""
        raise BadInput(
            f'relax "{text}": {right} of {spaced(group.key)} is {group.minimum}{always}; write a number from {least} to '
            f'{group.minimum}, found "{number}"'
        )
    return GroupRelaxation(group=group.key, field="minimum", minimum=int(number))


def _minimum_field(group: Group) -> str:
    return "minCount" if group.key.kind == "PodGroup" else "minGroupCount"


def _group_named(
    text: str, name: str, groups: tuple[Group, ...], origins: Mapping[GroupKey, GroupOrigin]
) -> Group:
    roles = {key: origin.role for key, origin in origins.items()}
    names = {
        key: (str(key), key.path, key.name, roles.get(key, ""))
        for key in (group.key for group in groups)
    }
    matching = [group for group in groups if name in names[group.key]]
    if len(matching) == 1:
        return matching[0]
    if matching:
        several = " or ".join(str(group.key) for group in matching[:GROUPS_SHOWN_MAX])
        raise BadInput(f'relax "{text}": "{name}" is ambiguous; write {several}')
    near = did_you_mean(
        name, (spelling for all_ in names.values() for spelling in all_ if spelling)
    )
    listed = join_names([group.key.path for group in groups], GROUPS_SHOWN_MAX) or "none"
    raise BadInput(
        f'relax "{text}": no planned tree has a group "{name}"{near or "; the groups are " + listed}'
    )
