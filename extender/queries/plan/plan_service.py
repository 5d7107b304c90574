"""Answer plan queries in a worker process: bodies of `POST /v1/plan` and `POST /v1/moves`, and queries of the service about the live cluster.

The worker process plans one at a time. The live cluster is handed to it as a snapshot: view and state are immutable, so they are
encoded in slices of the event loop while the service continues with newer ones. The bytes are never stored, so their form can change.
"""

from __future__ import annotations

import re
import signal
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol, TypeVar

import msgspec
from immutables import Map
from msgspec import UNSET, Raw, UnsetType
from msgspec.msgpack import Decoder
from msgspec.structs import replace

from extender.core.admit.plan_request import vacated
from extender.core.log.reservation_state import EMPTY, ReservationState
from extender.core.model import cluster_view
from extender.core.model.errors import ClusterUnavailable, TooManyQueries
from extender.core.model.ids import GangUid, Position
from extender.core.model.message_formatting import rfc3339
from extender.core.model.nodes import Node
from extender.core.model.pod_groups import Blueprint, Group
from extender.core.model.pods import Pod, PodDisruptionBudget, VolumeConstraints
from extender.core.model.visibility import EVERYTHING, Visibility
from extender.core.preempt.disruption_units import EvictableContext
from extender.core.workloads.tree_policy import TreeProfile
from extender.ports.cluster_ports import Cluster
from extender.ports.log_ports import Clock, StateSource
from extender.ports.workload_ports import Workloads
from extender.queries.plan.plan_dto import PlanAnswer
from extender.queries.plan.plan_query import PlanInput, answer_plan_query
from extender.runtime.cooperative_yield import Yielder
from extender.runtime.worker_process import NICE, WorkerProcess
from extender.snapshots.state_loader import decode_state, encode_state, join_states

_NAMES: Final = re.compile(rb"[a-z0-9][a-z0-9.-]*")  # what may be the name of a claim
_CLAIM: Final = b"laim"  # persistentVolumeClaim, claimName: in a body of which pods use claims
NOW_BODY_MAX = 1 << 20  # bytes of a request for the live cluster; it is parsed on the event loop
T = TypeVar("T")


class ClusterSource(Cluster, Protocol):
    """The cluster port, with what only plan queries need."""

    def priority_classes(self) -> tuple[bytes, ...]:
        """Return the PriorityClasses as JSON objects."""
        ...

    def claims_named(self, names: Collection[str]) -> Mapping[tuple[str, str], VolumeConstraints]:
        """Return how the volume claims with some names, by namespace and name, restrict the nodes of their pods."""
        ...

    @property
    def workloads(self) -> Workloads | None:
        """Return the workloads of the cluster; None: they are not read."""
        ...


class RunInWorker(Protocol):
    """Runs a function of a module in the worker process, see `PlanQueryWorker.run`."""

    async def __call__(self, work: Callable[..., T], *args: object) -> T:
        """Return what the function returns."""
        ...


class LiveInput(msgspec.Struct, frozen=True):
    """The live cluster."""

    snapshot: LiveSnapshot
    priority_classes: tuple[bytes, ...]
    as_of: str  # RFC 3339
    profiles: tuple[TreeProfile, ...] = ()
    readers: Visibility = EVERYTHING  # what the caller sees of the cluster
    # of the volume claims that the query may name
    claims: Mapping[tuple[str, str], VolumeConstraints] = {}


class PlanResult(msgspec.Struct, frozen=True):
    """JSON of a `PlanReply`, and the log position of the state if it is about the live cluster."""

    body: bytes
    position: Position | None = None


class _ClusterField(msgspec.Struct):
    cluster: Raw | UnsetType = UNSET


