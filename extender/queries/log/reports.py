"""Reports for operators: their names, the meaning of their columns, and what the log does not contain.

Used by HTTP and by the command line. The rows come from the views `gx.v_*` through the port `ReportQueries`; operators
can read the same views with psql.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from extender.core.model.errors import BadInput
from extender.core.model.ids import Position
from extender.core.model.message_formatting import did_you_mean, rfc3339
from extender.core.model.visibility import EVERYTHING, Visibility, is_hidden, name_for, namespace_of
from extender.ports.query_ports import EventQueries
from extender.queries.log.gang_history import check_names
from extender.queries.log.parameter_validation import storable

DAY_US: Final = 86_400_000_000
LIMIT: Final = 1000  # rows, by default
LIMIT_MAX: Final = 10_000
NAMESPACE: Final = "namespace"  # stands for a namespace that the caller does not see
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Value = str | int | float | None


class ReportKind(msgspec.Struct, frozen=True, kw_only=True):
    """A report: its description and its columns."""

    description: str  # one sentence
    columns: Mapping[str, str]  # name -> meaning and unit, in order
    limitations: str  # what the log does not contain
    of_gangs: bool = True  # can be restricted to a namespace or a gang
    projected: bool = True  # made from the interval tables, which follow the log
    # Columns that may name an object of another namespace than that of the row: what stands for the name where the
    # caller does not see it, and the column with the priority of the object; empty: there is none.
    others: Mapping[str, tuple[str, str]] = {}


class ReportQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for a report."""

    name: str
    since_us: int  # microseconds since 1970, inclusive
    until_us: int  # exclusive
    namespace: str = ""
    gang: str = ""  # namespace/name; all gangs of this name
    limit: int = LIMIT
    # only rows about these namespaces, in reports about gangs; None: about all
    namespaces: frozenset[str] | None = None


class ReportRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a report, as the store returns them."""

    # in the order of `ReportKind.columns`, at most one more than the limit
    rows: Sequence[Sequence[object]]
    head: Position  # where the log ended
    projected: Position  # position of the interval tables


class ReportLine(msgspec.Struct, frozen=True, kw_only=True):
    """A report in the list of reports."""

    name: str
    description: str
    columns: Mapping[str, str]
    limitations: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report as the API shows it."""

    report: str
    description: str
    since: str  # RFC 3339, inclusive
    until: str  # RFC 3339, exclusive
    position: Position  # of the log, up to which the report is complete
    limitations: str
    more: bool  # there are more rows than the limit
    rows: list[dict[str, Value]]


class ReportQueries(Protocol):
    """Reads rows of reports."""

    async def rows(self, query: ReportQuery) -> ReportRows:
        """Return the rows of a report of `REPORTS`; one more than `limit` when there are more."""
        ...


_GANG: Final = {"gang": "namespace/name of the root group", "gang_uid": "its UID; names are reused"}
_POSITION: Final = {"position": "of the event in the log"}

