"""The facts of the log: past tense, immutable, a closed list (DESIGN 3).

A fact says enough to answer an auditor without the cluster. Its tag (class name) and version are
stored beside its bytes, so classes may move between modules; a changed shape is a new version with
an upcaster in `store/log/upcasters.py`. A new fact is added to DESIGN section 3 first.
`gc=False`: values cannot form cycles, and looking for some among a million events took a third of a replay.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

from extender.core.model.ids import Epoch, NodeName, PlanId, PodUid, Position, RootUid
from extender.core.model.pods import EndCause

ReleaseReason = Literal[
    "bound", "deleted", "expired", "node-lost", "superseded", "vetoed", "invalid"
]
# "gone": nobody could tell: the API server did not answer in time, or the pod lives and is not where the log has it
LossCause = Literal[EndCause, "gone"]

# How a victim went. deleted, evicted: by us (DELETE, or the Eviction API); ended: by itself, or somebody else deleted it;
# gone-before: it was gone before its deletion was its turn; unseen: while no leader looked, perhaps by our own deletion
EvictionHow = Literal["deleted", "evicted", "ended", "gone-before", "unseen"]
AbandonReason = Literal[
    "preemptor-deleted",  # nobody wants the room any more
    "victims-refuse",  # the API server lets none of those that are left be deleted
    "better-offer",  # the tree fits without the evictions that had not begun
    "invalid",  # the tree breaks a rule, or is not complete any more
    "vetoed",  # kube-scheduler refuses the nodes that were cleared
    "room-lost",  # the victims are gone, and it does not fit all the same
    "outranked",  # somebody of higher priority takes over the room that was made, or evicts the preemptor
]

# How a pod came into reserved room. pinned: it may run on that node only (DaemonSets); higher-priority: than what
# was reserved there; unaware: neither, so whoever placed it did not see the reservation
TakenHow = Literal["pinned", "higher-priority", "unaware"]

# memory: what the writing process had seen acknowledged; published: the end of the log as it was written
# outside of the database; epoch: the lease row was older than a lease that somebody held
TruncationEvidence = Literal["memory", "published", "epoch"]

Known = Literal["on", "off", "unknown"]


class EventData(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """Base of all facts. `VERSION` is the version of the shape, stored beside the tag."""

    VERSION: ClassVar[int] = 1


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One group of an admitted tree, as the admission saw it."""

    kind: str
    name: str
    parent: str = ""  # name of the parent composite, empty at the root
    basic: bool = False
    minimum: int = 1  # minCount of a leaf, minGroupCount of a composite, 1 when basic
    domain: dict[str, str] = {}  # topology key -> value it was placed in
    members: int = 0  # members seen (leaf) at the admission
    mode: str = "single"  # disruption mode: single or all
    uid: str = ""  # of the group object: a recreated group of the same name restarts the tree (B5)


class AssignmentRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One pod and the node its room was reserved on."""

    pod: str  # namespace/name
    uid: PodUid
    group: str  # name of the leaf, in the namespace of the root
    node: NodeName
    shape: int = 0  # index into `shapes` of the same fact
    extra: bool = False  # beyond the minimum


class RootObserved(EventData, frozen=True, kw_only=True):
    """A root group was seen for the first time."""

    kind: str
    priority: int = 0
    groups: int = 1
    members: int = 0


class GangAdmitted(EventData, frozen=True, kw_only=True):
    """The minimum of a tree (and what extras fitted) got its room, all at once."""

    plan: PlanId
    kind: str
    priority: int
    groups: tuple[GroupRecord, ...]
    shapes: tuple[
        dict[str, int], ...
    ]  # requests: CPU in millicores, memory in bytes, the rest in units
    assignments: tuple[AssignmentRecord, ...]
    unplaced: tuple[str, ...] = ()  # members that found no room, namespace/name
    topology: dict[str, dict[str, str]] = {}  # node -> topology key -> value at the time
    planner: str = ""  # version of the planner
    input_digest: str = ""  # SHA-256 of the canonical input, hex
    search_nodes: int = 0
    exhausted: bool = False  # no plan with more pods exists


class GangExtended(EventData, frozen=True, kw_only=True):
    """Members beyond those admitted so far got room (extras, late arrivals, replacements)."""

    plan: PlanId
    priority: int
    groups: tuple[GroupRecord, ...]
    shapes: tuple[dict[str, int], ...]
    assignments: tuple[AssignmentRecord, ...]
    unplaced: tuple[str, ...] = ()
    topology: dict[str, dict[str, str]] = {}
    planner: str = ""
    input_digest: str = ""
    search_nodes: int = 0
    exhausted: bool = False


class ConflictRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One requirement of a set that cannot hold together."""

    kind: str  # minCount | minGroupCount | topology | selector | taint | resources | reservation
    object: str
    text: str


