"""Sentences about a tree that waits or runs: the first line of `explain`, conditions of groups, and Kubernetes Events.

Each answer is the group and a text about it. `was` is the beginning of a text: what happened to a tree that was bound before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from extender.core.log.events import GroupRecord, WishRecord
from extender.core.log.gang_phase import HOLDS_CAPACITY, PREEMPTING, TAKEN, capacity_was_taken
from extender.core.log.reservation_state import GangState, LastDecision, PendingPreemption
from extender.core.log.visible_state import reduced_decision
from extender.core.model.ids import GroupKey
from extender.core.model.message_formatting import counted, domain_text, join_names, spaced
from extender.core.model.pod_groups import Tree, foreign_gates
from extender.core.model.visibility import EVERYTHING, Visibility, name_for
from extender.core.planner.plan_types import WishOutcome, object_key

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
    return f"{counted(len(preemption.victims), 'victim')} to go of {join_names(units, UNITS_MAX)}"


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


# --- what the wishes of the groups of a tree reached

# A wish never refuses a placement. So its certificate is a value and a bound: nothing better is possible where both are
# equal, else the search ended before this was proved.

SHOWN_MAX: Final = 3  # sentences of one tree in a message; `explain` and the API have all
_HOSTNAME: Final = "kubernetes.io/hostname"
_TWO: Final = 2
_PROVED: Final = "(proved)"
_NOT_PROVED: Final = "(not proved within the search budget)"


class WishLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a wish of a group reached by one topology key, and the best that is possible."""

    kind: str  # preferred | balanced | near | rank
    group: str  # its name
    key: str
    # domains; of balanced the pods that the smallest share is below an equal one; of near pairs of pods, of rank neighbours, that
    # are in different domains
    value: int
    best: int  # proved: no placement of as many pods is below it
    proved: bool  # nothing better than `value` is possible
    text: str  # the sentence, without the name of the group
    partner: str = ""  # of near: the name of the other group


def recorded_wishes(wishes: Iterable[WishOutcome]) -> Mapping[GroupKey, tuple[WishRecord, ...]]:
    """Return the records of the wishes of a plan by group, one for each key, the narrowest key of a wish first.

    Those of slices are with their PodGroup. Every group of ranked pods has an order: those whose neighbours are all together are left out.
    """
    records: dict[GroupKey, tuple[WishRecord, ...]] = {}
    for wish in wishes:
        if wish.kind != "rank" or any(level.value for level in wish.values):
            key = object_key(wish.group)
            records[key] = tuple(dict.fromkeys((*records.get(key, ()), *_records(wish))))
    return records


def _records(wish: WishOutcome) -> tuple[WishRecord, ...]:
    return tuple(
        WishRecord(
            kind=wish.kind,
            key=level.key,
            value=level.value,
            best=level.best,
            pods=wish.pods,
            largest=wish.largest if level is wish.values[0] else 0,
            partner=wish.partner.name if wish.partner is not None else "",
        )
        for level in wish.values
    )


def plan_lines(wishes: Iterable[WishOutcome]) -> tuple[WishLine, ...]:
    """Return the lines about the wishes of a plan, in the order of the plan."""
    return tuple(line for wish in wishes for line in wish_lines(wish.group.name, _records(wish)))


def group_lines(groups: Iterable[GroupRecord]) -> tuple[WishLine, ...]:
    """Return the lines about the recorded wishes of groups, in their order."""
    return tuple(line for group in groups for line in wish_lines(group.name, group.wishes))


def wish_lines(group: str, records: Sequence[WishRecord]) -> tuple[WishLine, ...]:
    """Return the lines about the wishes of one group."""
    return tuple(
        WishLine(
            kind=record.kind,
            group=group,
            key=record.key,
            value=record.value,
            best=record.best,
            proved=record.best >= record.value,
            text=_sentence(record, records),
            partner=record.partner,
        )
        for record in records
    )


def shown_texts(lines: Iterable[WishLine]) -> tuple[str, ...]:
    """Return the sentences about lines, one text for all groups that have the same ones, with their names.

    What adds nothing is left out: a level, where the group is in one domain of a narrower one that it prefers; and the order
    of ranks, where all neighbours are together.
    """
    of_group: dict[str, list[str]] = {}
    for line in _relevant(lines):
        of_group.setdefault(line.group, []).append(line.text)
    by_text: dict[str, list[str]] = {}
    for group, texts in of_group.items():
        by_text.setdefault("; ".join(texts), []).append(group)
    return tuple(f"{join_names(names)}: {text}" for text, names in by_text.items())


def short_text(lines: Iterable[WishLine], *, named: bool = True) -> str:
    """Return the first sentences about lines as one text, without orders of ranks that are the best; empty: there are none.

    Args:
        named: Whether the names of the groups are in it; without: the lines are those of the group that the text is about.
    """
    lines = [line for line in lines if line.kind != "rank" or not line.proved]
    texts = shown_texts(lines) if named else tuple(line.text for line in _relevant(lines))
    more = f"; and {len(texts) - SHOWN_MAX} more" if len(texts) > SHOWN_MAX else ""
    return "; ".join(texts[:SHOWN_MAX]) + more


