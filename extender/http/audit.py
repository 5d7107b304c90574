"""The read API under /v1: gangs as they are now, and what the log says."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web
from multidict import MultiMapping

from extender.core.errors import BadInput
from extender.core.ids import Position
from extender.core.state import RootState
from extender.http.errors import problem
from extender.service.audit import Audit, FactLine, parse_time, rfc3339
from extender.service.leading import Leader
from extender.service.ports import EventFilter
from extender.service.preemptions import PreemptionLine, Wanted, preemptions

LIMIT_MAX = 1000


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


class ReadApi:
    """Handlers of /v1."""

    def __init__(self, audit: Audit, leader: Leader) -> None:
        self._audit = audit
        self._leader = leader

    def routes(self) -> list[web.RouteDef]:
        """Name the resources."""
        return [
            web.get("/v1/gangs", self.gangs),
            web.get("/v1/gangs/{namespace}/{name}", self.gang),
            web.get("/v1/gangs/{namespace}/{name}/history", self.history),
            web.get("/v1/events", self.events),
            web.get("/v1/preemptions", self.preemptions),
        ]

    async def gangs(self, request: web.Request) -> web.Response:
        """List roots, by namespace and name."""
        namespace = request.query.get("namespace", "")
        roots = [
            gang_line(root, whole=False)
            for root in self._leader.acknowledged.roots.values()
            if not namespace or root.root.startswith(f"{namespace}/")
        ]
        return self._json(sorted(roots, key=lambda line: line.gang))

    async def gang(self, request: web.Request) -> web.Response:
        """Give one root with its members."""
        name = _gang_named(request)
        for root in self._leader.acknowledged.roots.values():
            if root.root == name:
                return self._json(gang_line(root, whole=True))
        detail = (
            f"gang {name}: no such root group now; GET /v1/gangs/{name}/history tells of the past"
        )
        return problem(404, "Not found", detail)

    async def history(self, request: web.Request) -> web.Response:
        """Give all facts of a root, also of one long gone."""
        name = _gang_named(request)
        try:
            return self._json(await self._audit.history(name))
        except BadInput as error:
            return problem(404, "Not found", str(error))

    async def events(self, request: web.Request) -> web.Response:
        """Give facts by position, at most `limit` from `after` on."""
        return self._json(await self._audit.events(_wanted(request)))

    async def preemptions(self, request: web.Request) -> web.Response:
        """Tell who preempted whom, by `victim`, `preemptor` (namespace/name) and `since`."""
        query = _known(request, {"victim", "preemptor", "since"})
        wanted = Wanted(
            victim=query.get("victim", ""),
            preemptor=query.get("preemptor", ""),
            since_us=parse_time(query["since"], "since") if "since" in query else None,
        )
        return self._json(await preemptions(self._audit.reader, wanted))

    def _json(
        self,
        value: Sequence[FactLine] | Sequence[GangLine] | Sequence[PreemptionLine] | GangLine,
    ) -> web.Response:
        headers = {"X-Log-Position": str(self._leader.acknowledged.position)}
        body = msgspec.json.encode(value)
        return web.Response(body=body, content_type="application/json", headers=headers)


def _gang_named(request: web.Request) -> str:
    name = f"{request.match_info['namespace']}/{request.match_info['name']}"
    _without_nul(name, "gang")
    return name


def _without_nul(text: str, field: str) -> None:
    """Refuse what PostgreSQL cannot hold in a text; it would look like a store that does not answer."""
    if "\0" in text:
        msg = f"{field}: {text!r} contains a NUL character"
        raise BadInput(msg)


def _known(request: web.Request, names: set[str]) -> MultiMapping[str]:
    """Give the parameters of a question; one that is not known is an error, not silence."""
    for name, text in request.query.items():
        if name not in names:
            msg = f"query parameter {name}: not known; there are {', '.join(sorted(names))}"
            raise BadInput(msg)
        _without_nul(text, f"query parameter {name}")
    return request.query


def _wanted(request: web.Request) -> EventFilter:
    query = _known(request, {"after", "limit", "type", "namespace", "gang", "since", "until"})
    return EventFilter(
        root=query.get("gang", ""),
        namespace=query.get("namespace", ""),
        types=tuple(query.getall("type", [])),
        since_us=parse_time(query["since"], "since") if "since" in query else None,
        until_us=parse_time(query["until"], "until") if "until" in query else None,
        after=Position(_number(query.get("after", "0"), "after", 2**62)),
        limit=_number(query.get("limit", "100"), "limit", LIMIT_MAX),
    )


def _number(text: str, field: str, largest: int) -> int:
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(largest))
    if not digits or int(text) > largest:
        msg = f"query parameter {field}: {text[:40]!r} is not a whole number from 0 to {largest}"
        raise BadInput(msg)
    return int(text)
