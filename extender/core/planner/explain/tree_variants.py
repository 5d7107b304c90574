"""Changed trees of one request, and which of them are the same but for names and order of groups and pods.

A search gives interchangeable trees the same answer, so one solve answers for all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec
from msgspec import UNSET

from extender.core.model.ids import GroupKey, PodUid
from extender.core.planner.model.feasibility import (
    domain_keys,
    is_leaf,
    is_required,
    required_names,
    threshold,
)
from extender.core.planner.model.leaf_slices import slice_pods
from extender.core.planner.plan_types import PlanGroup


class RequirementChange(msgspec.Struct, frozen=True):
    """Other requirements of one group; None leaves one as it is."""

    minimum: int | None = None  # of a group with slices in pods
    topology: tuple[str, ...] | None = None
    shares: bool = False  # it may be in a domain that others have, still one

    def of(self, group: PlanGroup) -> PlanGroup:
        """Return the changed group."""
        if self.minimum is not None:
            # pods, in slices if there are any
            parts = -(-self.minimum // max(slice_pods(group), 1))
            group = msgspec.structs.replace(group, basic=False, minimum=parts)
            if not self.minimum:  # nothing is required then
                group = msgspec.structs.replace(group, required=UNSET)
        if self.topology is not None:
            group = msgspec.structs.replace(group, topology=self.topology, exclusive=UNSET)
        elif self.shares:
            group = msgspec.structs.replace(group, topology=domain_keys(group), exclusive=UNSET)
        return group


Changes: TypeAlias = Mapping[GroupKey, RequirementChange]
UNCHANGED = RequirementChange()


def changed_tree(root: PlanGroup, changes: Changes) -> PlanGroup:
    """Return the tree with changed groups."""
    return map_groups(root, lambda group: changes.get(group.key, UNCHANGED).of(group))


def map_groups(group: PlanGroup, change: Callable[[PlanGroup], PlanGroup]) -> PlanGroup:
    """Apply a change to every group of a tree."""
    children = tuple(map_groups(child, change) for child in group.groups)
    return change(msgspec.structs.replace(group, groups=children))


def walk(group: PlanGroup) -> list[PlanGroup]:
    """List the groups of a tree, parents first."""
    return [group, *(g for child in group.groups for g in walk(child))]


class TreeForms:
    """Numbers for a tree and for changes of it: equal numbers mean that the trees are interchangeable.

    Waiting members count by their shapes, which is all that a search reads of most of them.
    """

    def __init__(
        self,
        root: PlanGroup,
        apart: frozenset[PodUid] = frozenset(),
        numbers: dict[tuple[object, ...], int] | None = None,
    ) -> None:
        """Number the tree.

        Args:
            apart: Members that count by themselves, because nodes are rejected for them.
            numbers: Of the trees that it is compared with; None: of no others.
        """
        self._apart = apart
        self._root = root
        self._groups = walk(root)
        self._position = {group.key: index for index, group in enumerate(self._groups)}
        self._parent = [-1] * len(self._groups)
        self._numbers = {} if numbers is None else numbers
        self._own: list[tuple[object, ...]] = [()] * len(self._groups)
        # by form of the children, and whether they are required
        self._below: list[Counter[tuple[int, bool]]] = [Counter() for _ in self._groups]
        self._required = [False] * len(self._groups)
        self._form: list[int] = [-1] * len(self._groups)
        for index in reversed(range(len(self._groups))):
            group = self._groups[index]
            shapes = sorted(
                Counter((m.shape, m.uid if m.uid in apart else "") for m in group.members).items()
            )
            bound = sorted(b.node for b in group.bound)
            self._own[index] = (is_leaf(group), tuple(shapes), tuple(bound))
            for child in group.groups:
                at = self._position[child.key]
                self._parent[at] = index
                self._required[at] = is_required(child, group)
                self._below[index][self._form[at], self._required[at]] += 1
            self._form[index] = self._of(index, group, self._below[index])

    def changed(self, changes: Changes) -> TreeForms:
        """Return the numbers for a changed tree."""
        return TreeForms(changed_tree(self._root, changes), self._apart, self._numbers)

    def number(self, changes: Changes) -> int:
        """Return the number of the tree with changed groups."""
        forms: dict[int, int] = {}
        below: dict[int, Counter[tuple[int, bool]]] = {}
        for index in self._touched(changes):
            group = changes.get(self._groups[index].key, UNCHANGED).of(self._groups[index])
            forms[index] = self._of(index, group, below.get(index, self._below[index]))
            parent = self._parent[index]
            if parent >= 0:
                counts = below.setdefault(parent, self._below[parent].copy())
                counts[self._form[index], self._required[index]] -= 1
                counts[forms[index], self._required[index]] += 1
        return forms.get(0, self._form[0])

    def _touched(self, changes: Changes) -> list[int]:
        """Return the positions of the changed groups and of all groups above them, children before parents."""
        touched: set[int] = set()
        for key in changes:
            index = self._position[key]
            while index >= 0 and index not in touched:
                touched.add(index)
                index = self._parent[index]
        return sorted(touched, reverse=True)

    def _of(self, index: int, group: PlanGroup, below: Counter[tuple[int, bool]]) -> int:
        counts: Counter[tuple[int, bool]] = Counter()
        for (form_of_child, required), count in below.items():
            counts[form_of_child, required and bool(required_names(group))] += count
        children = sorted((*key, count) for key, count in counts.items() if count)
        form = (threshold(group), group.topology, group.exclusive, self._own[index], *children)
        return self._numbers.setdefault(form, len(self._numbers))
