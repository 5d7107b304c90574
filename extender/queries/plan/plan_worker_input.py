"""Serialize the live view and state for the worker process of plan queries, and answer queries on them there.

The bytes are never stored, so their form can change. View and state are immutable, so they are encoded in slices of
the event loop while the service continues with newer ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec
from immutables import Map
from msgspec.msgpack import Decoder

from extender.core.admit.plan_request import vacated
from extender.core.log.reservation_state import EMPTY, ReservationState
from extender.core.model.cluster_view import (
    ClusterView,
    forest_of,
    with_blueprints,
    with_group,
    with_node,
    with_pdb,
    with_pod,
)
from extender.core.model.nodes import Node
from extender.core.model.pod_groups import Blueprint, Group
from extender.core.model.pods import Pod, PodDisruptionBudget
from extender.core.preempt.disruption_units import EvictableContext
from extender.queries.plan.plan_query import PlanAnswer, PlanInput, answer_plan_query
from extender.runtime.cooperative_yield import Yielder
from extender.snapshots.state_loader import decode_state, encode_state, join_states

PIECE = 32  # objects that are encoded without giving the event loop back
T = TypeVar("T")
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
    view: ClusterView, state: ReservationState, moment: EvictableContext
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


def restored(saved: LiveSnapshot) -> tuple[ClusterView, ReservationState]:
    """Return the view and the state of a snapshot."""
    view = ClusterView(max_children=saved.max_children)
    for node in _read(saved.nodes, Decoder(list[Node])):
        view = with_node(view, node)
    for group in _read(saved.groups, Decoder(list[Group])):
        view = with_group(view, group)
    for namespace, name, templates in _read(saved.workloads, Decoder(list[Workload])):
        view = with_blueprints(view, (namespace, name), templates)
    for budget in _read(saved.budgets, Decoder(list[PodDisruptionBudget])):
        view = with_pdb(view, budget)
    for pod in _read(saved.pods, Decoder(list[Pod])):
        view = with_pod(view, pod)
    return view, join_states(decode_state(piece) for piece in saved.state)


def answer_live_query(query: PlanInput, saved: LiveSnapshot) -> PlanAnswer:
    """Return the answer to a plan query on a snapshot, with its state and moment."""
    view, state = restored(saved)
    if query.anew:
        forest = forest_of(view)
        roots = {forest.root_of.get(key) for key in query.groups}
        anew = [tree for key, tree in forest.trees.items() if key in roots]
        view, state = vacated(view, state, anew)
    question = msgspec.structs.replace(
        query, state=state, moment=saved.moment, topology_keys=saved.topology_keys
    )
    return answer_plan_query(view, question)


def _parts(state: ReservationState) -> Iterator[ReservationState]:
    """Yield a state in parts: first all but its gangs, then one gang after the other."""
    yield msgspec.structs.replace(state, gangs=Map(), stream_versions=Map())
    for root in state.gangs.values():
        yield msgspec.structs.replace(EMPTY, gangs=Map({root.uid: root}))


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
