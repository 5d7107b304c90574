"""Sentences about a tree that waits or runs: the first line of `explain`, conditions of groups, and Kubernetes Events.

Each answer is the group and a text about it. `was` is the beginning of a text: what happened to a tree that was bound before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from extender.core.admit.plan_request import foreign_gates
from extender.core.log.gang_phase import (
    HOLDS_CAPACITY,
    PREEMPTING,
    TAKEN,
    capacity_was_taken,
)
from extender.core.log.preemption_state import PendingPreemption
from extender.core.log.reservation_state import GangState, LastDecision
from extender.core.log.visible_state import reduced_decision
from extender.core.model.ids import GroupKey
from extender.core.model.message_formatting import counted, spaced
from extender.core.model.pod_groups import Tree
from extender.core.model.visibility import EVERYTHING, Visibility, name_for

MESSAGE_MAX: Final = 800  # characters of a condition or Event; Kubernetes takes 1,024 of an Event
UNITS_MAX: Final = 3  # named in a text
_WAITING_FOR: Final = "waiting for "
_HELP: Final = ". What would help: "


class RefusalWords(NamedTuple):
    """The words of a refusal, for now or for a past moment."""

    never: str
    unknown: str
    not_now: str
    when_empty: str  # it fits if no other pod runs
    no_reason: str


NOW: Final = RefusalWords(
    "can never be placed on these nodes, also when no other pod runs",
    "may fit or not",
    "does not fit now",
    "it fits when no other pod runs",
    "no reason is known",
)
THEN: Final = RefusalWords(
    "could never be placed on the nodes of that time, also when no other pod ran",
    "may have fitted or not",
    "did not fit",
    "it fitted when no other pod ran",
    "no reason was recorded",
)


class Sentences(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about a tree, with more reasons and what would help, the most important first."""

    answer: str
    reasons: tuple[str, ...] = ()
    help: tuple[str, ...] = ()

    def message(self) -> str:
        """Return them as one text of at most `MESSAGE_MAX` characters: reasons are left out first, then help."""
        helps = f"{_HELP}{self.help[0]}" if self.help else ""
        left = MESSAGE_MAX - len(helps)
        text = self.answer
        for reason in self.reasons:
            if len(text) + 2 + len(reason) > left:
                break
            text += f"; {reason}"
        if len(text) <= left:
            return text + helps
        return text if len(text) <= MESSAGE_MAX else f"{text[: MESSAGE_MAX - 1]}…"


def missing_text(pods: int) -> str:
    """Return the text about a group that pods name and that does not exist."""
    names, wait = ("names", "waits") if pods == 1 else ("name", "wait")
    return f"does not exist; {counted(pods, 'pod')} {names} it and {wait}"


def orphan_text(key: GroupKey, problem: str) -> str:
    """Return the text about a group whose parent is missing or wrong."""
    return f"is not scheduled: {about_it(spaced(key), problem)}"


def invalid_text(problem: str) -> str:
    """Return the text about a tree that breaks a rule."""
    return f"is not valid and is not scheduled: {problem}"


def waiting_text(reason: str, was: str = "", verb: str = "waits") -> str:
    """Return the text about a tree that lacks members or groups."""
    if not reason.startswith(_WAITING_FOR):
        return f"{was}{verb}: {reason}"
    return f"{was}{verb} for {reason.removeprefix(_WAITING_FOR)}"


def refused_text(who: str, decision: LastDecision, was: str = "", words: RefusalWords = NOW) -> str:
    """Return the text about a complete tree that has no plan: never, or not now."""
    if decision.when_empty == "never":
        first = _first(decision.reasons_when_empty or decision.reasons, words)
        return f"{was}{words.never}: {about_it(who, first)}"
    first = about_it(who, _first(decision.reasons, words))
    if decision.outcome == "unknown":
        return f"{was}{words.unknown}: {first}"
    empty = f"; {words.when_empty}" if decision.when_empty == "fits" else ""
    return f"{was}{words.not_now}: {first}{empty}"


def victims_text(preemption: PendingPreemption, readers: Visibility = EVERYTHING) -> str:
    """Return how many victims of a preemption are not gone, and of which units."""
    if not preemption.victims:
        return "all victims are gone"
    priorities = dict(zip(preemption.units, preemption.priorities, strict=True))
    names = sorted({victim.unit for victim in preemption.victims.values()})
    units = [
        spaced(name_for(readers, name, priority=priorities.get(name), position=preemption.position))
        for name in names
    ]
    more = f" and {len(units) - UNITS_MAX} more" if len(units) > UNITS_MAX else ""
    return f"{counted(len(preemption.victims), 'victim')} to go of {', '.join(units[:UNITS_MAX])}{more}"


def gates_help(tree: Tree) -> str:
    """Return what helps a tree whose pods other controllers hold by scheduling gates; empty: none do."""
    gates = foreign_gates(tree)
    if not gates:
        return ""
    return f"remove the scheduling gates {', '.join(gates)} of its pods; until then they are no members"


def pending_sentences(
    tree: Tree,
    root: GangState,
    preemption: PendingPreemption | None,
    readers: Visibility = EVERYTHING,
) -> Sentences | None:
    """Return the sentences about what waits of a valid tree, as the log has it; None: no decision holds."""
    who, decision = spaced(tree.root.key), root.last_decision
    if decision is None or decision.outcome == "invalid":  # it is valid again, and not planned yet
        if capacity_was_taken(root):
            return Sentences(answer=f"{who} waits: {TAKEN}")
        return None
    decision = reduced_decision(decision, readers)
    rest = decision.reasons[1:]
    if decision.outcome == PREEMPTING and preemption is not None and not preemption.ended:
        left = victims_text(preemption, readers)
        return Sentences(answer=f"{who} waits for victims of its preemption: {left}")
    if decision.outcome in ("waiting", PREEMPTING):
        gates = gates_help(tree)
        help_ = (gates,) if gates else ()
        answer = f"{who} {waiting_text(_first(decision.reasons))}"
        return Sentences(answer=answer, reasons=rest, help=help_)
    if root.phase in HOLDS_CAPACITY:
        answer = f"the rest of {who} waits: {about_it(who, _first(decision.reasons))}"
    else:
        answer = f"{who} {refused_text(who, decision)}"
    return Sentences(answer=answer, reasons=rest, help=decision.help)


def _first(reasons: Iterable[str], words: RefusalWords = NOW) -> str:
    return next(iter(reasons), words.no_reason)


def about_it(who: str, text: str) -> str:
    """Return a text about a group without its name, where the sentence begins with it.

    >>> about_it("PodGroup ns/g", "PodGroup ns/g needs 2 pods")
    'it needs 2 pods'
    """
    return f"it{text.removeprefix(who)}" if text.startswith(f"{who} ") else text
