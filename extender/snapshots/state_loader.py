"""Load the state at start: newest usable checkpoint, then the tail of the log; and save checkpoints.

A checkpoint is a cache: when it does not decode, or belongs to another history, the log is folded
from its beginning instead, with a warning.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import zlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import contextmanager
from typing import Any

import msgspec
from immutables import Map
from msgspec.msgpack import Decoder, Encoder

from extender.core.log.events import FeaturesFound, RecordedEvent
from extender.core.log.preemption_state import CapacityClaim, PendingPreemption, Victim, claimed_on
from extender.core.log.reservation_state import (
    EMPTY,
    GangState,
    RejectionKey,
    RejectionState,
    ReplacementHold,
    Reservation,
    ReservationState,
    StateProjector,
)
from extender.core.model.errors import CorruptLog
from extender.core.model.ids import NIL_ROOT, Epoch, NodeName, PlanId, PodUid, Position, RootUid
from extender.ports.protocols import START, EventLog, LogHead, Snapshot, Snapshots

log = logging.getLogger(__name__)

Page = Sequence[RecordedEvent]

# Both change with the meaning or shape of the state; checkpoints of another codec are passed over.
CODEC = "state-1"  # to start from: whole
PAST = "past-1"  # to look back from: a state as `lean` leaves it

BULK_EVENTS = 20_000  # from here on it pays to unpack the whole state before a fold


class _SavedPreemption(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: PlanId
    root_uid: RootUid
    root: str
    kind: str
    priority: int
    position: Position
    epoch: Epoch
    at_us: int
    progress_us: int
    units: tuple[str, ...]
    priorities: tuple[int, ...]
    begun: frozenset[str]
    evicted: int
    awaits: frozenset[PodUid]
    extras: frozenset[PodUid]
    ended: bool
    victims: tuple[Victim, ...]
    claims: dict[NodeName, tuple[CapacityClaim, ...]]


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    position: int
    epoch: int
    at_us: int
    roots: tuple[GangState, ...]
    of_roots: tuple[int, ...]  # versions of their streams, in the same order; 0: not known
    versions: dict[RootUid, int]  # of streams that live and are of no root
    vetoes: tuple[tuple[RejectionKey, RejectionState], ...]
    truncated_epoch: int
    preemptions: tuple[_SavedPreemption, ...]
    features: FeaturesFound | None
    took: dict[RootUid, dict[str, int]]


class _Whole(msgspec.Struct, frozen=True, array_like=True):
    past: bytes  # as `encode_past` writes it
    ended: bytes  # versions of the other streams, packed; empty: there are none


_WHOLE, _PAST = Decoder(_Whole), Decoder(_Saved)
_ENDED = Decoder(dict[RootUid, int])
_NONE: Map[Any, Any] = Map()
_BROKEN = (zlib.error, msgspec.MsgspecError, KeyError, TypeError, ValueError)


def encode_state(state: ReservationState) -> bytes:
    """Write a state down; indexes that follow from the roots are left out."""
    return _whole(state, encode_past(state))


def encode_past(state: ReservationState) -> bytes:
    """Write a state down to look back from: without the versions of streams that have ended, and without indexes."""
    versions = state.versions
    saved = _Saved(
        state.position,
        state.epoch,
        state.at_us,
        tuple(state.roots.values()),
        tuple([versions.get(uid, 0) for uid in state.roots]),
        {uid: versions[uid] for uid in _others(state) if uid in versions},
        tuple(state.vetoes.items()),
        state.truncated_epoch,
        tuple([_saved(p) for p in state.preemptions.values()]),
        state.features,
        {uid: dict(units) for uid, units in state.took.items()},
    )
    return _packed(saved)


def _whole(state: ReservationState, past: bytes) -> bytes:
    living, others = state.roots, _others(state)
    ended = {
        uid: version
        for uid, version in state.versions.items()
        if uid not in living and uid not in others
    }
    return msgspec.msgpack.encode(_Whole(past, _packed(ended) if ended else b""))


def _packed(value: object) -> bytes:
    return zlib.compress(_ENCODER.encode(value), 1)


def _plain(value: object) -> dict[object, object]:
    if isinstance(value, Map):
        return dict(value)
    raise NotImplementedError


_ENCODER = Encoder(enc_hook=_plain)


def _unzipped(body: bytes) -> bytes:
    size = 6 * len(body)  # about what comes out: growing to it copies megabytes
    return zlib.decompress(body, bufsize=size)


def living(state: ReservationState) -> ReservationState:
    """Leave out the versions of streams that have ended."""
    streams = (*state.roots, *_others(state))
    versions = {uid: state.versions[uid] for uid in streams if uid in state.versions}
    return msgspec.structs.replace(state, versions=Map(versions))


def _others(state: ReservationState) -> set[RootUid]:
    """Give the streams that live and may be of no root: of the cluster, and of pods that preempt."""
    return {NIL_ROOT, *state.preemptions, *state.took}.difference(state.roots)


def _saved(preemption: PendingPreemption) -> _SavedPreemption:
    fields = {name: getattr(preemption, name) for name in _SavedPreemption.__struct_fields__}
    fields |= {
        "victims": tuple(preemption.victims.values()),
        "claims": dict(preemption.claims),
    }
    return _SavedPreemption(**fields)


def _preemption(entry: _SavedPreemption) -> PendingPreemption:
    fields = {name: getattr(entry, name) for name in _SavedPreemption.__struct_fields__}
    fields |= {"victims": Map({v.uid: v for v in entry.victims}), "claims": Map(entry.claims)}
    return PendingPreemption(**fields)


def decode_state(body: bytes) -> ReservationState:
    """Read back what `encode_state` wrote.

    Raises:
        CorruptLog: The bytes are not a state of this codec.
    """
    try:
        whole = _WHOLE.decode(body)
        ended = _ENDED.decode(zlib.decompress(whole.ended)) if whole.ended else {}
        return _rebuilt(_PAST.decode(_unzipped(whole.past)), ended)
    except _BROKEN as error:
        msg = f"checkpoint of codec {CODEC} does not decode: {error}"
        raise CorruptLog(msg) from error


def decode_past(body: bytes) -> ReservationState:
    """Read back what `encode_past` wrote, to be looked at only.

    Raises:
        CorruptLog: The bytes are not a state of this codec.
    """
    return _past(body, None)


def decode_living(body: bytes) -> ReservationState:
    """Read back what `encode_past` wrote, with its indexes and with maps to go on from.

    Raises:
        CorruptLog: The bytes are not a state of this codec.
    """
    return _past(body, {})


def _past(body: bytes, ended: dict[RootUid, int] | None) -> ReservationState:
    try:
        return _rebuilt(_PAST.decode(_unzipped(body)), ended)
    except _BROKEN as error:
        msg = f"checkpoint of codec {PAST} does not decode: {error}"
        raise CorruptLog(msg) from error


def joined(parts: Iterable[ReservationState]) -> ReservationState:
    """Join a state that has no roots, the first, and the roots of others."""
    first, *others = parts
    roots = [root for other in others for root in other.roots.values()]
    held_on, root_of = _indexes(roots)
    return msgspec.structs.replace(
        first,
        roots=Map({root.uid: root for root in roots}),
        held_on=held_on,
        root_of=root_of,
        vacant_on=_vacant_on(roots),
    )


def _indexes(
    roots: Iterable[GangState],
) -> tuple[Map[NodeName, Map[PodUid, Reservation]], Map[PodUid, RootUid]]:
    """Find what follows from the roots: reservations by node, and whose each pod is."""
    held_on: dict[NodeName, dict[PodUid, Reservation]] = {}
    root_of: dict[PodUid, RootUid] = {}
    for root in roots:
        for reservation in root.held.values():
            held_on.setdefault(reservation.node, {})[reservation.uid] = reservation
            root_of[reservation.uid] = root.uid
        for uid in root.bound:
            root_of[uid] = root.uid
    return Map({node: Map(held) for node, held in held_on.items()}), Map(root_of)


def _vacant_on(roots: Iterable[GangState]) -> Map[NodeName, Map[PodUid, ReplacementHold]]:
    """Find what also follows from the roots: vacancies by node."""
    found: dict[NodeName, dict[PodUid, ReplacementHold]] = {}
    for root in roots:
        for vacancy in root.vacant.values():
            found.setdefault(vacancy.node, {})[vacancy.uid] = vacancy
    return Map({node: Map(vacant) for node, vacant in found.items()})


def _rebuilt(saved: _Saved, ended: dict[RootUid, int] | None) -> ReservationState:
    """Make a state of what was read.

    Args:
        saved: What was read.
        ended: Versions of streams that have ended; None: the state is to be looked at only, without indexes and with plain maps.
    """
    roots = {root.uid: root for root in saved.roots}
    versions = (ended or {}) | saved.versions
    versions |= {
        uid: version for uid, version in zip(roots, saved.of_roots, strict=True) if version
    }
    if ended is not None:
        roots = {uid: _with_maps(root) for uid, root in roots.items()}
    held_on, root_of = _indexes(roots.values()) if ended is not None else (_NONE, _NONE)
    preemptions = Map({p.root_uid: _preemption(p) for p in saved.preemptions})
    return ReservationState(
        position=Position(saved.position),
        epoch=Epoch(saved.epoch),
        at_us=saved.at_us,
        roots=Map(roots),
        versions=Map(versions),
        held_on=held_on,
        root_of=root_of,
        vetoes=Map(dict(saved.vetoes)),
        preemptions=preemptions,
        claimed_on=claimed_on(preemptions.values()),
        took=Map({uid: Map(units) for uid, units in saved.took.items()}),
        vacant_on=_vacant_on(roots.values()),
        truncated_epoch=Epoch(saved.truncated_epoch),
        features=saved.features,
    )


def _with_maps(root: GangState) -> GangState:
    """Give a root with maps to go on from."""
    return msgspec.structs.replace(
        root, held=Map(root.held), bound=Map(root.bound), away=Map(root.away), vacant=Map(root.vacant),
        tried=Map(root.tried), topology=Map(root.topology),
    )  # fmt: skip


async def load_state(
    event_log: EventLog, checkpoints: Snapshots, *, until: Position
) -> ReservationState:
    """Fold the log up to a position.

    Raises:
        CorruptLog: The log breaks its own rules; never skipped over.
        StoreUnavailable: Try again.
    """
    found = await checkpoints.newest(codec=CODEC, until=until)
    state = await _restored(found, decode_state)
    return await fold_from(state, event_log, until=until)


async def load_living(
    event_log: EventLog, checkpoints: Snapshots, *, until: Position
) -> ReservationState:
    """Fold the log up to a position; what it gives is `living`.

    Raises: as `load_state`.
    """
    found = await nearest_checkpoint(checkpoints, until)
    state = await _restored(found, decode_living)
    return living(await fold_from(state, event_log, until=until, knows_ended=False))


async def load_past(
    event_log: EventLog, checkpoints: Snapshots, *, until: Position
) -> ReservationState:
    """Fold the log up to a position, to be looked at only: without indexes, with plain maps, and not with all versions.

    Raises: as `load_state`.
    """
    found = await nearest_checkpoint(checkpoints, until)
    after = found.position if found is not None else START
    pages = event_log.read(after=after, until=until)
    first = asyncio.ensure_future(anext(pages, None))  # comes in while the checkpoint is unpacked
    try:
        state = await restored(found)
        if state.position == after:
            return await _folded(state, _again(first, pages), until=until, past=True)
    finally:
        first.cancel()
    return await fold_from(state, event_log, until=until, past=True)


async def _again(first: Awaitable[Page | None], pages: AsyncIterator[Page]) -> AsyncIterator[Page]:
    """Give all pages of an iterator that the first one has been asked of."""
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
) -> ReservationState:
    """Fold what stands behind a state, up to a position.

    Args:
        state: Where to begin.
        event_log: To read.
        until: Position of the last event.
        knows_ended: The state has the versions of streams that have ended; see `living`.
        past: The state is to be looked at only; see `StateProjector`.

    Raises: as `load_state`.
    """
    pages = event_log.read(after=state.position, until=until)
    return await _folded(state, pages, until=until, knows_ended=knows_ended, past=past)


async def _folded(
    state: ReservationState,
    pages: AsyncIterator[Page],
    *,
    until: Position,
    knows_ended: bool = True,
    past: bool = False,
) -> ReservationState:
    with no_collections():
        bulk = until - state.position >= BULK_EVENTS
        folding = StateProjector(state, bulk=bulk, knows_ended=knows_ended, past=past)
        async for page in pages:
            folding.apply(page)
            await asyncio.sleep(0)  # others get their turn, and the next page comes in
        state = folding.close()
    if state.position != until:
        msg = f"the log ends at position {state.position}, expected {until}"
        raise CorruptLog(msg)
    return state


@contextmanager
def no_collections() -> Iterator[None]:
    """Keep the garbage collector off meanwhile: states are many small objects, and nothing of them is garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


