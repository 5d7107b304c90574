"""What the use cases need from the outside world; owned here, implemented by the adapters.

Every port has one contract suite (`tests/contract`) that runs on the fake and on the real adapter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

from extender.core.decisions.reconcile.finalizer_rules import FinalizerChange
from extender.core.log.control_plane_features import DryRunResult, SchedulerGates
from extender.core.log.events import EvictionHow, RecordedEvent
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import Epoch, GroupKey, NodeName, PlanId, PodUid, Position, RootUid
from extender.core.model.pods import PodEnd


class Clock(Protocol):
    """The only reader of time and maker of unique ids."""

    def now_us(self) -> int:
        """Give the wall clock in microseconds since the epoch; may step back."""
        ...

    def monotonic_ms(self) -> int:
        """Give a clock that never steps back, in milliseconds from an unknown start."""
        ...

    def new_id(self) -> str:
        """Give a fresh UUID (version 7) as text."""
        ...


class StateSource(Protocol):
    """The reservation state as this process knows it; queries read it and never its writer."""

    @property
    def acknowledged(self) -> ReservationState:
        """Return the fold of every durable event that is known here."""
        ...


class ReleasingGangs(Protocol):
    """Gangs of which Bindings are being posted."""

    def started(self) -> frozenset[RootUid]:
        """Return the roots of which members are, or may be, bound: nothing of them is given back as a whole."""
        ...


START = Position(0)  # in front of the first event


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the log."""

    position: Position = Position(0)  # 0: the log is empty
    chain: bytes = bytes(32)  # hash of the last event; 32 zero bytes when empty
    at_us: int = 0


class LeaseGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The right to write, as the database gave it."""

    epoch: Epoch
    lease: str  # random UUID: an epoch alone can be handed out twice by a promoted lagging standby
    head: LogHead
    previous_holder: str = ""
    previous_epoch: Epoch = Epoch(
        0
    )  # as it stood in the lease row; lower than one we held: another row
    timeline: str = ""  # of the database; a promoted standby begins another


class LogMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place that is known to have been in the log, by its hash or by the fact that stands there."""

    position: Position
    epoch: Epoch  # of the leader that knew it
    chain: bytes = b""  # hash of the event at `position`; empty when not known
    event_id: str = ""  # id of that event; empty when not known
    timeline: str = ""


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The lease row as a follower reads it."""

    epoch: Epoch
    holder: str
    address: str  # where the holder answers HTTP
    renewed_us: int  # database time
    ttl_ms: int
    expired: bool  # judged by the clock of the database, the only one that all parties share


class EventLog(Protocol):
    """The append-only log and the lease that guards it. One writer; gap-free positions from 1."""

    async def take(self, *, holder: str, address: str, ttl_ms: int, above: int = 0) -> LeaseGrant:
        """Take the lease: when it is free, expired, or already held by the same `holder`.

        The epoch is higher than the one before, and than `above`: the highest that is known from
        anywhere, because a restored copy of the log would hand old numbers out again.

        Raises:
            LeaseHeld: Another holder's lease has not expired.
            StoreUnavailable: No answer; try again.
        """
        ...

    async def renew(self, grant: LeaseGrant) -> None:
        """Prolong the lease.

        Raises:
            Fenced: Somebody took over; stop leading.
            StoreUnavailable: Unknown outcome; the lease runs out locally unless a later call succeeds.
        """
        ...

    async def release(self, grant: LeaseGrant) -> None:
        """Give the lease back at a clean stop, so that the next holder need not wait. Never raises Fenced."""
        ...

    async def lease(self) -> LeaseRecord | None:
        """Read the lease row; None when nobody ever held it."""
        ...

    async def append(self, grant: LeaseGrant, events: Sequence[RecordedEvent]) -> None:
        """Write facts at the end of the log, all or none, durable on return.

        `events` continue the log without a gap and carry `grant.epoch`; concurrent calls are batched
        in call order. After an unknown outcome the events are looked up by id under a fresh grant
        by the caller (see `find`).

        Raises:
            Fenced: Another epoch or lease owns the log. Nothing was written; stop leading.
            HeadMoved: The log does not end where these events begin. Nothing was written.
            DuplicateEvent: An event id is in the log already. Nothing was written.
            InvariantBroken: Events that no log may hold (gap inside the call, falling time). Nothing was written.
            StoreUnavailable: Unknown outcome for all events of the call.
        """
        ...

    async def find(self, event_ids: Sequence[str]) -> Mapping[str, Position]:
        """Look events up by id; those that are not in the log are absent from the answer."""
        ...

    async def head(self) -> LogHead:
        """Read the end of the log."""
        ...

    async def at(self, position: Position) -> LogHead | None:
        """Give the end of the log as it was when it ended at a position; None when it does not reach that far."""
        ...

    async def holds(self, mark: LogMark) -> bool:
        """Say whether the log has, at the position of a mark, what the mark knows of it."""
        ...

    def read(
        self, *, after: Position = START, until: Position | None = None
    ) -> AsyncIterator[Sequence[RecordedEvent]]:
        """Read pages of events in order, verifying the hash chain on the way.

        Raises:
            CorruptLog: A gap, a broken chain, or a fact this version does not know.
        """
        ...

    def follow(self, *, after: Position) -> AsyncIterator[Sequence[RecordedEvent]]:
        """Read pages of events for ever: what is there, then what comes (notification plus polling)."""
        ...


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A saved fold of the log up to a position."""

    position: Position
    chain: bytes  # hash of the event at `position`: a checkpoint of another history is not used
    codec: str
    body: bytes


