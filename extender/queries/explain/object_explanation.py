"""Explain an object by its name: a group, a pod, a node or a workload, as it is now or as it was at a past moment.

An `ObjectReader` finds the names and what is known of each object; the answer is made of it in the same way for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from extender.core.admit.gang_sentences import shown_texts
from extender.core.log.reservation_state import GangState, ReservationState, WorkloadTree
from extender.core.model.errors import NotFound
from extender.queries.explain.explanation import BetterPlacement, Explanation, Related
from extender.queries.explain.gang_checks import Finding
from extender.queries.explain.name_lookup import (
    GROUP_KINDS,
    ObjectName,
    WantedName,
    matches,
    similar_kind,
    similar_names,
)
from extender.queries.state.state_dto import GangAt
from extender.runtime.cooperative_yield import Yielder

GANGS_MAX: Final = 20  # gangs of a node that are named


class ObjectDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader has of a group or a pod."""

    finding: Finding  # about the object, or about its gang
    # from the name of the object to that of its gang, such as " is a child group of"
    link: str = ""
    root: ObjectName | None = None  # the root group of its gang; None: it has none
    workload: str = ""  # Kind/namespace/name of that of its gang; empty: it has none
    gang: GangAt | None = None  # with its members; None: the log does not have it
    conflict: tuple[str, ...] = ()
    better: tuple[BetterPlacement, ...] = ()
    related: tuple[Related, ...] = ()  # besides root group and workload


class ObjectReader(ABC):
    """Reads the cluster and the log as they are now, or the log as it was at a past moment."""

    state: ReservationState

    async def explanation(self, name: WantedName) -> Explanation:
        """Return why an object is in its state, and what would help.

        Of several objects with the name, the first of `KINDS` is explained, and the others are in `related`. A name
        without a namespace that only one other namespace has is explained there.

        Raises:
            NotFound: Nothing has the name; the message has similar names.
        """
        pace = Yielder()
        subjects = await matches(self._names(), name, pace)
        if subjects:
            explanation = await self._explained(subjects[0])
            same = _links(subjects[1:], "same name")
            return replace(explanation, related=(*explanation.related, *same))
        if (elsewhen := await self._at_another_time(name)) is not None:
            return elsewhen
        text, hint = self._not_found(name)
        near = await similar_names(self._names(), name, pace)
        if near:
            hint = f"did you mean {', '.join(map(str, near))}?"
        elif not name.kind and name.given_namespace and (kind := similar_kind(name.namespace)):
            hint = f"did you mean {kind}/{name.name}? Else {hint}"
        raise NotFound(f"{text}; {hint}")

    async def _explained(self, subject: ObjectName) -> Explanation:
        if subject.kind == "Node":
            return self._node(subject)
        if subject.kind not in ("Pod", *GROUP_KINDS):
            return await self._workload(subject)
        details = await self._details(subject)
        finding = details.finding
        if not details.link or finding.subject == str(subject):
            return _explanation(subject, details, finding.answer)
        return _explanation(subject, details, f"{subject}{details.link} {finding.clause}")

    async def _workload(self, subject: ObjectName) -> Explanation:
        """Explain a workload by its first root group."""
        named = (subject.kind, subject.path)
        tree = next(t for t in self.state.trees.values() if (t.kind, t.workload) == named)
        roots = self._roots(tree)
        if tree.outcome == "refused" or not roots:
            none_needed = tree.outcome == "compiled" and not tree.groups
            reason = "it needs no pods as it is" if none_needed else tree.message or tree.reason
            text, help_ = self._without_groups(reason)
            if tree.outcome == "compiled":
                help_ = ()  # nothing is wrong with it
            return Explanation(
                kind=subject.kind,
                name=subject.path,
                answer=f"{subject} {text}",
                state=tree.outcome,
                help=help_,
            )
        details = await self._details(roots[0], extras=False)
        more = f" (the first of {len(roots)} root groups)" if len(roots) > 1 else ""
        details = replace(details, related=_links(roots[1:], "root group"))
        return _explanation(subject, details, f"{subject}{more}: {details.finding.answer}")

    @abstractmethod
    def _names(self) -> Iterable[ObjectName]:
        """Return the names of all objects that the caller sees; some may come more than once."""

    @abstractmethod
    async def _details(self, subject: ObjectName, *, extras: bool = True) -> ObjectDetails:
        """Return what is known of a group or a pod; `extras`: of members beyond the minimum that wait."""

    @abstractmethod
    def _node(self, subject: ObjectName) -> Explanation: ...

    @abstractmethod
    def _roots(self, tree: WorkloadTree) -> list[ObjectName]:
        """Return the root groups of a workload."""

    @abstractmethod
    def _without_groups(self, reason: str) -> tuple[str, tuple[str, ...]]:
        """Return the text about a workload without groups, and what would help; the reason may be empty."""

    @abstractmethod
    async def _at_another_time(self, name: WantedName) -> Explanation | None:
        """Return the explanation of an object that is known from before or after; None: it is not."""

    @abstractmethod
    def _not_found(self, name: WantedName) -> tuple[str, str]:
        """Return that nothing has a name, and what that may mean where no other name is similar."""


def _explanation(subject: ObjectName, details: ObjectDetails, answer: str) -> Explanation:
    """Return the explanation of an object by what is known of it, or of its gang."""
    finding = details.finding
    groups = details.gang.groups if details.gang is not None else []
    return Explanation(
        kind=subject.kind,
        name=subject.path,
        answer=answer,
        state=details.gang.state if details.gang is not None else "",
        checks=finding.checks,
        reasons=finding.reasons,
        conflict=details.conflict,
        help=finding.help,
        wishes=shown_texts(wish for group in groups for wish in group.wishes),
        better=details.better,
        related=(*_related(subject, details), *details.related),
        gang=details.gang,
    )


def _related(subject: ObjectName, details: ObjectDetails) -> Iterator[Related]:
    """Yield the root group and the workload of the gang of an object, without the object itself."""
    if details.root is not None and details.root != subject:
        yield from _links([details.root], "root group")
    if details.workload and details.workload != f"{subject.kind}/{subject.path}":
        kind, _, path = details.workload.partition("/")
        yield from _links([ObjectName(kind, path)], "workload")


def _links(names: Iterable[ObjectName], relation: str) -> tuple[Related, ...]:
    return tuple(Related(kind=name.kind, name=name.path, relation=relation) for name in names)


def gangs_on_node(gangs: Iterable[GangState]) -> tuple[Related, ...]:
    """Return the links to the gangs of a node, by name, `GANGS_MAX` at most."""
    names = (ObjectName(gang.kind, gang.gang) for gang in sorted(gangs, key=lambda g: g.gang))
    return _links(islice(names, GANGS_MAX), "gang on this node")