def anew_text(line: WishLine, possible: int, domains: Sequence[str]) -> str:
    """Return the sentence about a preferred level of a running group that a placement of all its pods now would reach.

    Args:
        line: What its wish reached when it was planned, more than one domain.
        possible: The fewer domains.
        domains: Their names.
    """
    domains = [domain_text(line.key, value) for value in domains]
    names = f": {join_names(domains)}" if domains else ""
    if possible == 1:
        return f"one {line.key} is free for all of it now{names}; it is in {line.value}"
    return (
        f"{possible} {_plural(line.key)} are free for all of it now{names}; it is in {line.value}"
    )


def _relevant(lines: Iterable[WishLine]) -> Iterator[WishLine]:
    whole: set[str] = set()  # groups that are in one domain of a level that they prefer
    for line in lines:
        if line.kind == "rank" and not line.value:
            continue
        if line.kind == "preferred":
            if line.group in whole:
                continue
            if line.value <= 1:
                whole.add(line.group)
        yield line


def _sentence(record: WishRecord, records: Sequence[WishRecord]) -> str:
    """Return the sentence about one record of a group that has these records."""
    if record.kind == "preferred":
        return f"prefers one {record.key}: {_preferred(record, records)}"
    if record.kind == "balanced":
        return _balanced(record, records)
    if record.kind == "near":
        head = f"near {record.partner} by {record.key}"
        none, number = "no pairs of pods", f"{counted(record.value, 'pair')} of pods"
    else:
        head = f"rank order by {record.key}"
        none, number = "no neighbours", f"{counted(record.value, 'pair')} of neighbours"
        if record.pods > 1:
            number = f"{record.value} of {counted(record.pods - 1, 'pair')} of neighbours"
    where = f"in different {_plural(record.key)}"
    if record.value <= 0:
        return f"{head}: {none} are {where} (best)"
    verb = "is" if record.value == 1 else "are"
    if record.kind == "rank" and record.best >= record.value:  # the nodes were chosen before
        return f"{head}: {number} {verb} {where}, fewer is impossible on these nodes {_PROVED}"
    return f"{head}: {number} {verb} {where}{_proof(record)}"


def _balanced(record: WishRecord, records: Sequence[WishRecord]) -> str:
    """Return the sentence about the shares of the domains that the group is in."""
    domains = next((r.value for r in records if (r.kind, r.key) == ("preferred", record.key)), _TWO)
    equal = record.pods // max(domains, 1)
    text = (
        f"balanced by {record.key}: the smallest of {counted(domains, 'share')} has "
        f"{equal - record.value} of {counted(record.pods, 'pod')}"
    )
    if record.value <= 0:
        return f"{text} (best)"
    if record.best >= record.value:
        return f"{text}, more is impossible {_PROVED}"
    return f"{text}; {equal - record.best} may be possible {_NOT_PROVED}"


def _preferred(record: WishRecord, records: Sequence[WishRecord]) -> str:
    if record.value <= 1:
        return "in one (best)"
    text = f"in {record.value} {_plural(record.key)}"
    if record.best < record.value:
        return text + _proof(record)
    levels = [other for other in records if other.kind == "preferred"]
    place = levels.index(record)
    around = next((wide for wide in levels[place + 1 :] if wide.value <= 1), None)
    if record.value == _TWO:  # one domain would come before all other criteria
        limit = f"one is impossible{_largest(record, ': ')}"
    elif around is not None:
        text = f"{text} of one {_noun(around.key)}"
        limit = f"fewer there is impossible{_largest(record, '; ')}"
    elif place:  # the number of narrower domains comes first
        limit = f"fewer is impossible with {levels[0].value} {_plural(levels[0].key)}"
    else:
        limit = f"fewer is impossible{_largest(record, '; ')}"
    return f"{text}, {limit} {_PROVED}"


def _largest(record: WishRecord, before: str) -> str:
    """Return what the best single domain can hold, after a separator; empty: it is not known."""
    if not record.largest or not record.pods:
        return ""
    return f"{before}the largest holds {record.largest} of {record.pods}"


def _proof(record: WishRecord) -> str:
    """Return whether something better is possible, as the end of a sentence."""
    if record.best >= record.value:
        return f", fewer is impossible {_PROVED}"
    least = {0: "none", 1: "one"}.get(record.best, str(record.best))
    return f"; {least} may be possible {'(not proved)' if record.kind == 'rank' else _NOT_PROVED}"


def _noun(key: str) -> str:
    """Return what a domain of a key is called: the last part of the key.

    >>> _noun("net/rack"), _noun("kubernetes.io/hostname")
    ('rack', 'node')
    """
    return "node" if key == _HOSTNAME else key.rpartition("/")[2]


def _plural(key: str) -> str:
    noun = _noun(key)
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
