"""Gangs and trees of workloads under /v1 as they are now, from the state in memory; `explain` also reads the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

import msgspec
from aiohttp import web

from extender.core.log.reservation_state import GangState
from extender.core.log.visible_state import visible_gang
from extender.core.model.errors import NotFound
from extender.core.model.message_formatting import rfc3339
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.visibility import Visibility, namespace_of
from extender.http.responses.json_responses import answer, listed
from extender.http.responses.request_visibility import visibility_of
from extender.http.v1.openapi import GANG_NAME, NAMESPACE, TEXT, Operation, Parameter
from extender.http.v1.query_parameters import Api, Query, gang_named, selection_parameters
from extender.ports.log_ports import DecisionInputs, StateSource
from extender.ports.query_ports import EventFilter, EventQueries
from extender.queries.log.decision_details import Decision, decision_of
from extender.queries.log.event_dto import EventLine, event_line
from extender.queries.log.event_filter import visible_queries
from extender.queries.state.gang_selection import (
    GANG_STATES,
    TREE_STATES,
    GangSelection,
    ObjectLabels,
)
from extender.queries.state.gang_status import (
    RootKey,
    RootWorkload,
    gang_at,
    gang_status,
    suspended_roots,
    workloads_of_roots,
)
from extender.queries.state.service_status import WaitLine
from extender.queries.state.state_dto import GangAt
from extender.queries.state.workload_trees import TreeAt, trees_at
from extender.runtime.cooperative_yield import Yielder


class GangExplanation(msgspec.Struct):
    """The state of a gang, and the last decision about it."""

    gang: GangAt
    event: EventLine | None = None
    decision: Decision | None = None


GANG = (
    NAMESPACE,
    GANG_NAME,
    Parameter(name="uid", about="Only the root group with this UID; default: the one of this name that was observed last", schema=TEXT),
)  # fmt: skip
GANGS = Operation(
    path="/v1/gangs",
    about="Root groups as they are now, by name, without their members; a replica that does not lead answers as far as it has followed the log",
    answer=list[GangAt],
    parameters=selection_parameters(
        GANG_STATES,
        namespace="root groups",
        state="root groups in this state",
        labels="of the root group and of the workload that it was made for",
    ),
    problems=(400,),
    tagged=True,
)
ONE_GANG = Operation(
    path="/v1/gangs/{namespace}/{name}",
    about="One root group with its members, as it is now",
    answer=GangAt,
    parameters=GANG,
    problems=(400, 404),
    tagged=True,
)
EXPLAIN_GANG = Operation(
    path="/v1/gangs/{namespace}/{name}/explain",
    about="The state of a gang, with the last decision of the planner",
    answer=GangExplanation,
    parameters=GANG,
    problems=(400, 404, 503),
    tagged=True,
)
ANSWERS = ("GangAdmitted", "GangExtended", "GangUnschedulable", "PreemptionPlanned")


@dataclass(frozen=True)
class GangApi(Api):
    """Handlers of /v1/gangs."""

    reader: EventQueries
    inputs: DecisionInputs
    state: StateSource
    labels: ObjectLabels
    index: IdentityMemo[Mapping[str, list[GangState]]] = field(default_factory=IdentityMemo)
    workloads: IdentityMemo[Mapping[RootKey, RootWorkload]] = field(default_factory=IdentityMemo)

    @GANGS.handler
    async def _gangs(self, request: web.Request, query: Query) -> web.StreamResponse:
        selection = GangSelection(**query)
        state, made_for = self.state.committed, self._made_for()
        roots, pace = [], Yielder()
        readers = visibility_of(request)
        for root in chain(state.gangs.values(), suspended_roots(state.gangs.values(), made_for)):
            if readers.sees(namespace_of(root.gang)) and self._selected(
                root, selection, made_for.get(RootKey(root.gang, root.kind))
            ):
                roots.append(root)
            await pace.yield_if_due()
        roots.sort(key=lambda root: (root.gang, root.uid))
        pieces = await listed(
            gang_at(visible_gang(root, readers), made_for, with_members=False) for root in roots
        )
        return await answer(request, pieces, state.position)

    async def counts(self, readers: Visibility) -> tuple[dict[str, int], WaitLine | None]:
        """Return the number of gangs that readers see in each state, and the one that has waited longest."""
        made_for, pace = self._made_for(), Yielder()
        states: Counter[str] = Counter()
        oldest: tuple[int, str, str] | None = None  # since when, name, state
        gangs = self.state.committed.gangs.values()
        for root in chain(gangs, suspended_roots(gangs, made_for)):
            if readers.sees(namespace_of(root.gang)):
                shown = gang_status(root, made_for.get(RootKey(root.gang, root.kind)))
                states[shown.state] += 1
                wait = (shown.waiting_since_us, root.gang, shown.state)
                if shown.waiting_since_us and (oldest is None or wait < oldest):
                    oldest = wait
            await pace.yield_if_due()
        longest = None
        if oldest is not None:
            longest = WaitLine(gang=oldest[1], state=oldest[2], since=rfc3339(oldest[0]))
        return dict(sorted(states.items())), longest

    def _selected(
        self, root: GangState, selection: GangSelection, made_for: RootWorkload | None
    ) -> bool:
        """Return whether a gang is in a selection; what costs most is examined last."""
        if not selection.in_namespace(root.gang):
            return False
        if selection.selector:
            labels = self.labels.of_gang(root, made_for.uid if made_for is not None else "")
            if not selection.has_labels(labels):
                return False
        return not selection.states or selection.in_state(gang_status(root, made_for).state)

    @ONE_GANG.handler
    async def _gang(self, request: web.Request, query: Query) -> web.StreamResponse:
        position = self.state.committed.position
        body = msgspec.json.encode(gang_at(self._root(request, query), self._made_for()))
        return await answer(request, [body], position)

    def _root(self, request: web.Request, query: Query) -> GangState:
        """Return the requested gang; of several with one name the one that was observed last."""
        name, uid = gang_named(request), query.get("uid")
        readers = visibility_of(request)
        known_roots = self._of_name().get(name, []) if readers.sees(namespace_of(name)) else []
        roots = [visible_gang(root, readers) for root in known_roots]
        if not roots:
            raise NotFound(
                f"gang {name}: no such root group now; the log may have it: `gang-extender history {name}`, GET /v1/gangs/{name}/history"
            )
        matches = [root for root in roots if uid in (None, root.uid)]
        if not matches:
            uids = ", ".join(root.uid for root in roots)
            raise NotFound(f"gang {name}: the root groups of this name now have UID {uids}")
        return max(matches, key=lambda root: (root.observed_us, root.uid))

    def _of_name(self) -> Mapping[str, list[GangState]]:
        """Return the gangs by name; the index is made again when the gangs have changed.

        A name may have several: a PodGroup and a CompositePodGroup, or a group that was created again while
        the former one still exists in the state.
        """
        roots = self.state.committed.gangs

        def by_name() -> Mapping[str, list[GangState]]:
            named: dict[str, list[GangState]] = {}
            for root in roots.values():
                named.setdefault(root.gang, []).append(root)
            return named

        return self.index.get(by_name, same=(roots,))

    def _made_for(self) -> Mapping[RootKey, RootWorkload]:
        """Return the workloads of root groups; made again when the trees have changed."""
        trees = self.state.committed.trees
        return self.workloads.get(lambda: workloads_of_roots(trees.values()), same=(trees,))

    @EXPLAIN_GANG.handler
    async def _explain(self, request: web.Request, query: Query) -> web.StreamResponse:
        root = self._root(request, query)
        reader = visible_queries(self.reader, visibility_of(request))
        page = await reader.page(
            EventFilter(gang_uid=root.uid, types=ANSWERS, newest_first=True, limit=1)
        )
        explained = GangExplanation(gang=gang_at(root, self._made_for()))
        if page.events:
            (event,) = page.events
            explained.event = event_line(event)
            explained.decision = await decision_of(event, self.inputs)
        return await answer(request, [msgspec.json.encode(explained)], page.head)


TREES = Operation(
    path="/v1/trees",
    about="Workloads (Job, JobSet, ...) with a tree label, by name: their root groups and states, or why no tree can be made; a replica that does not lead answers as far as it has followed the log",
    answer=list[TreeAt],
    parameters=selection_parameters(
        TREE_STATES,
        namespace="workloads",
        state="workloads with this outcome, or with a root group in this state",
        labels="of the workload",
    ),
    problems=(400,),
    tagged=True,
)


@dataclass(frozen=True)
class TreeApi(Api):
    """Handler of /v1/trees."""

    state: StateSource
    labels: ObjectLabels

    @TREES.handler
    async def _trees(self, request: web.Request, query: Query) -> web.StreamResponse:
        selection, state = GangSelection(**query), self.state.committed
        pieces = await listed(trees_at(state, selection, self.labels, visibility_of(request)))
        return await answer(request, pieces, state.position)