async def nearest_checkpoint(checkpoints: Snapshots, until: Position) -> Snapshot | None:
    """Find the newest checkpoint to look back from that this version can read, not behind a position."""
    return await checkpoints.newest(codec=PAST, until=until)


async def restored(found: Snapshot | None) -> ReservationState:
    """Read back what `nearest_checkpoint` found; the empty state for nothing, or what does not decode."""
    return await _restored(found, decode_past)


async def _restored(
    found: Snapshot | None, decode: Callable[[bytes], ReservationState]
) -> ReservationState:
    if found is None:
        return EMPTY
    try:
        with no_collections():  # megabytes; others get their turn
            return await asyncio.to_thread(decode, found.body)
    except CorruptLog as error:
        log.warning("checkpoint not used", extra={"position": found.position, "error": str(error)})
        return EMPTY


async def save_checkpoint(checkpoints: Snapshots, state: ReservationState, head: LogHead) -> None:
    """Save a state that stands at the head of the log, to start from and to look back from.

    Encoding runs beside the event loop.
    """
    past = await asyncio.to_thread(encode_past, state)
    whole = await asyncio.to_thread(_whole, state, past)
    await checkpoints.save(_at(head, PAST, past), _at(head, CODEC, whole))


async def save_past(checkpoints: Snapshots, state: ReservationState, head: LogHead) -> None:
    """Save a state that stands somewhere in the log, to look back from only."""
    past = await asyncio.to_thread(encode_past, state)
    await checkpoints.save(_at(head, PAST, past))


def _at(head: LogHead, codec: str, body: bytes) -> Snapshot:
    return Snapshot(position=head.position, chain=head.chain, codec=codec, body=body)