REPORTS: Final[Mapping[str, ReportKind]] = {
    "pending": ReportKind(
        description="How long each gang waited, and why.",
        columns=_GANG
        | {
            "state": "observed, waiting (not complete), unschedulable (no capacity), preempting or invalid",
            "reason": "the first sentence of the refusal during this time, or that there was no decision",
            "seconds": "waited for this reason within the span",
            "stretches": "how many separate times it waited for this reason",
            "since": "begin of the first of them; may be before the span",
            "until": "end of the last of them; empty: it still waits",
        },
        limitations="Pods without a group are not in the log. Extra members of a running tree, gangs that ran and lost members, and suspended workloads do not count as waiting.",
    ),
    "pending-namespaces": ReportKind(
        description="How long the gangs of each namespace waited, and why.",
        columns={
            "namespace": "of the gangs",
            "state": "observed, waiting (not complete), unschedulable (no capacity), preempting or invalid",
            "gangs": "how many were in this state at some time of the span",
            "now": "how many of them are in this state at its end",
            "seconds": "waited by all of them together within the span",
            "longest": "seconds of the longest wait within the span",
        },
        limitations="Pods without a group are not in the log. Extra members of a running tree, gangs that ran and lost members, and suspended workloads do not count as waiting.",
    ),
    "queue-bypass": ReportKind(
        description="Which trees of lower priority, or later ones of equal priority, were admitted while a gang was unschedulable.",
        columns=_GANG
        | {
            "priority": "of the gang that was bypassed",
            "bypassed_by": "the gang that was admitted meanwhile, namespace/name",
            "bypassed_by_priority": "its priority",
            "bypass_kind": "lower priority, or later (by its first event in the log)",
            "pods": "members that got a reservation by that admission",
            "at": "when",
        }
        | _POSITION,
        limitations="Ordinary pods that were scheduled meanwhile are not in the log. Without a gang or namespace, use a span of hours, not of days.",
        others={"bypassed_by": ("gang", "bypassed_by_priority")},
    ),
    "preemption-pairs": ReportKind(
        description="Preemptors and their victims: how often, and how many pods.",
        columns={
            "preemptor": "namespace/name of the root group or lone pod that got the capacity",
            "priority": "its priority, the highest it had",
            "victim": "namespace/name of the disruption unit that was evicted",
            "victim_kind": "CompositePodGroup, PodGroup or Pod",
            "victim_priority": "its priority, the highest it had",
            "preemptions": "plans that name the pair",
            "pods": "pods that were to be evicted",
            "gone": "pods of them that are gone",
            "first": "when it was first planned",
            "last": "when it was last planned",
        },
        limitations="Preemptions by kube-scheduler itself are not in the log; members that it evicted are in `terminations`.",
        others={"preemptor": ("preemptor", "priority"), "victim": ("unit", "victim_priority")},
    ),
    "lost-work": ReportKind(
        description="Work that preemptions and moves lost per hour, by the namespaces of the pods and of the gang that got their capacity, and which evictions were in vain.",
        columns={
            "hour": "begin of the hour in which the preemption was planned, or the move was made, UTC",
            "namespace": "of the victims, or the moved pods",
            "preemptor_namespace": "of the preemptors, or the gangs for which pods were moved; empty: nodes were freed",
            "preemptions": "with a victim of the namespace that is gone",
            "pods": "victims that are gone, and moved pods",
            "gpu_hours": "their work since their start, or their last checkpoint",
            "in_vain": "preemptions after which the preemptor ran for less than a minute, or never",
            "gpu_hours_in_vain": "lost for these",
            "moves": "moves that were made; what each loses is that of when they were planned",
        },
        limitations="Preemptions by kube-scheduler itself, lost nodes, and pods that left for a move and were not replaced are not included. How long a preemptor without a group ran is not in the log.",
        others={"namespace": (NAMESPACE, ""), "preemptor_namespace": (NAMESPACE, "")},
    ),
    "largest-free": ReportKind(
        description="The largest free domain over time: the capacity for the largest tree with a required domain.",
        columns={
            "at": "when it was measured",
            "resource": "extended resource, or cpu (millicores) where no node has any",
            "level": "topology key, or node: one single node",
            "domain": "where most was free",
            "free": "how much was free there",
            "nodes": "on how many of its nodes",
            "total": "free in the whole cluster",
            "until": "when another value was measured; empty: it is the current value",
        }
        | _POSITION,
        limitations="One sample per minute, recorded when it differs. All pods count as used.",
        of_gangs=False,
        projected=False,
    ),
    "largest-free-used": ReportKind(
        description="Which admissions used capacity of the largest free domain.",
        columns=_GANG
        | {
            "resource": "the resource that was used",
            "level": "topology key, or node",
            "domain": "the largest free domain before",
            "free": "how much was free there before",
            "used": "how much this admission used there; more than was free where victims were evicted",
            "pods": "by how many members",
            "at": "when",
        }
        | _POSITION,
        limitations="What ordinary pods used is not in the log: it is the difference that no row explains.",
        projected=False,
    ),
    "usage": ReportKind(
        description="How many gangs waited (without those whose workload was suspended), and how much members used and had reserved, at 97 times of the span.",
        columns={
            "at": "the time; the first one is the begin of the span, the last one its end, all are equally far apart",
            "state": "pending (gangs), bound or reserved (members)",
            "resource": "gangs, an extended resource in units, or cpu in cores",
            "amount": "how many or how much at that time; 0 where there is no row",
        },
        limitations="What pods without a group use is not in the log, nor the capacity of nodes. Members that were bound without a recorded plan have no amounts.",
    ),
    "reserved": ReportKind(
        description="Device and CPU hours that were reserved for pods that did not run yet.",
        columns=_GANG
        | {
            "resource": "extended resource in units, or cpu in cores",
            "hours": "reserved within the span",
            "reservations": "how many",
            "held": "how many of them still exist at its end",
            "longest": "seconds of the longest within the span",
        },
        limitations="Capacity claims of preemptions and nominations of ordinary pods are not included. A member counts until its Binding is recorded.",
    ),
    "decisions": ReportKind(
        description="Admissions and refusals per hour.",
        columns={
            "hour": "begin of the hour, UTC",
            "admitted": "trees whose minimum got reservations",
            "extended": "later admissions of more members of such trees",
            "pods": "members that got reservations by either",
            "impossible": "refusals for lack of capacity that were proved",
            "unknown": "refusals after the search budget was used up",
            "waiting": "refusals because members or groups were missing, or pods still terminated",
            "invalid": "trees that break a rule",
        },
        limitations="A refusal is recorded when its outcome or reasons change, not for every attempt.",
        projected=False,
    ),
    "terminations": ReportKind(
        description="Bound members that were terminated, and the causes.",
        columns={
            "at": "when it was noticed",
            **_GANG,
            "pod": "namespace/name",
            "node": "where it ran",
            "cause": "preempted, evicted, node-lost, rejected-by-kubelet, ended (by itself), deleted, or unknown (the reason is not known)",
            "preemptor": "the gang for which this service evicted it; empty: another cause",
            "seconds": "how long it had been bound",
        }
        | _POSITION,
        limitations="Terminations of pods without a group are not in the log, nor is the client that deleted a pod.",
        others={"preemptor": ("gang", "")},
    ),
}  # fmt: skip