class Snapshots(Protocol):
    """Saved folds: the newest few to start from, and older ones at even distances to look back from."""

    async def save(self, checkpoint: Snapshot, *others: Snapshot) -> None:
        """Store a checkpoint, and others of the same position; drop all but the newest three of each codec.

        Of the codec of the first one for each stretch of the log stays, too. Stretches are as long as it takes for
        the whole log to have no more than a fixed number of them.
        """
        ...

    async def newest(self, *, codec: str, until: Position | None = None) -> Snapshot | None:
        """Give the newest checkpoint of this codec whose chain hash is the log's at its position and whose bytes are whole.

        Args:
            codec: What can be decoded.
            until: None that is newer than this position.
        """
        ...


class DecisionInput(msgspec.Struct, frozen=True, kw_only=True):
    """The canonical input of one decision, cut so that equal node rows are stored once.

    The digest is defined in `core.planner.codec.request_codec`; parts are in a fixed order.
    """

    digest: str  # hex SHA-256 over head and parts
    head: bytes
    parts: tuple[bytes, ...]
    hashes: tuple[bytes, ...] = ()  # SHA-256 of head and parts, where they are known already


class DecisionInputs(Protocol):
    """Inputs of decisions, stored beside the log, by content."""

    async def save(self, decision: DecisionInput) -> None:
        """Store an input; storing the same one again changes nothing."""
        ...

    async def load(self, digest: str) -> DecisionInput | None:
        """Give an input back, byte for byte."""
        ...


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which facts an audit question wants; empty fields do not restrict."""

    root: str = ""  # namespace/name
    root_uid: RootUid | None = None
    namespace: str = ""
    types: tuple[str, ...] = ()
    since_us: int | None = None
    until_us: int | None = None
    node: str = ""  # facts that name this node, wherever it stands in them
    victims: frozenset[str] | None = None  # facts by which one of these UIDs has to go
    plan: str = ""  # id of a plan: the fact that decided it
    after: Position = Position(0)
    limit: int = 1000
    newest_first: bool = False


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Part of an answer about the log."""

    events: tuple[RecordedEvent, ...]
    head: Position  # end of the log that the answer knows: everything up to here was looked at, or `more`
    more: bool  # it was cut off; ask again behind its last event


class GangIncarnation(msgspec.Struct, frozen=True, kw_only=True):
    """One root group that had a name."""

    uid: RootUid
    root: str  # namespace/name
    first_position: Position
    last_position: Position
    first_us: int
    last_us: int
    facts: int


class ReferenceIndex(Protocol):
    """The index of what facts name, kept behind the appends; answers are right without it, only slower."""

    async def note(self, most: int) -> int:
        """Write down what the next facts name, `most` facts at most; gives how many were looked at.

        Raises:
            StoreUnavailable: Try again.
        """
        ...


class EventQueries(Protocol):
    """Read-only questions over the log; never on the scheduling path's connection."""

    async def page(self, wanted: EventFilter) -> EventPage:
        """Give facts that match, in order of position (or newest first), and say as of which position.

        Cut off at `limit` and at a size in bytes, whichever comes first.
        """
        ...

    async def events(self, wanted: EventFilter) -> Sequence[RecordedEvent]:
        """Give the facts that match, in order of position (or newest first); at most `limit`."""
        ...

    async def lives(self, root: str, *, uid: RootUid | None = None) -> Sequence[GangIncarnation]:
        """Give the root groups that ever went by this `namespace/name`, oldest first; without a name, the one of this UID."""
        ...

    async def position_at(self, at_us: int) -> Position:
        """Give the position of the last fact that was recorded up to a time; 0 when there is none."""
        ...

    async def has_namespace(self, namespace: str) -> bool:
        """Say whether the log has a fact of any root in this namespace."""
        ...

    async def has_node(self, node: NodeName) -> bool:
        """Say whether any member ever held room or ran on this node, as far as that is projected."""
        ...


class IntervalProjection(Protocol):
    """Tables of intervals, made from the log: who held or had which node, and how roots stood."""

    async def project(self, upto: Position, *, max_events: int) -> Position:
        """Bring them forward, at most so many facts and never behind the end of the log; give how far they are.

        Raises:
            CorruptLog: A fact that the functions of the database do not know.
            StoreUnavailable: Not done, or not known to be; the next call will do.
        """
        ...

    async def projected(self) -> Position:
        """Say how far they are; 0 when they are empty."""
        ...

    async def forget(self) -> None:
        """Empty them, to make them anew from the beginning of the log."""
        ...


