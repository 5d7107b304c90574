"""What is wrong with the groups of workloads, in words: each becomes an Event on its workload."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from extender.core.log.reservation_state import WorkloadTree
from extender.core.model.ids import GroupKey
from extender.core.model.pod_groups import Group
from extender.core.trees.group_writes import Link, Wanted, frozen_differences, is_taken


class GroupProblem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a group of a workload is not as it should be."""

    reason: str  # CamelCase, the reason of the Event
    message: str


def by_workload(
    problem_of: Mapping[GroupKey, Mapping[str, GroupProblem]],
) -> Mapping[str, tuple[GroupProblem, ...]]:
    """Return the problems by the UID of the workload: one of each reason, with the number of other groups that have it."""
    messages: dict[str, dict[str, list[str]]] = {}
    for key in sorted(problem_of, key=str):
        for uid, problem in problem_of[key].items():
            messages.setdefault(uid, {}).setdefault(problem.reason, []).append(problem.message)
    return {
        uid: tuple(
            GroupProblem(reason=reason, message=_first_of(several))
            for reason, several in reasons.items()
        )
        for uid, reasons in messages.items()
    }


def _first_of(messages: list[str]) -> str:
    others = len(messages) - 1
    if not others:
        return messages[0]
    return f"{messages[0]} (and {others} other group{'s' if others > 1 else ''})"


def contested_problem(key: GroupKey, tree: WorkloadTree, other: WorkloadTree) -> GroupProblem:
    """Return the problem of a tree whose group has the name of another tree's group."""
    text = (
        f"{key} is the group of {other.kind} {other.workload}, so pods of {tree.kind} {tree.workload} are in it too: "
        "give one of the workloads another name"
    )
    return GroupProblem(reason="NameTaken", message=text)


def group_problem(desired: Wanted, group: Group) -> GroupProblem | None:
    """Return the problem of a wanted group, when this is the group that has its name; None: there is none."""
    if group.deleting:
        if not is_taken(desired, group):
            return None
        text = (
            f"{group.key} was made for another object and is being deleted, which ends with the last of its pods; the "
            f"group of {desired.tree.kind} {desired.tree.workload} is created then: delete these pods to have it now"
        )
        return GroupProblem(reason="NameTaken", message=text)
    if is_taken(desired, group):
        text = (
            f"{group.key} exists already and was not made for {desired.tree.kind} {desired.tree.workload}; "
            "it is not changed: delete it, or give the workload another name"
        )
        return GroupProblem(reason="NameTaken", message=text)
    fields = frozen_differences(desired.spec, group)
    if fields:
        text = (
            f"{group.key} keeps its {', '.join(fields)}: these fields are immutable; "
            f"delete {desired.tree.kind} {desired.tree.workload} and create it again to change them"
        )
        return GroupProblem(reason="ShapeChanged", message=text)
    return None


def link_problem(link: Link, group: Group) -> GroupProblem | None:
    """Return the problem of an adopted group that should be below a composite; None: there is none."""
    if group.source != "builtin":
        text = (
            f"{group.key} of gang-extender.dev hides the group of the same name that was made for "
            f"{link.tree.kind} {link.tree.workload}; delete it"
        )
        return GroupProblem(reason="NameTaken", message=text)
    if group.parent in (None, link.parent):
        return None
    text = (
        f"{group.key} is below {group.parent} and not below {link.parent}; its parent is not changed: delete "
        f"{link.tree.kind} {link.tree.workload} and create it again, or remove what names {group.parent}"
    )
    return GroupProblem(reason="ShapeChanged", message=text)