class GangRefused(EventData, frozen=True, kw_only=True):
    """A tree found no place; recorded when the answer changes, not on every try."""

    outcome: str  # impossible | unknown | waiting
    reasons: tuple[str, ...]
    conflict: tuple[ConflictRecord, ...] = ()
    planner: str = ""
    input_digest: str = ""
    search_nodes: int = 0
    exhausted: bool = False
    considered: tuple[str, ...] = ()  # why preemption does not help, where it was looked at


class RootInvalid(EventData, frozen=True, kw_only=True):
    """A tree breaks the rules of SPEC B and is not scheduled."""

    problems: tuple[str, ...]


class PodBound(EventData, frozen=True, kw_only=True):
    """The API server holds a Binding of this member to this node."""

    plan: PlanId
    pod: str
    uid: PodUid
    node: NodeName
    group: str = ""


class BindFailed(EventData, frozen=True, kw_only=True):
    """The API server refused a Binding."""

    plan: PlanId
    pod: str
    uid: PodUid
    node: NodeName
    error: str


class BarrierExpired(EventData, frozen=True, kw_only=True):
    """Not all of the minimum reached bind in time; nobody who waited was bound."""

    plan: PlanId
    waited_ms: int
    arrived: tuple[str, ...]
    missing: tuple[str, ...]


class NodeVetoed(EventData, frozen=True, kw_only=True):
    """kube-scheduler refused a node although the member fits there by our model."""

    pod: str
    uid: PodUid
    node: NodeName
    by_shape: bool  # the veto holds for equal pods too
    until_ms: int


class ReleasedPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A reservation that was given back."""

    pod: str
    uid: PodUid
    node: NodeName


class RoomTaker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that runs in room which was reserved for somebody else."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    scheduler: str  # its spec.schedulerName; whoever names the node itself keeps the default
    priority: int
    how: TakenHow


class ReservationReleased(EventData, frozen=True, kw_only=True):
    """Room that was held is free again (or is now counted as a running pod: `bound`)."""

    plan: PlanId
    why: ReleaseReason
    pods: tuple[ReleasedPod, ...]
    text: str = ""
    taken_by: tuple[RoomTaker, ...] = ()  # who took it, where running pods did (`superseded`)


class GangSatisfied(EventData, frozen=True, kw_only=True):
    """The bound members meet the minimum of the whole tree."""

    plan: PlanId
    bound: int


class MemberLost(EventData, frozen=True, kw_only=True, omit_defaults=True):
    """A bound member went away."""

    pod: str
    uid: PodUid
    node: NodeName
    cause: LossCause
    # What the status of the pod said: a reason, perhaps a message; not written where nothing was said
    text: str = ""
    room_until_us: int = 0  # its room is held for its replacement so long; 0: it is not


class NodeTopologyChanged(EventData, frozen=True, kw_only=True):
    """A node that holds reservations or bound members changed its topology labels."""

    node: NodeName
    before: dict[str, str]
    after: dict[str, str]


class VictimPod(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One pod of a disruption unit that has to go."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    group: str = ""  # name of its leaf, in its namespace


class VictimUnit(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A disruption unit that has to go, whole (SPEC E-4)."""

    kind: str  # CompositePodGroup | PodGroup | Pod
    path: str  # namespace/name
    uid: str  # of the group or the pod
    priority: int
    pods: tuple[VictimPod, ...]
    cost: dict[str, int] = {}  # what it adds to the cost, by name (SPEC E-9)
    doubt: str = (
        ""  # why it was not put back, although the room that is counted would allow it (SPEC L34)
    )

    @property
    def name(self) -> str:
        """Give `Kind/namespace/name`, by which facts and people name a unit."""
        return f"{self.kind}/{self.path}"


class AlternativeRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A set of victims that was looked at and not taken."""

    units: tuple[str, ...]  # Kind/namespace/name
    cost: dict[str, int]
    why: str  # not this one


class SupersededRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Unbound reservations of a tree of lower priority that gave way (DESIGN 9.8)."""

    gang: str  # namespace/name of its root
    gang_uid: RootUid
    plan: PlanId
    priority: int
    pods: tuple[ReleasedPod, ...]


class PreemptionPlanned(EventData, frozen=True, kw_only=True):
    """Which units go for whom, and where the preemptor is to run then; durable before the first deletion."""

    preemption: PlanId
    kind: str  # of the preemptor: CompositePodGroup | PodGroup | Pod
    priority: int
    victims: tuple[VictimUnit, ...]
    cost: dict[str, int]  # of the whole set, by name (`planner/disruption` has their order)
    alternatives: tuple[AlternativeRecord, ...]
    shapes: tuple[dict[str, int], ...]  # as in `GangAdmitted`
    assignments: tuple[AssignmentRecord, ...]
    superseded: tuple[SupersededRecord, ...] = ()
    awaits: tuple[VictimPod, ...] = ()  # terminate already on nodes of the assignments: waited for
    planner: str = ""
    input_digest: str = ""
    search_nodes: int = 0
    exhausted: bool = False  # no cheaper set of victims exists


class VictimEvicted(EventData, frozen=True, kw_only=True):
    """A victim is gone from its node, so that its room is free."""

    preemption: PlanId
    unit: str  # Kind/namespace/name
    pod: str
    uid: PodUid
    node: NodeName
    how: EvictionHow
    asked_us: (
        int  # when the API server took its deletion; 0 where it was not asked, or nobody knows
    )
    gone_us: int  # when we saw that it is gone


class PreemptionCompleted(EventData, frozen=True, kw_only=True):
    """The preemptor runs: what it asked for is bound."""

    preemption: PlanId
    bound: int  # members
    evicted: int  # victims that are gone
    took_ms: int  # since it was planned


class PreemptionAbandoned(EventData, frozen=True, kw_only=True):
    """No unit is begun any more, and the room is held for nobody; a unit that was begun goes whole.

    `by`, `by_uid` and `lost` are of one that is *outranked*: what it evicted was for `by` from then on, and what is not
    lost stays held for a tree until the victims that were begun are gone.
    """

    preemption: PlanId
    why: AbandonReason
    spared: tuple[str, ...]  # units none of whose pods was asked to go
    finishing: tuple[str, ...]  # units that were begun, and are not all gone yet
    evicted: int  # victims that are gone
    text: str = ""
    by: str = ""  # Kind/namespace/name of who takes the room over
    by_uid: str = ""
    lost: tuple[NodeName, ...] = ()  # nodes on which it does


class RootCompleted(EventData, frozen=True, kw_only=True):
    """The root group is gone, or all its members ended."""

    why: str


class RoomRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The largest free room of one resource within one domain of one level."""

    resource: str
    key: str  # topology key; empty: one node
    domain: str  # value of the key, or name of the node; empty when nothing is free
    free: int  # there; CPU in millicores, the rest in units
    nodes: int  # of that domain, on which some of it is
    total: int  # free in the whole cluster


class RoomMeasured(EventData, frozen=True, kw_only=True):
    """How much room there was in one place; recorded once a minute, when it is not what was recorded last.

    Free is what running pods (of everybody), reservations and claims of preemptions leave on nodes that take pods.
    """

    known: Position  # the last fact that is counted in it
    rooms: tuple[RoomRecord, ...]


class LostField(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A field that the API server does not keep when an object is created."""

    object: str  # version and kind, such as "scheduling.k8s.io/v1alpha3 PodGroup"
    field: str  # its path, such as "spec.schedulingConstraints"
    gate: str = ""  # feature gate of kube-apiserver that keeps it, where we know it


class FeaturesFound(EventData, frozen=True, kw_only=True):
    """What kube-apiserver and kube-scheduler were found to do; recorded when it is not what was recorded last.

    A server-side dry run of full objects tells of the first, a metric of the second (DESIGN 9.9).
    """

    served: tuple[str, ...]  # built-in kinds of groups, as in `LostField.object`
    lost: tuple[LostField, ...]
    untested: tuple[str, ...]  # what a dry run did not tell, and why
    policy: Known  # whether a pod that names a group gets our gate at its creation
    native: Known  # whether kube-scheduler schedules groups of pods by itself
    text: str = ""  # how that is known, or why it is not


class DriftFound(EventData, frozen=True, kw_only=True):
    """The fold of the log and the cluster disagree."""

    kind: str
    object: str
    text: str


class LeaseTaken(EventData, frozen=True, kw_only=True):
    """The first fact of its epoch: who writes from here on."""

    holder: str
    address: str
    previous: str = ""


class HistoryTruncated(EventData, frozen=True, kw_only=True):
    """Part of the log that was durable is not in it any more: an older copy, or a lagging standby."""

    evidence: TruncationEvidence
    known_position: (
        Position  # the last that is known to have been in the log; 0 when only an epoch is
    )
    known_epoch: Epoch  # under which that was known; every epoch since is higher
    known_hash: str = ""  # of that position, hex, where it is known
    known_event: str = ""  # id of the fact at that position, where it is known
    found_position: Position  # where the log ended when this was noticed
    found_epoch: Epoch  # of the lease row as it was found
    found_hash: str = ""  # of the found position, hex
    timeline: str = ""  # of the database that was found; a promoted standby begins another
    text: str = ""


AnyEventData: TypeAlias = (
    RootObserved
    | GangAdmitted
    | GangExtended
    | GangRefused
    | RootInvalid
    | PodBound
    | BindFailed
    | BarrierExpired
    | NodeVetoed
    | ReservationReleased
    | GangSatisfied
    | MemberLost
    | PreemptionPlanned
    | VictimEvicted
    | PreemptionCompleted
    | PreemptionAbandoned
    | NodeTopologyChanged
    | RootCompleted
    | RoomMeasured
    | FeaturesFound
    | DriftFound
    | HistoryTruncated
    | LeaseTaken
)


class NewEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that has been decided but has no place in the log yet."""

    root_uid: RootUid
    root: str  # namespace/name, for people; empty for the nil stream
    fact: AnyEventData
    actor: str  # who: extender identity or a component of it
    cause: str = ""  # the kube-scheduler call or cluster change that led to it
    cause_position: Position | None = None


class RecordedEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fact with its place: what the log stores and the state is folded from."""

    position: Position
    event_id: str  # UUID; the key by which an unknown outcome is resolved
    epoch: Epoch
    at_us: int  # microseconds since the epoch, never before the event in front of it
    root_uid: RootUid
    version: int  # place in the stream of this root, contiguous from 1
    root: str
    actor: str
    cause: str
    fact: AnyEventData
    cause_position: Position | None = None
