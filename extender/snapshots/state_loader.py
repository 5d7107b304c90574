"""Loads the state from the newest usable snapshot and the events behind it; encodes snapshots, and saves them as the log grows.

There are two codecs. A full snapshot has everything, for a start. A historical one is smaller: without the versions
of streams that have ended, for historical queries. A snapshot is a cache: when it cannot be decoded, the log is
folded from its start instead, with a warning.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import GenericAlias
from typing import Any, get_args

import msgspec
from immutables import Map
from msgspec.msgpack import Decoder, Encoder

from extender.core.log.events import ControlPlaneFeaturesDetected, RecordedEvent
from extender.core.log.moves_state import PendingMoves
from extender.core.log.reservation_state import (
    EMPTY,
    CapacityHold,
    EvictedPod,
    GangState,
    PendingPreemption,
    RejectionKey,
    RejectionState,
    ReservationState,
    UnusedHolds,
    WorkloadTree,
    claims_by_node,
    claims_of,
)
from extender.core.log.state_projector import StateProjector
from extender.core.model.errors import CorruptLog, StoreUnavailable
from extender.core.model.ids import NIL_GANG, Epoch, GangUid, PodUid, Position
from extender.ports.log_ports import START, Clock, EventLog, LogHead, Snapshot, Snapshots

log = logging.getLogger(__name__)

Page = Sequence[RecordedEvent]

# Both change with the meaning or format of the state; snapshots of other codecs are not used.
FULL_CODEC = "state-9"  # full
HISTORICAL_CODEC = "past-9"  # historical

BULK_EVENTS = 20_000  # from this number on, a fold is faster if the whole state is unpacked first


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    position: int
    epoch: int
    at_us: int
    gangs: tuple[GangState, ...]
    # versions of their streams, in the same order; 0: not known
    stream_versions_of_gangs: tuple[int, ...]
    stream_versions: dict[GangUid, int]  # of live streams without a root
    rejections: tuple[tuple[RejectionKey, RejectionState], ...]
    truncated_epoch: int
    preemptions: tuple[PendingPreemption, ...]
    features: ControlPlaneFeaturesDetected | None
    evicted_units: dict[GangUid, dict[str, int]]
    trees: tuple[WorkloadTree, ...]
    evicted_pods: dict[PodUid, EvictedPod]
    capacity_holds: tuple[CapacityHold, ...]
    unused_holds: dict[str, UnusedHolds]
    moves: PendingMoves | None


class _Whole(msgspec.Struct, frozen=True, array_like=True):
    past: bytes  # as `encode_historical` writes it
    ended: bytes  # versions of all other streams, compressed; empty: there are none


def _mapped(kind: type[Map[Any, Any]], value: object) -> Map[Any, Any]:
    """Return a map of a saved preemption."""
    return Map(msgspec.convert(value, GenericAlias(dict, get_args(kind))))


_WHOLE, _PAST = Decoder(_Whole), Decoder(_Saved, dec_hook=_mapped)
_ENDED = Decoder(dict[GangUid, int])


def encode_state(state: ReservationState) -> bytes:
    """Return the bytes of a full snapshot; indexes that can be derived from the roots are left out."""
    return _whole(state, encode_historical(state))


def encode_historical(state: ReservationState) -> bytes:
    """Return the bytes of a historical snapshot: without versions of ended streams, and without indexes."""
    versions = state.stream_versions
    saved = _Saved(
        state.position,
        state.epoch,
        state.at_us,
        tuple(state.gangs.values()),
        tuple([versions.get(uid, 0) for uid in state.gangs]),
        {uid: versions[uid] for uid in _others(state) if uid in versions},
        tuple(state.rejections.items()),
        state.truncated_epoch,
        tuple(state.preemptions.values()),
        state.features,
        {uid: dict(units) for uid, units in state.evicted_units.items()},
        tuple(state.trees.values()),
        dict(state.evicted_pods),
        tuple(state.capacity_holds.values()),
        dict(state.unused_holds),
        state.moves,
    )
    return _packed(saved)


def _whole(state: ReservationState, past: bytes) -> bytes:
    live = {*state.gangs, *_others(state)}
    ended = {uid: version for uid, version in state.stream_versions.items() if uid not in live}
    return msgspec.msgpack.encode(_Whole(past, _packed(ended) if ended else b""))


def _packed(value: object) -> bytes:
    return zlib.compress(_ENCODER.encode(value), 1)


def _plain(value: object) -> dict[object, object]:
    if isinstance(value, Map):
        return dict(value)
    raise NotImplementedError


_ENCODER = Encoder(enc_hook=_plain)


def live_streams_only(state: ReservationState) -> ReservationState:
    """Return a state without the versions of streams that have ended."""
    streams = (*state.gangs, *_others(state))
    versions = {uid: state.stream_versions[uid] for uid in streams if uid in state.stream_versions}
    return msgspec.structs.replace(state, stream_versions=Map(versions))


def _others(state: ReservationState) -> set[GangUid]:
    """Return the live streams without a root: that of the cluster, and those of lone preemptors."""
    return {NIL_GANG, *state.preemptions, *state.evicted_units}.difference(state.gangs)


def decode_state(body: bytes) -> ReservationState:
    """Return the state of a full snapshot."""
    with _readable(FULL_CODEC):
        whole = _WHOLE.decode(body)
        ended = _ENDED.decode(zlib.decompress(whole.ended)) if whole.ended else {}
        return _rebuilt(whole.past, ended)


def decode_historical(body: bytes) -> ReservationState:
    """Return the state of a historical snapshot, read-only: without indexes and with plain dicts."""
    with _readable(HISTORICAL_CODEC):
        return _rebuilt(body, None)


def decode_foldable(body: bytes) -> ReservationState:
    """Return the state of a historical snapshot, with indexes and with maps, so that it can be folded further."""
    with _readable(HISTORICAL_CODEC):
        return _rebuilt(body, {})


@contextmanager
def _readable(codec: str) -> Iterator[None]:
    try:
        yield
    except (zlib.error, msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise CorruptLog(f"snapshot of codec {codec} cannot be decoded: {error}") from error


def join_states(parts: Iterable[ReservationState]) -> ReservationState:
    """Return the first state, which has no roots, with the roots of the others."""
    first, *others = parts
    roots = [root for other in others for root in other.gangs.values()]
    return _indexed(msgspec.structs.replace(first, gangs=Map({root.uid: root for root in roots})))


def _indexed(state: ReservationState) -> ReservationState:
    """Return a state with its indexes."""
    roots, holds = state.gangs.values(), state.capacity_holds.values()
    claims = claims_of(roots, state.preemptions.values(), holds, state.moves)
    return msgspec.structs.replace(
        state,
        claims_on=claims_by_node(claims),
        gang_of=Map({uid: root.uid for root in roots for uid in (*root.reservations, *root.bound)}),
    )


def _rebuilt(past: bytes, ended: dict[GangUid, int] | None) -> ReservationState:
    """Return the state of a historical snapshot.

    Args:
        ended: Versions of ended streams; None: the state is read-only, without indexes and with plain dicts.
    """
    size = 6 * len(past)  # about the size of the result: growing the buffer would copy megabytes
    saved = _PAST.decode(zlib.decompress(past, bufsize=size))
    roots = {root.uid: root for root in saved.gangs}
    versions = (ended or {}) | saved.stream_versions
    versions |= {
        uid: version
        for uid, version in zip(roots, saved.stream_versions_of_gangs, strict=True)
        if version
    }
    if ended is not None:
        roots = {uid: _with_maps(root) for uid, root in roots.items()}
    state = ReservationState(
        position=Position(saved.position),
        epoch=Epoch(saved.epoch),
        at_us=saved.at_us,
        gangs=Map(roots),
        stream_versions=Map(versions),
        rejections=Map(dict(saved.rejections)),
        preemptions=Map({p.gang_uid: p for p in saved.preemptions}),
        evicted_pods=Map(saved.evicted_pods),
        evicted_units=Map({uid: Map(units) for uid, units in saved.evicted_units.items()}),
        capacity_holds=Map({hold.gang_uid: hold for hold in saved.capacity_holds}),
        unused_holds=Map(saved.unused_holds),
        moves=saved.moves,
        truncated_epoch=Epoch(saved.truncated_epoch),
        features=saved.features,
        trees=Map({tree.uid: tree for tree in saved.trees}),
    )
    return state if ended is None else _indexed(state)


def _with_maps(root: GangState) -> GangState:
    """Return a root with maps instead of dicts, so that it can be folded further."""
    return msgspec.structs.replace(
        root, reservations=Map(root.reservations), bound=Map(root.bound), lost_with_node=Map(root.lost_with_node), replacement_holds=Map(root.replacement_holds),
        previous_nodes=Map(root.previous_nodes), topology=Map(root.topology),
    )  # fmt: skip


async def load_state(
    event_log: EventLog, snapshots: Snapshots, *, until: Position
) -> ReservationState:
    """Fold the log up to a position.

    Raises:
        CorruptLog: The log is not valid; no event is skipped.
    """
    state = await _state_of(await snapshots.newest(codec=FULL_CODEC, until=until), decode_state)
    return await fold_from(state, event_log, until=until)


async def load_live_streams(
    event_log: EventLog, snapshots: Snapshots, *, until: Position
) -> ReservationState:
    """Fold the log up to a position, without the versions of ended streams; see `live_streams_only`.

    Raises:
        CorruptLog: The log is not valid; no event is skipped.
    """
    state = await _state_of(await nearest_snapshot(snapshots, until), decode_foldable)
    return live_streams_only(await fold_from(state, event_log, until=until, knows_ended=False))


async def load_historical_state(
    event_log: EventLog, snapshots: Snapshots, *, until: Position
) -> ReservationState:
    """Fold the log up to a position, read-only: without indexes, with plain dicts, and without all versions.

    Raises:
        CorruptLog: The log is not valid; no event is skipped.
    """
    snapshot = await nearest_snapshot(snapshots, until)
    after = snapshot.position if snapshot is not None else START
    pages = event_log.read(after=after, until=until)
    first = asyncio.ensure_future(anext(pages, None))  # read while the snapshot is decoded
    try:
        state = await state_of_snapshot(snapshot)
        read = _with_first(first, pages) if state.position == after else None
        return await fold_from(state, event_log, until=until, past=True, pages=read)
    finally:
        first.cancel()


async def _with_first(
    first: Awaitable[Page | None], pages: AsyncIterator[Page]
) -> AsyncIterator[Page]:
    """Return all pages of an iterator whose first page has been requested already."""
    page = await first
    while page is not None:
        yield page
        page = await anext(pages, None)


async def fold_from(
    state: ReservationState,
    event_log: EventLog,
    *,
    until: Position,
    knows_ended: bool = True,
    past: bool = False,
    pages: AsyncIterator[Page] | None = None,
) -> ReservationState:
    """Fold the events behind a state, up to a position.

    Args:
        pages: Of these events; None: they are read.
        knows_ended: Whether the state has the versions of ended streams; see `live_streams_only`.
        past: The state is read-only; see `StateProjector`.

    Raises:
        CorruptLog: The log is not valid; no event is skipped.
    """
    with gc_paused():
        bulk = until - state.position >= BULK_EVENTS
        projector = StateProjector(state, bulk=bulk, knows_ended=knows_ended, past=past)
        async for page in pages or event_log.read(after=state.position, until=until):
            projector.apply(page)
            await asyncio.sleep(0)  # yield to the event loop, and read the next page
        state = projector.close()
    if state.position != until:
        raise CorruptLog(f"the log ends at position {state.position}, expected {until}")
    return state


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the garbage collector: a state has many small objects, and none of them is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def nearest_snapshot(snapshots: Snapshots, until: Position) -> Snapshot | None:
    """Return the newest historical snapshot of this version up to a position, or None."""
    return await snapshots.newest(codec=HISTORICAL_CODEC, until=until)


async def state_of_snapshot(snapshot: Snapshot | None) -> ReservationState:
    """Return the state of what `nearest_snapshot` returned; the empty state for None, or if it cannot be decoded."""
    return await _state_of(snapshot, decode_historical)


async def _state_of(
    snapshot: Snapshot | None, decode: Callable[[bytes], ReservationState]
) -> ReservationState:
    if snapshot is None:
        return EMPTY
    try:
        with gc_paused():  # megabytes: in a thread, so that the event loop is free
            return await asyncio.to_thread(decode, snapshot.body)
    except CorruptLog as error:
        log.warning("snapshot not used", extra={"position": snapshot.position, "error": str(error)})
        return EMPTY


async def save_snapshot(
    snapshots: Snapshots, state: ReservationState, head: LogHead, *, full: bool = True
) -> None:
    """Save the state at a position of the log as a historical snapshot, and at its head as a full one too.

    Encoding runs in a thread, so that the event loop is free.
    """
    bodies = {HISTORICAL_CODEC: await asyncio.to_thread(encode_historical, state)}
    if full:
        bodies[FULL_CODEC] = await asyncio.to_thread(_whole, state, bodies[HISTORICAL_CODEC])
    historical, *others = (
        Snapshot(position=head.position, chain=head.chain, codec=codec, body=body)
        for codec, body in bodies.items()
    )
    await snapshots.save(historical, *others)


FULL_EVERY = 5  # full snapshots are this many times rarer: a start folds the events between two in a tenth of a second


class SnapshotWriter:
    """Saves snapshots as the log grows, so that the next start and historical queries read few events behind one.

    Historical snapshots are saved more often: full ones have the version of every stream that ever existed.

    Args:
        ms: Time between two full snapshots, if there are new events.
    """

    def __init__(
        self, event_log: EventLog, snapshots: Snapshots, clock: Clock, *, events: int, ms: int
    ) -> None:
        self._log = event_log
        self._snapshots = snapshots
        self._clock = clock
        self._events = events
        self._ms = ms
        self._saved = START
        self._full = START
        self._full_ms = 0
        self._one_at_a_time = asyncio.Lock()

    async def save_if_due(self, state: ReservationState) -> None:
        """Save a snapshot after enough events or enough time; a failure is logged, and the next call tries again."""
        fresh = state.position - self._full
        age_ms = self._clock.monotonic_ms() - self._full_ms
        try:
            if fresh >= FULL_EVERY * self._events or (fresh > 0 and age_ms >= self._ms):
                await self.save(state)
            elif state.position - self._saved >= self._events:
                await self.save(state, full=False)
        except StoreUnavailable as error:
            log.warning("snapshot not saved", extra={"error": str(error)})

    async def save(self, state: ReservationState, *, full: bool = True) -> None:
        """Save a full snapshot, or only a historical one, unless the log has later events."""
        async with self._one_at_a_time:
            head = await self._log.head()
            if head.position != state.position or (full and state.position == self._full):
                return  # the log is growing; a later call saves
            await save_snapshot(self._snapshots, state, head, full=full)
            self._saved = state.position
            if full:
                self._full, self._full_ms = state.position, self._clock.monotonic_ms()

    async def discard(self) -> None:
        """Delete all snapshots, also the one that is being saved; call it when the state is right."""
        async with self._one_at_a_time:
            self._saved = self._full = START
            await self._snapshots.delete_all()


async def backfill_snapshots(
    event_log: EventLog, snapshots: Snapshots, *, until: Position, every: int
) -> int:
    """Save a snapshot in each section of the log that has none.

    Returns:
        The number of snapshots saved.

    Raises:
        CorruptLog: The log is not valid.
        StoreUnavailable: Try again; what was saved is kept.
    """
    saved, state = 0, EMPTY
    for position in range(every, until + 1, every):
        nearest = await nearest_snapshot(snapshots, Position(position))
        if nearest is not None and nearest.position > position - every:
            continue
        start = nearest.position if nearest is not None else START
        if state.position < start:
            state = await state_of_snapshot(nearest)
        state = await fold_from(state, event_log, until=Position(position), past=True)
        head = await event_log.at(state.position)
        assert head is not None
        await save_snapshot(snapshots, state, head, full=False)
        saved += 1
    return saved
