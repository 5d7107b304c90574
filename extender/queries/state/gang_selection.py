"""The part of the gangs, or of the trees of workloads, that a list has: by namespace, state and labels."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, get_args

import msgspec

from extender.core.log.reservation_state import DerivedPhase, Phase, TreeOutcome
from extender.queries.log.parameter_validation import checked_choice
from extender.queries.state.gang_status import SUSPENDED
from extender.queries.state.label_selector import LabelSelector, selects

GANG_STATES: Final[tuple[str, ...]] = (*get_args(Phase), *get_args(DerivedPhase), SUSPENDED)
TREE_OUTCOMES: Final[tuple[str, ...]] = get_args(TreeOutcome)
TREE_STATES: Final[tuple[str, ...]] = (*TREE_OUTCOMES, *GANG_STATES)


class GangSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which gangs or trees a list has; empty fields do not restrict it."""

    namespace: str = ""
    states: frozenset[str] = frozenset()
    selector: LabelSelector = ()

    def in_namespace(self, name: str) -> bool:
        """Return whether `namespace/name` is in the requested namespace."""
        return not self.namespace or name.startswith(f"{self.namespace}/")

    def has_labels(self, labels: Mapping[str, str]) -> bool:
        """Return whether the label selector selects an object with these labels."""
        return selects(self.selector, labels)

    def in_state(self, *states: str) -> bool:
        """Return whether one of the states of an object is requested."""
        return not self.states or not self.states.isdisjoint(states)


def checked_states(texts: Collection[str], choices: tuple[str, ...], field: str) -> frozenset[str]:
    """Return states of gangs or trees.

    Raises:
        BadInput: One of them is no such state; the message has all of them.
    """
    return frozenset(checked_choice(text, choices, field, "state") for text in texts)