# Reports that a running service answers from its cluster, gang by gang; see the command `report`.
LIVE_REPORTS: Final[Mapping[str, ReportKind]] = {
    "placement": ReportKind(
        description="Gangs with a place that are in more domains than they prefer, and what is free for them now.",
        columns=_GANG
        | {
            "group": "the group with the preferred level",
            "level": "the topology key",
            "domains": "in how many domains of it the group was placed by the newest plan",
            "best": "the fewest that were possible then; where it was not proved, a bound",
            "proved": "yes: no fewer were possible then",
            "free_now": "the domains that are free for all of the group now; empty: there is nothing better",
        },
        limitations="From the cluster as it is now. A plan was made for each gang, without evictions; no running pod is moved.",
        projected=False,
    ),
    "fragmentation": ReportKind(
        description="The largest free domain of each level now, and how often which shape of gang fits there.",
        columns={
            "resource": "extended resource, or cpu (millicores) where no node has any",
            "level": "topology key, or node: one single node",
            "shape": "pods x the amount of each; all of a gang in one domain of the level",
            "fits": "how many gangs of this shape fit at once",
            "domain": "where most is free",
            "free": "how much is free there",
            "total": "free in the whole cluster",
            "whole": "how many domains of the level are free as a whole, without a pod but those of DaemonSets and static ones; empty: of a node",
            "moves": "how many moves of running pods free one more (`make-room --free`), or impossible, or not decided; of a node not asked for",
        },
        limitations="From the nodes as they are now; what is held for gangs that do not run yet counts as free. `largest-free` has it over time, `make-room` which moves.",
        of_gangs=False,
        projected=False,
    ),
}