@dataclass(frozen=True)
class PlanService:
    """Sends plan queries to the worker process."""

    cluster: ClusterSource
    state: StateSource
    # returns the roots with members that are or may be bound, which are not released as a whole
    releasing: Callable[[], frozenset[GangUid]]
    clock: Clock
    run: RunInWorker
    answer_body: Callable[
        [bytes, LiveInput | None], bytes
    ]  # of the JSON of a `PlanQuestion`, there
    topology_keys: tuple[str, ...] = ()

    async def plan(
        self,
        body: bytes,
        readers: Visibility = EVERYTHING,
        answer: Callable[[bytes, LiveInput | None], bytes] | None = None,
    ) -> PlanResult:
        """Return the answer to a plan query, the JSON of a `PlanQuestion`.

        Args:
            answer: Answers the body of another question in the worker process, such as one about moves.

        Raises:
            TooManyQueries: Too many queries wait already, or the query is too large.
            ClusterUnavailable: The query is about the live cluster, and the view is not current.
        """
        answer = answer or self.answer_body
        if not _is_about_live_cluster(body):
            return PlanResult(await self.run(answer, body, None))
        saved, position = await self._snapshot()
        workloads = self.cluster.workloads
        profiles = () if workloads is None else tuple(workloads.view().profiles.values())
        as_of = rfc3339(saved.moment.now_us)
        names = {word.decode() for word in _NAMES.findall(body)} if _CLAIM in body else ()
        live = LiveInput(
            saved,
            self.cluster.priority_classes(),
            as_of,
            profiles,
            readers,
            self.cluster.claims_named(names),
        )
        return PlanResult(await self.run(answer, body, live), position)

    async def plan_live(self, query: PlanInput) -> PlanAnswer:
        """Return the answer to a query about trees of the live cluster.

        Raises:
            TooManyQueries: Too many queries wait already.
            ClusterUnavailable: The view of the cluster is not current.
        """
        saved, _ = await self._snapshot()
        return await self.run(answer_live_query, query, saved)

    async def _snapshot(self) -> tuple[LiveSnapshot, Position]:
        """Return the live cluster for the worker process, and the position of its state."""
        if reason := self.cluster.not_ready_reason():
            raise ClusterUnavailable(f"the view of the cluster is not current: {reason}")
        state = self.state.committed
        moment = EvictableContext(releasing=self.releasing(), now_us=self.clock.now_us())
        saved = await snapshot(self.cluster.view(), state, moment)
        saved = replace(saved, topology_keys=self.topology_keys)
        return saved, state.position


def _is_about_live_cluster(body: bytes) -> bool:
    """Return whether a query has no cluster; the worker process reports queries that cannot be read."""
    if len(body) > NOW_BODY_MAX:
        return False
    try:
        return msgspec.json.decode(body, type=_ClusterField).cluster is UNSET
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False


WAITING_MAX = 4  # calls that may wait for the running one
TOO_LONG_S = 60  # wall-clock time for one call: the others wait for it
W = TypeVar("W")


class PlanQueryWorker:
    """A worker process with a limit of waiting calls, and of the time for one."""

    def __init__(self) -> None:
        self._process = WorkerProcess(nice=NICE)
        self._calls = 0

    async def run(self, work: Callable[..., W], *args: object) -> W:
        """Run a function of a module in the process; its exceptions are raised here.

        Raises:
            TooManyQueries: Too many calls wait already, or the process died or took too long.
        """
        if self._calls > WAITING_MAX:
            raise TooManyQueries(f"{WAITING_MAX} plan queries wait already; try again later")
        self._calls += 1
        try:
            return await self._process.run(_limited, work, *args)
        except BrokenProcessPool as error:
            raise TooManyQueries(
                f"the process of plan queries died, or took more than {TOO_LONG_S} s; plan fewer trees, or with a "
                "smaller budget"
            ) from error
        finally:
            self._calls -= 1

    def stop(self) -> None:
        """Kill the process at once."""
        self._process.stop()


def _limited(work: Callable[..., W], *args: object) -> W:
    """Run a function in the worker process; the kernel kills the process after `TOO_LONG_S`."""
    signal.alarm(TOO_LONG_S)
    try:
        return work(*args)
    finally:
        signal.alarm(0)