class PodRef(msgspec.Struct, frozen=True, kw_only=True):
    """A pod to act on; the UID is a precondition of everything done to it."""

    namespace: str
    name: str
    uid: PodUid


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One Binding to post."""

    pod: PodRef
    node: NodeName
    plan: PlanId | None = (
        None  # becomes the annotation gang-extender.dev/plan; None for pods outside groups
    )


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition to stand on a group; written only when it differs from what is stored."""

    type: str
    status: str  # True | False
    reason: str
    message: str


class K8sEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A Kubernetes Event about a pod or a group, for `kubectl describe`."""

    kind: str  # Pod | PodGroup | CompositePodGroup
    namespace: str
    name: str
    uid: str
    reason: str  # FailedScheduling, GangAdmitted, ...
    message: str
    warning: bool = False
    action: str = "Scheduling"
    related: tuple[str, str, str, str] | None = None  # kind, namespace, name, UID of who caused it


class PublishedLogHead(Protocol):
    """Where the end of the log is published, out of reach of whoever administers the database."""

    async def published(self) -> LogMark | None:
        """Read what was published last; None when nothing ever was.

        Raises:
            ClusterUnavailable: Try again; it is not known whether anything was published.
        """
        ...

    async def publish(self, mark: LogMark) -> None:
        """Replace what was published.

        Raises:
            ClusterUnavailable: Not done, or not known to be; the next one will do.
        """
        ...


class ControlPlane(Protocol):
    """What kube-apiserver and kube-scheduler say of themselves (DESIGN 9.9)."""

    discoveries: int  # changes whenever other kinds of groups are served than before

    async def trials(self) -> Sequence[DryRunResult]:
        """Create full objects on trial, and give what would have been stored; changes nothing.

        Raises:
            ClusterUnavailable: No answer; nothing is known.
        """
        ...

    async def scheduler_gates(self) -> SchedulerGates:
        """Read the feature gates of kube-scheduler; every trouble is an answer."""
        ...


class Cluster(PublishedLogHead, Protocol):
    """What the service sees of a cluster, and the few things it does to it."""

    def view(self) -> ClusterView:
        """Give the newest snapshot; cheap, never waits."""
        ...

    def doubt(self) -> str:
        """Say why `view` must not be decided from (not synced, stale), or the empty string."""
        ...

    async def changed(self, revision: int) -> int:
        """Wait until the view's revision differs from `revision`; give the new one."""
        ...

    async def nominate(self, pod: PodRef, node: NodeName | None) -> None:
        """Write `status.nominatedNodeName`; None clears it.

        Raises:
            BindRefused: The pod is gone, was recreated or is bound.
            ClusterUnavailable: Try again later.
        """
        ...

    async def lift_gate(self, pod: PodRef) -> None:
        """Remove our scheduling gate (others stay); nothing happens when it is not there.

        Raises: as `nominate`.
        """
        ...

    async def doom(self, pod: PodRef, message: str) -> None:
        """Write DisruptionTarget=True, reason PreemptionByScheduler, before a pod is deleted (SPEC E-12).

        Raises: as `nominate`.
        """
        ...

    async def evict(self, pod: PodRef, how: EvictionHow) -> None:
        """Ask for the end of a pod with its own grace period; it is gone when the view does not show it any more.

        Args:
            pod: Which one, by UID: one that was made again under the name is never touched.
            how: *deleted* as kube-scheduler does it, or *evicted* through the Eviction API, which keeps
                to PodDisruptionBudgets.

        Raises:
            BindRefused: It is gone, was made again, or somebody (an admission webhook) forbids it.
            ClusterUnavailable: Try again later, not before its `retry_after_s`: also a budget that is spent.
        """
        ...

    async def ending(self, pod: PodRef) -> PodEnd | None:
        """Ask what became of a pod that the view does not show any more; None: it lives.

        Raises:
            BindRefused, ClusterUnavailable: No answer, for good or for now.
        """
        ...

    async def bind(self, binding: Binding) -> None:
        """Post a Binding with the UID as precondition. A pod already bound to this very node is a success.

        Raises:
            BindRefused: For good: gone, recreated, gated, or bound elsewhere.
            ClusterUnavailable: 429, 5xx or no answer; the outcome may be unknown, the informer will tell.
        """
        ...

    async def set_conditions(
        self, group: GroupKey, uid: str, conditions: Sequence[Condition]
    ) -> None:
        """Merge conditions into the status of a group, touching only those types that differ.

        Raises: as `nominate`.
        """
        ...

    async def set_finalizers(self, wanted: FinalizerChange) -> None:
        """Write the finalizers of one of our groups as it is known: same UID, same version, or nothing.

        Raises: as `nominate`; a version that is not the newest is a ClusterUnavailable.
        """
        ...

    async def notice(self, notice: K8sEvent) -> None:
        """Record a Kubernetes Event. Best effort by nature: a failure is logged and counted, not raised."""
        ...
