"""Load the state at start: newest usable checkpoint, then the tail of the log; and save checkpoints.

A checkpoint is a cache: when it does not decode, or belongs to another history, the log is folded
from its beginning instead, with a warning.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import zlib
from collections.abc import Iterable

import msgspec
from immutables import Map

from extender.core.errors import CorruptLog
from extender.core.events import FeaturesFound, GroupRecord
from extender.core.ids import Epoch, NodeName, PlanId, PodUid, Position, RootUid
from extender.core.preemptions import Claim, Preemption, Victim, claimed_on
from extender.core.state import (
    EMPTY,
    Answer,
    BoundMember,
    Folding,
    Phase,
    Reservation,
    ReservationState,
    RootState,
    Vacancy,
    VetoKey,
    VetoState,
)
from extender.service.ports import Checkpoint, Checkpoints, EventLog, Head

log = logging.getLogger(__name__)

CODEC = "state-9"  # changes with the meaning or shape of the state; older checkpoints are then passed over

BULK_EVENTS = 20_000  # from here on it pays to unpack the whole state before a fold


class _SavedRoot(msgspec.Struct, frozen=True):
    uid: RootUid
    root: str
    kind: str
    priority: int
    phase: Phase
    plan: PlanId | None
    groups: tuple[GroupRecord, ...]
    answer: Answer | None
    observed_us: int
    admitted_us: int
    held: tuple[Reservation, ...]
    bound: tuple[BoundMember, ...]
    away: tuple[BoundMember, ...]
    vacant: tuple[Vacancy, ...]
    tried: dict[PodUid, NodeName]
    topology: dict[NodeName, dict[str, str]]
    in_vain: int
    in_vain_us: int
    taken: int
    taken_us: int


class _SavedPreemption(msgspec.Struct, frozen=True):
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
    claims: dict[NodeName, tuple[Claim, ...]]


class _Saved(msgspec.Struct, frozen=True):
    position: int
    epoch: int
    at_us: int
    roots: tuple[_SavedRoot, ...]
    versions: dict[str, int]
    vetoes: tuple[tuple[VetoKey, VetoState], ...]
    truncated_epoch: int
    preemptions: tuple[_SavedPreemption, ...]
    features: FeaturesFound | None
    took: dict[str, dict[str, int]]


def encode_state(state: ReservationState) -> bytes:
    """Write a state down; indexes that follow from the roots are left out."""
    roots = []
    for root in state.roots.values():
        fields = {name: getattr(root, name) for name in _SavedRoot.__struct_fields__}
        fields |= {
            "held": tuple(root.held.values()),
            "bound": tuple(root.bound.values()),
            "away": tuple(root.away.values()),
            "vacant": tuple(root.vacant.values()),
            "tried": dict(root.tried),
            "topology": dict(root.topology),
        }
        roots.append(_SavedRoot(**fields))
    saved = _Saved(
        state.position,
        state.epoch,
        state.at_us,
        tuple(roots),
        {str(k): v for k, v in state.versions.items()},
        tuple(state.vetoes.items()),
        state.truncated_epoch,
        tuple(_saved(p) for p in state.preemptions.values()),
        state.features,
        {str(uid): dict(units) for uid, units in state.took.items()},
    )
    return zlib.compress(msgspec.msgpack.encode(saved), 1)


def _saved(preemption: Preemption) -> _SavedPreemption:
    fields = {name: getattr(preemption, name) for name in _SavedPreemption.__struct_fields__}
    fields |= {
        "victims": tuple(preemption.victims.values()),
        "claims": dict(preemption.claims),
    }
    return _SavedPreemption(**fields)


def _preemption(entry: _SavedPreemption) -> Preemption:
    fields = {name: getattr(entry, name) for name in _SavedPreemption.__struct_fields__}
    fields |= {"victims": Map({v.uid: v for v in entry.victims}), "claims": Map(entry.claims)}
    return Preemption(**fields)


def decode_state(body: bytes) -> ReservationState:
    """Read a state back.

    Raises:
        CorruptLog: The bytes are not a state of this codec.
    """
    try:
        saved = msgspec.msgpack.decode(zlib.decompress(body), type=_Saved)
        return _rebuilt(saved)
    except (zlib.error, msgspec.MsgspecError, KeyError, TypeError) as error:
        msg = f"checkpoint of codec {CODEC} does not decode: {error}"
        raise CorruptLog(msg) from error


def joined(parts: Iterable[ReservationState]) -> ReservationState:
    """Join a state that has no roots, the first, and the roots of others."""
    first, *others = parts
    roots = [root for other in others for root in other.roots.values()]
    held_on, root_of, vacant_on = _indexes(roots)
    return msgspec.structs.replace(
        first,
        roots=Map({root.uid: root for root in roots}),
        held_on=held_on,
        root_of=root_of,
        vacant_on=vacant_on,
    )


def _indexes(
    roots: Iterable[RootState],
) -> tuple[
    Map[NodeName, Map[PodUid, Reservation]],
    Map[PodUid, RootUid],
    Map[NodeName, Map[PodUid, Vacancy]],
]:
    """Find what follows from the roots: reservations by node, whose each pod is, and vacancies by node."""
    held_on: dict[NodeName, dict[PodUid, Reservation]] = {}
    root_of: dict[PodUid, RootUid] = {}
    vacant_on: dict[NodeName, dict[PodUid, Vacancy]] = {}
    for root in roots:
        for reservation in root.held.values():
            held_on.setdefault(reservation.node, {})[reservation.uid] = reservation
            root_of[reservation.uid] = root.uid
        for uid in root.bound:
            root_of[uid] = root.uid
        for vacancy in root.vacant.values():
            vacant_on.setdefault(vacancy.node, {})[vacancy.uid] = vacancy
    return (
        Map({node: Map(held) for node, held in held_on.items()}),
        Map(root_of),
        Map({node: Map(vacant) for node, vacant in vacant_on.items()}),
    )


def _rebuilt(saved: _Saved) -> ReservationState:
    roots: dict[RootUid, RootState] = {}
    for entry in saved.roots:
        fields = {name: getattr(entry, name) for name in _SavedRoot.__struct_fields__}
        fields |= {
            "held": Map({r.uid: r for r in entry.held}),
            "bound": Map({m.uid: m for m in entry.bound}),
            "away": Map({m.uid: m for m in entry.away}),
            "vacant": Map({v.uid: v for v in entry.vacant}),
            "tried": Map(entry.tried),
            "topology": Map(entry.topology),
        }
        root = RootState(**fields)
        roots[root.uid] = root
    held_on, root_of, vacant_on = _indexes(roots.values())
    preemptions = Map({p.root_uid: _preemption(p) for p in saved.preemptions})
    return ReservationState(
        position=Position(saved.position),
        epoch=Epoch(saved.epoch),
        at_us=saved.at_us,
        roots=Map(roots),
        versions=Map({RootUid(k): v for k, v in saved.versions.items()}),
        held_on=held_on,
        root_of=root_of,
        vetoes=Map(dict(saved.vetoes)),
        preemptions=preemptions,
        claimed_on=claimed_on(preemptions.values()),
        took=Map({RootUid(uid): Map(units) for uid, units in saved.took.items()}),
        vacant_on=vacant_on,
        truncated_epoch=Epoch(saved.truncated_epoch),
        features=saved.features,
    )


async def load_state(
    event_log: EventLog, checkpoints: Checkpoints, *, until: Position
) -> ReservationState:
    """Fold the log up to a position.

    Raises:
        CorruptLog: The log breaks its own rules; never skipped over.
        StoreUnavailable: Try again.
    """
    found = await nearest_checkpoint(checkpoints, until)
    return await fold_from(await restored(found), event_log, until=until)


async def fold_from(
    state: ReservationState, event_log: EventLog, *, until: Position
) -> ReservationState:
    """Fold what stands behind a state, up to a position.

    Raises: as `load_state`.
    """
    gc_was_on = gc.isenabled()
    gc.disable()  # a fold makes many small objects and no garbage cycles
    try:
        folding = Folding(state, bulk=until - state.position >= BULK_EVENTS)
        async for page in event_log.read(after=state.position, until=until):
            folding.apply(page)
            await asyncio.sleep(0)  # others get their turn, and the next page comes in
        state = folding.close()
    finally:
        if gc_was_on:
            gc.enable()
    if state.position != until:
        msg = f"the log ends at position {state.position}, expected {until}"
        raise CorruptLog(msg)
    return state


async def nearest_checkpoint(checkpoints: Checkpoints, until: Position) -> Checkpoint | None:
    """Find the newest checkpoint that this version can read, not behind a position."""
    return await checkpoints.newest(codec=CODEC, until=until)


async def restored(found: Checkpoint | None) -> ReservationState:
    """Read a state back; the empty one where there is no checkpoint, or it does not decode."""
    if found is None:
        return EMPTY
    try:
        return await asyncio.to_thread(decode_state, found.body)  # megabytes; others get their turn
    except CorruptLog as error:
        log.warning("checkpoint not used", extra={"position": found.position, "error": str(error)})
        return EMPTY


async def save_checkpoint(checkpoints: Checkpoints, state: ReservationState, head: Head) -> None:
    """Save a state that stands at the head of the log; encoding runs beside the event loop."""
    body = await asyncio.to_thread(encode_state, state)
    await checkpoints.save(
        Checkpoint(position=state.position, chain=head.chain, codec=CODEC, body=body)
    )