PIECE = 32  # objects that are encoded without giving the event loop back
Workload = tuple[str, str, tuple[Blueprint, ...]]


class LiveSnapshot(msgspec.Struct, frozen=True):
    """A view and a state, each part as a list of encoded pieces."""

    nodes: tuple[bytes, ...]
    pods: tuple[bytes, ...]
    groups: tuple[bytes, ...]
    workloads: tuple[bytes, ...]
    budgets: tuple[bytes, ...]
    state: tuple[bytes, ...]
    moment: EvictableContext
    max_children: int
    topology_keys: tuple[str, ...] = ()  # of the settings


async def snapshot(
    view: cluster_view.ClusterView, state: ReservationState, moment: EvictableContext
) -> LiveSnapshot:
    """Return view and state encoded; gives the event loop back every half millisecond."""
    pace = Yielder()
    workloads = ((*name, templates) for name, templates in view.blueprints.items())
    return LiveSnapshot(
        nodes=await _written(view.nodes.values(), pace),
        pods=await _written(view.pods.values(), pace),
        groups=await _written(view.groups.values(), pace),
        workloads=await _written(workloads, pace),
        budgets=await _written(view.budgets.values(), pace),
        state=await _paced(map(encode_state, _parts(state)), pace),
        moment=moment,
        max_children=view.max_children,
    )


def restored(saved: LiveSnapshot) -> tuple[cluster_view.ClusterView, ReservationState]:
    """Return the view and the state of a snapshot."""
    view = cluster_view.ClusterView(max_children=saved.max_children)
    for node in _read(saved.nodes, Decoder(list[Node])):
        view = cluster_view.with_node(view, node)
    for group in _read(saved.groups, Decoder(list[Group])):
        view = cluster_view.with_group(view, group)
    for namespace, name, templates in _read(saved.workloads, Decoder(list[Workload])):
        view = cluster_view.with_blueprints(view, (namespace, name), templates)
    for budget in _read(saved.budgets, Decoder(list[PodDisruptionBudget])):
        view = cluster_view.with_pdb(view, budget)
    for pod in _read(saved.pods, Decoder(list[Pod])):
        view = cluster_view.with_pod(view, pod)
    return view, join_states(decode_state(piece) for piece in saved.state)


def answer_live_query(query: PlanInput, saved: LiveSnapshot) -> PlanAnswer:
    """Return the answer to a plan query on a snapshot, with its state and moment."""
    view, state = restored(saved)
    if query.anew:
        forest = cluster_view.forest_of(view)
        roots = {forest.root_of.get(key) for key in query.groups}
        anew = [tree for key, tree in forest.trees.items() if key in roots]
        view, state = vacated(view, state, anew)
    question = replace(query, state=state, moment=saved.moment, topology_keys=saved.topology_keys)
    return answer_plan_query(view, question)


def _parts(state: ReservationState) -> Iterator[ReservationState]:
    """Yield a state in parts: first all but its gangs, then one gang after the other."""
    yield replace(state, gangs=Map(), stream_versions=Map())
    for root in state.gangs.values():
        yield replace(EMPTY, gangs=Map({root.uid: root}))


async def _written(values: Iterable[object], pace: Yielder) -> tuple[bytes, ...]:
    return await _paced(_pieces(iter(values)), pace)


def _pieces(values: Iterator[object]) -> Iterator[bytes]:
    while piece := list(islice(values, PIECE)):
        yield zlib.compress(msgspec.msgpack.encode(piece), 1)


async def _paced(pieces: Iterator[bytes], pace: Yielder) -> tuple[bytes, ...]:
    written = []
    for piece in pieces:
        written.append(piece)
        await pace.yield_if_due()
    return tuple(written)


def _read(pieces: Sequence[bytes], decoder: Decoder[list[T]]) -> Iterator[T]:
    for piece in pieces:
        yield from decoder.decode(zlib.decompress(piece))
