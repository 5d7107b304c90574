"""Reports that operators ask for: which there are, what their columns mean, and what the log cannot know.

One implementation for HTTP and command line. The rows come from the views of migration 0005 through the
port `ReportQueries`; a person at psql reads the same views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import msgspec

from extender.core.model.errors import BadInput
from extender.core.model.ids import Position
from extender.queries.log.event_dto import rfc3339

DAY_US: Final = 86_400_000_000
LIMIT: Final = 1000  # rows, unless said
LIMIT_MAX: Final = 10_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Value = str | int | float | None


class ReportKind(msgspec.Struct, frozen=True, kw_only=True):
    """A report: what it tells and how its columns are called."""

    about: str  # one sentence
    columns: Mapping[str, str]  # name -> meaning and unit, in order
    unknown: str  # what the log does not know about it
    of_gangs: bool = True  # can be asked for one namespace or gang
    projected: bool = True  # told from intervals that follow the log


class ReportQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A question."""

    name: str
    since_us: int  # microseconds since 1970, inclusive
    until_us: int  # exclusive
    namespace: str = ""
    gang: str = ""  # namespace/name; every gang that had it
    limit: int = LIMIT


class ReportRows(msgspec.Struct, frozen=True, kw_only=True):
    """What the store answers."""

    rows: Sequence[
        Sequence[object]
    ]  # in the order of `Kind.columns`, at most one more than the limit
    head: Position  # where the log ended
    projected: Position  # how far the intervals followed it


