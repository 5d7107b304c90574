"""Explain an object by its name: a group, a pod, a node or a workload, as it is now or as it was at a past moment.

A `Source` finds the names and what is known of each object; the answer is made of it in the same way for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Protocol

import msgspec

from extender.core.log.reservation_state import GangState, ReservationState, WorkloadTree
from extender.core.model.errors import NotFound
from extender.queries.explain.explanation import Explanation, Related
from extender.queries.explain.gang_checks import Finding
from extender.queries.explain.name_lookup import (
    GROUP_KINDS,
    ObjectName,
    WantedName,
    in_other_namespace,
    matches,
    similar_names,
)
from extender.queries.state.state_dto import GangAt
from extender.runtime.cooperative_yield import Yielder

GANGS_MAX: Final = 20  # gangs of a node that are named


class ObjectDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a source has of a group or a pod."""

    finding: Finding  # about the object, or about its gang
    link: str = (
        ""  # from the name of the object to that of its gang, such as " is a child group of"
    )
    root: ObjectName | None = None  # the root group of its gang; None: it has none
    workload: str = ""  # Kind/namespace/name of that of its gang; empty: it has none
    gang: GangAt | None = None  # with its members; None: the log does not have it
    conflict: tuple[str, ...] = ()
    related: tuple[Related, ...] = ()  # besides root group and workload


class NoGroups(msgspec.Struct, frozen=True):
    """The words of a source for a workload that has no groups."""

    text: str
    reason: str  # where the tree has none
    help: tuple[str, ...] = ()


class Source(Protocol):
    """The cluster and the log as they are now, or the log as it was at a past moment."""

    @property
    def state(self) -> ReservationState:
        """Return the reservation state."""
        ...

    @property
    def no_groups(self) -> NoGroups:
        """Return the words for a workload that was refused or has no root group."""
        ...

    def names(self) -> Iterable[ObjectName]:
        """Return the names of all objects that the caller sees; some may come more than once."""
        ...

    async def details(self, subject: ObjectName, *, extras: bool = True) -> ObjectDetails:
        """Return what is known of a group or a pod.

        Args:
            subject: One of `names`, or of `roots`.
            extras: Whether members beyond the minimum that wait have a finding of their own.
        """
        ...

    def node(self, subject: ObjectName) -> Explanation:
        """Return the explanation of a node among `names`."""
        ...

    def roots(self, tree: WorkloadTree) -> list[ObjectName]:
        """Return the root groups of a workload."""
        ...

    async def at_another_time(self, name: WantedName) -> Explanation | None:
        """Return the explanation of an object that is not among `names`, and is known from before or after; else None."""
        ...

    def not_found(self, name: WantedName) -> tuple[str, str]:
        """Return that nothing has a name, and what that may mean where no other name is similar."""
        ...


async def explanation_of(source: Source, name: WantedName) -> Explanation:
    """Return why an object is in its state, and what would help.

    Of several objects with the name, the first of `KINDS` is explained, and the others are in `related`. A name without
    a namespace that only one other namespace has is explained there.

    Raises:
        NotFound: Nothing has the name; the message has similar names.
    """
    pace = Yielder()
    subjects = await matches(source.names(), name, pace)
    if not subjects:
        elsewhere = await in_other_namespace(source.names(), name, pace)
        if elsewhere is not None:
            subjects = await matches(source.names(), elsewhere, pace)
    if subjects:
        explanation = await _of(source, subjects[0])
    elif (explained := await source.at_another_time(name)) is not None:
        explanation = explained
    else:
        near = await similar_names(source.names(), name, pace)
        text, hint = source.not_found(name)
        if near:
            hint = f"did you mean {', '.join(map(str, near))}?"
        raise NotFound(f"{text}; {hint}")
    return msgspec.structs.replace(
        explanation, related=(*explanation.related, *_links(subjects[1:], "same name"))
    )


async def _of(source: Source, subject: ObjectName) -> Explanation:
    if subject.kind == "Node":
        return source.node(subject)
    if subject.kind not in ("Pod", *GROUP_KINDS):
        return await _workload(source, subject)
    details = await source.details(subject)
    finding = details.finding
    if not details.link or finding.subject == str(subject):
        return _explanation(subject, details, finding.answer)
    return _explanation(subject, details, f"{subject}{details.link} {finding.clause}")


async def _workload(source: Source, subject: ObjectName) -> Explanation:
    """Explain a workload by its first root group."""
    named = (subject.kind, subject.path)
    tree = next(t for t in source.state.trees.values() if (t.kind, t.workload) == named)
    roots = source.roots(tree)
    if tree.outcome == "refused" or not roots:
        reason = tree.message or tree.reason or source.no_groups.reason
        answer = f"{subject} {source.no_groups.text}: {reason}"
        return Explanation(
            kind=subject.kind,
            name=subject.path,
            answer=answer,
            state=tree.outcome,
            help=source.no_groups.help,
        )
    details = await source.details(roots[0], extras=False)
    more = f" (the first of {len(roots)} root groups)" if len(roots) > 1 else ""
    details = msgspec.structs.replace(details, related=_links(roots[1:], "root group"))
    return _explanation(subject, details, f"{subject}{more}: {details.finding.answer}")


def _explanation(subject: ObjectName, details: ObjectDetails, answer: str) -> Explanation:
    """Return the explanation of an object by what is known of it, or of its gang."""
    finding = details.finding
    return Explanation(
        kind=subject.kind,
        name=subject.path,
        answer=answer,
        state=details.gang.state if details.gang is not None else "",
        checks=finding.checks,
        reasons=finding.reasons,
        conflict=details.conflict,
        help=finding.help,
        related=(*_related(subject, details), *details.related),
        gang=details.gang,
    )


def _related(subject: ObjectName, details: ObjectDetails) -> Iterator[Related]:
    """Yield the root group and the workload of the gang of an object, without the object itself."""
    if details.root is not None and details.root != subject:
        yield Related(kind=details.root.kind, name=details.root.path, relation="root group")
    if details.workload and details.workload != f"{subject.kind}/{subject.path}":
        kind, _, path = details.workload.partition("/")
        yield Related(kind=kind, name=path, relation="workload")


def _links(names: Iterable[ObjectName], relation: str) -> tuple[Related, ...]:
    return tuple(Related(kind=name.kind, name=name.path, relation=relation) for name in names)


def gangs_on_node(gangs: Iterable[GangState]) -> tuple[Related, ...]:
    """Return the links to the gangs of a node, by name, `GANGS_MAX` at most."""
    names = (ObjectName(gang.kind, gang.gang) for gang in sorted(gangs, key=lambda g: g.gang))
    return _links(islice(names, GANGS_MAX), "gang on this node")