def catalogue(kinds: Mapping[str, ReportKind] = REPORTS) -> list[ReportLine]:
    """Return the list of reports."""
    return [
        ReportLine(
            name=name,
            description=kind.description,
            columns=kind.columns,
            limitations=kind.limitations,
        )
        for name, kind in kinds.items()
    ]


def unknown_report(name: str, names: Collection[str] = REPORTS) -> str:
    """Return that there is no such report, with those that there are and the one that is meant."""
    meant = did_you_mean(name, names).removeprefix(";")
    return f"report {name[:80]!r}: not known;{meant} there are {', '.join(names)}"


def check_report_query(
    name: str,
    *,
    now_us: int,
    since_us: int | None = None,
    until_us: int | None = None,
    namespace: str = "",
    gang: str = "",
    limit: int = LIMIT,
) -> ReportQuery:
    """Return a checked query; its default span is the last 24 hours.

    Raises:
        BadInput: There is no such report, it does not have the parameter, or the span is empty.
    """
    for field, text in (("name", name), ("namespace", namespace), ("gang", gang)):
        storable(text, field)
    kind = REPORTS.get(name)
    if kind is None:
        raise BadInput(unknown_report(name))
    if not kind.of_gangs and (namespace or gang):
        which = "namespace" if namespace else "gang"
        msg = f"{which}: {(namespace or gang)[:80]!r}: report {name} is about the whole cluster and has no such parameter"
        raise BadInput(msg)
    until = min(until_us, now_us) if until_us is not None else now_us
    since = since_us if since_us is not None else until - DAY_US
    if since > until:
        raise BadInput(f"since: {rfc3339(since)} is after until, {rfc3339(until)}")
    return ReportQuery(
        name=name, since_us=since, until_us=until, namespace=namespace, gang=gang, limit=limit
    )


async def report(
    reader: ReportQueries,
    events: EventQueries,
    query: ReportQuery,
    readers: Visibility = EVERYTHING,
) -> Report:
    """Return a report.

    Args:
        events: The log as the caller sees it; it is asked for the names of the query where there are no rows.
        readers: What the caller sees: rows about these namespaces, without names of others.

    Raises:
        NotFound: There are no rows, and the log does not have the gang or the namespace of the query.
    """
    kind = REPORTS[query.name]
    if not readers.everything:
        query = replace(query, namespaces=_selected(query, readers))
    page = await reader.rows(query)
    if not page.rows:
        await check_names(events, gang=query.gang, namespace=query.namespace)
    return Report(
        report=query.name,
        description=kind.description,
        since=rfc3339(query.since_us),
        until=rfc3339(query.until_us),
        position=min(page.head, page.projected) if kind.projected else page.head,
        limitations=kind.limitations,
        more=len(page.rows) > query.limit,
        rows=[
            _shown(
                {name: _outside(value) for name, value in zip(kind.columns, row, strict=True)},
                kind,
                readers,
            )
            for row in page.rows[: query.limit]
        ],
    )


def _selected(query: ReportQuery, readers: Visibility) -> frozenset[str]:
    """Return the namespaces of which a caller gets rows: none, where the query names one that the caller does not see."""
    asked = [name for name in (query.namespace, namespace_of(query.gang)) if name]
    return readers.namespaces if all(map(readers.sees, asked)) else frozenset()


def _shown(row: dict[str, Value], kind: ReportKind, readers: Visibility) -> dict[str, Value]:
    """Return a row without names that the caller does not see."""
    if readers.everything:
        return row
    for column, (word, of_priority) in kind.others.items():
        name, priority = row[column], row.get(of_priority)
        if isinstance(name, str) and name:
            shown_priority = priority if isinstance(priority, int) else None
            path = f"{name}/" if word == NAMESPACE else name
            full = name_for(readers, f"{word}/{path}", priority=shown_priority)
            row[column] = full if is_hidden(full) else name
    return row


def _outside(value: object) -> Value:
    """Return a value as the API shows it: times in RFC 3339."""
    if isinstance(value, datetime):
        return rfc3339((value - EPOCH) // timedelta(microseconds=1))
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"a report cannot hold {type(value).__name__}")