class ReportLine(msgspec.Struct, frozen=True, kw_only=True):
    """One report in the list of reports."""

    name: str
    about: str
    columns: Mapping[str, str]
    unknown: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as everybody outside sees it."""

    report: str
    about: str
    since: str  # RFC 3339, inclusive
    until: str  # RFC 3339, exclusive
    position: Position  # of the log, up to which it is told
    unknown: str
    more: bool  # there are more rows than were asked for
    rows: list[dict[str, Value]]


class ReportQueries(Protocol):
    """Reads rows of reports."""

    async def rows(self, asked: ReportQuery) -> ReportRows:
        """Give the rows of a report that `REPORTS` names; one more than `limit` when there are more.

        Raises:
            StoreUnavailable: No answer, or it took too long.
        """
        ...


_GANG: Final = {"gang": "namespace/name of the root group", "gang_uid": "its UID; names are reused"}
_POSITION: Final = {"position": "of the fact in the log"}

REPORTS: Final[Mapping[str, ReportKind]] = {
    "pending": ReportKind(
        about="How long each gang waited, and why.",
        columns=_GANG
        | {
            "state": "observed, waiting (not complete), refused (no room), preempting or invalid",
            "reason": "the first sentence of the answer that stood meanwhile",
            "seconds": "waited for this reason within the span",
            "stretches": "how often that reason began to stand",
            "since": "when it first did; may be before the span",
            "until": "when it last ceased to; empty: it stands",
        },
        unknown="Pods without a group are not in the log. Extras of a tree that runs count as no wait.",
    ),
    "pending-namespaces": ReportKind(
        about="How long the gangs of each namespace waited, and why.",
        columns={
            "namespace": "of the gangs",
            "state": "observed, waiting (not complete), refused (no room), preempting or invalid",
            "gangs": "how many stood so at some time of the span",
            "now": "how many of them stand so at its end",
            "seconds": "waited by all of them together within the span",
            "longest": "seconds of the longest stretch within the span",
        },
        unknown="Pods without a group are not in the log. Extras of a tree that runs count as no wait.",
    ),
    "passed-over": ReportKind(
        about="Which trees of lower priority, or later ones of equal priority, were admitted while a gang stood refused.",
        columns=_GANG
        | {
            "priority": "of the gang that was passed over",
            "passed_by": "who was admitted meanwhile, namespace/name",
            "passed_by_priority": "its priority",
            "how": "lower priority, or later (by when the log first knew it)",
            "pods": "members that got room by that admission",
            "at": "when",
        }
        | _POSITION,
        unknown="Ordinary pods that took room meanwhile are not in the log. Of all gangs ask for hours, not for days.",
    ),
    "preemption-pairs": ReportKind(
        about="Who preempted whom, how often, and how many pods had to go.",
        columns={
            "preemptor": "namespace/name of the root group or lone pod that got the room",
            "priority": "its priority, the highest it had",
            "victim": "namespace/name of the disruption unit that had to go",
            "victim_kind": "CompositePodGroup, PodGroup or Pod",
            "victim_priority": "its priority, the highest it had",
            "preemptions": "plans that name the pair",
            "pods": "pods that were to go",
            "gone": "of them are gone",
            "first": "when it was first planned",
            "last": "when it was last planned",
        },
        unknown="Preemptions that kube-scheduler does by itself are not in the log; members it took are in `losses`.",
    ),
    "room": ReportKind(
        about="The largest free room in one place over time: what the largest tree with a required domain could have had.",
        columns={
            "at": "when it was measured",
            "resource": "extended resource, or cpu (millicores) where no node has any",
            "level": "topology key, or node: one single node",
            "domain": "where most was free",
            "free": "how much was free there",
            "nodes": "on how many of its nodes",
            "total": "free in the whole cluster",
            "until": "when it was measured anew; empty: it stands",
        }
        | _POSITION,
        unknown="A sample a minute, recorded when it differs. Pods of everybody count as taken.",
        of_gangs=False,
        projected=False,
    ),
    "room-taken": ReportKind(
        about="Which admissions took of the largest free room.",
        columns=_GANG
        | {
            "resource": "what was taken",
            "level": "topology key, or node",
            "domain": "where most of it had been free",
            "free": "how much was free there before",
            "taken": "how much this admission took there; more than was free where victims made room",
            "pods": "by how many members",
            "at": "when",
        }
        | _POSITION,
        unknown="What ordinary pods took of it is not in the log: it is what no row explains.",
        projected=False,
    ),
    "reserved": ReportKind(
        about="Device and CPU hours that were held for pods that did not run yet.",
        columns=_GANG
        | {
            "resource": "extended resource in units, or cpu in cores",
            "hours": "held within the span",
            "reservations": "how many",
            "held": "how many of them still stand at its end",
            "longest": "seconds of the longest within the span",
        },
        unknown="Room that preemptions keep free while victims go is not in it, nor nominations of ordinary pods.",
    ),
    "decisions": ReportKind(
        about="Admissions and refusals per hour.",
        columns={
            "hour": "begin of the hour, UTC",
            "admitted": "trees whose minimum got room",
            "extended": "later admissions of more members of such trees",
            "pods": "members that got room by either",
            "impossible": "refusals for want of room that were proved",
            "unknown": "refusals after the search budget was spent",
            "waiting": "refusals because members or groups were missing",
            "invalid": "trees that break a rule",
        },
        unknown="A refusal is recorded when its answer changes, not on every try.",
        projected=False,
    ),
    "losses": ReportKind(
        about="Bound members that went away, and by whose doing.",
        columns={
            "at": "when it was noticed",
            **_GANG,
            "pod": "namespace/name",
            "node": "where it ran",
            "cause": "preempted, evicted, node-lost, refused-by-kubelet, ended (by itself), deleted, or gone (nobody could tell)",
            "preemptor": "for whom this service evicted it; empty: others caused the loss",
            "seconds": "for which it had been bound",
        }
        | _POSITION,
        unknown="Losses of pods without a group are not in the log, nor is who deleted a pod.",
    ),
}  # fmt: skip


def catalogue() -> list[ReportLine]:
    """List the reports."""
    return [
        ReportLine(name=name, about=kind.about, columns=kind.columns, unknown=kind.unknown)
        for name, kind in REPORTS.items()
    ]


def question(
    name: str,
    *,
    now_us: int,
    since_us: int | None = None,
    until_us: int | None = None,
    namespace: str = "",
    gang: str = "",
    limit: int = LIMIT,
) -> ReportQuery:
    """Check a question; without times it is about the last 24 hours.

    Raises:
        BadInput: There is no such report, it takes no such parameter, or the span is empty.
    """
    _storable(name=name, namespace=namespace, gang=gang)
    kind = REPORTS.get(name)
    if kind is None:
        msg = f"report {name[:80]!r}: not known; there are {', '.join(REPORTS)}"
        raise BadInput(msg)
    if not kind.of_gangs and (namespace or gang):
        which = "namespace" if namespace else "gang"
        msg = f"{which}: {(namespace or gang)[:80]!r}: report {name} is about the whole cluster and takes none"
        raise BadInput(msg)
    if gang and not all(gang.partition("/")[::2]):
        msg = f"gang: {gang[:80]!r} is not namespace/name of a root group"
        raise BadInput(msg)
    until = min(until_us, now_us) if until_us is not None else now_us
    since = since_us if since_us is not None else until - DAY_US
    if since >= until:
        msg = f"since: {rfc3339(since)} is not before until, {rfc3339(until)}; the span is empty"
        raise BadInput(msg)
    return ReportQuery(
        name=name, since_us=since, until_us=until, namespace=namespace, gang=gang, limit=limit
    )


def _storable(**texts: str) -> None:
    """Refuse what no name in the log can be: PostgreSQL takes neither NUL nor half a surrogate pair."""
    for field, text in texts.items():
        if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            msg = f"{field}: {text[:80]!r} holds a character that no name can have"
            raise BadInput(msg)


async def report(reader: ReportQueries, asked: ReportQuery) -> Report:
    """Answer a question.

    Raises:
        StoreUnavailable: No answer, or it took too long.
    """
    kind = REPORTS[asked.name]
    found = await reader.rows(asked)
    return Report(
        report=asked.name,
        about=kind.about,
        since=rfc3339(asked.since_us),
        until=rfc3339(asked.until_us),
        position=min(found.head, found.projected) if kind.projected else found.head,
        unknown=kind.unknown,
        more=len(found.rows) > asked.limit,
        rows=[
            {name: _outside(value) for name, value in zip(kind.columns, row, strict=True)}
            for row in found.rows[: asked.limit]
        ],
    )


def _outside(value: object) -> Value:
    """Give the outside form of a value: times in RFC 3339, what is not there as null."""
    if isinstance(value, datetime):
        return rfc3339((value - EPOCH) // timedelta(microseconds=1))
    if value is None or isinstance(value, str | int | float):
        return value
    msg = f"a report cannot hold {type(value).__name__}"
    raise TypeError(msg)
