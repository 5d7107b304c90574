"""Gangs under /v1 as they are now: from the state in memory, and for why also from the log."""

from __future__ import annotations

import msgspec
from aiohttp import web

from extender.core.errors import NotFound
from extender.core.state import RootState
from extender.http.answers import answer, listed
from extender.http.openapi import GANG_NAME, NAME, NAMESPACE, Operation, Parameter
from extender.http.questions import gang_named, known, name_in
from extender.service.audit import FactLine, line_of, rfc3339
from extender.service.decisions import Decision, decision_of
from extender.service.leading import Leader
from extender.service.ports import AuditReader, DecisionInputs, EventFilter


class MemberLine(msgspec.Struct):
    """A member that holds room."""

    pod: str
    group: str
    node: str
    state: str  # reserved | bound
    extra: bool = False


class GangLine(msgspec.Struct):
    """A root as it is now."""

    gang: str
    uid: str
    kind: str
    priority: int
    phase: str
    reserved: int
    bound: int
    outcome: str
    reasons: tuple[str, ...]
    since: str  # when it was observed
    domains: dict[str, dict[str, str]] = {}
    members: list[MemberLine] = []


def gang_line(root: RootState, *, whole: bool) -> GangLine:
    """Give the outside form of a root; with members when `whole`."""
    members = [
        MemberLine(pod=r.pod, group=r.group, node=r.node, state="reserved", extra=r.extra)
        for r in root.held.values()
    ] + [
        MemberLine(pod=m.pod, group=m.group, node=m.node, state="bound")
        for m in root.bound.values()
    ]
    return GangLine(
        gang=root.root,
        uid=root.uid,
        kind=root.kind,
        priority=root.priority,
        phase=root.phase,
        reserved=len(root.held),
        bound=len(root.bound),
        outcome=root.answer.outcome if root.answer is not None else "",
        reasons=root.answer.reasons if root.answer is not None else (),
        since=rfc3339(root.observed_us),
        domains={g.name: g.domain for g in root.groups if g.domain},
        members=sorted(members, key=lambda m: m.pod) if whole else [],
    )


class Explanation(msgspec.Struct):
    """Where a gang stands, and the last answer of the planner with what it rested on."""

    gang: GangLine
    fact: FactLine | None = None
    decision: Decision | None = None


GANG = (NAMESPACE, GANG_NAME)
OPERATIONS = (
    Operation(
        path="/v1/gangs",
        about="Root groups as they are now, by name; on a replica that does not lead, as far as it has followed the log",
        answer=list[GangLine],
        parameters=(Parameter(name="namespace", about="Only this one", schema=NAME),),
        problems=(400,),
        tagged=True,
    ),
    Operation(
        path="/v1/gangs/{namespace}/{name}",
        about="One root group with its members, as it is now",
        answer=GangLine,
        parameters=GANG,
        problems=(400, 404),
        tagged=True,
    ),
    Operation(
        path="/v1/gangs/{namespace}/{name}/explain",
        about="Where a gang stands, with the last answer of the planner",
        answer=Explanation,
        parameters=GANG,
        problems=(400, 404, 503),
        tagged=True,
    ),
)
ANSWERS = ("GangAdmitted", "GangExtended", "GangRefused", "PreemptionPlanned")


class GangsApi:
    """Handlers."""

    def __init__(self, reader: AuditReader, inputs: DecisionInputs, leader: Leader) -> None:
        self._reader = reader
        self._inputs = inputs
        self._leader = leader

    def routes(self) -> list[web.RouteDef]:
        """Name the resources."""
        return [
            web.get("/v1/gangs", self.gangs),
            web.get("/v1/gangs/{namespace}/{name}", self.gang),
            web.get("/v1/gangs/{namespace}/{name}/explain", self.explain),
        ]

    async def gangs(self, request: web.Request) -> web.StreamResponse:
        """List roots, by namespace and name."""
        namespace = name_in(known(request, {"namespace"}), "namespace")
        state = self._leader.acknowledged
        roots = [
            root
            for root in state.roots.values()
            if not namespace or root.root.startswith(f"{namespace}/")
        ]
        roots.sort(key=lambda root: root.root)
        pieces = await listed(gang_line(root, whole=False) for root in roots)
        return await answer(request, pieces, state.position)

    async def gang(self, request: web.Request) -> web.StreamResponse:
        """Give one root with its members."""
        known(request, ())
        position = self._leader.acknowledged.position
        line = gang_line(self._root(request), whole=True)
        return await answer(request, [msgspec.json.encode(line)], position)

    def _root(self, request: web.Request) -> RootState:
        name = gang_named(request)
        for root in self._leader.acknowledged.roots.values():
            if root.root == name:
                return root
        raise NotFound(
            f"gang {name}: no such root group now; GET /v1/gangs/{name}/history tells of the past"
        )

    async def explain(self, request: web.Request) -> web.StreamResponse:
        """Give one root with the newest answer about it."""
        known(request, ())
        root = self._root(request)
        found = await self._reader.page(
            EventFilter(root_uid=root.uid, types=ANSWERS, newest_first=True, limit=1)
        )
        told = Explanation(gang=gang_line(root, whole=True))
        for event in found.events:
            told.fact, told.decision = line_of(event), await decision_of(event, self._inputs)
        return await answer(request, [msgspec.json.encode(told)], found.head)
