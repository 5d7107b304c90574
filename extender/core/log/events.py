"""The events of the log: past tense, immutable, a closed list (docs/reference/event-log.md).

An event holds everything that an audit needs, without the cluster. Its tag (class name) and version are
stored beside its bytes, so classes may move between modules; a changed shape is a new version:
`store/log/event_codec.py` has the steps. What else a new event needs is in extender/README.md.
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import msgspec

from extender.core.model.ids import NIL_GANG, Epoch, GangUid, NodeName, PlanId, PodUid, Position
from extender.core.model.pods import EndCause
from extender.core.model.visibility import is_hidden
from extender.core.workloads.native_groups import AdoptedGroup
from extender.core.workloads.tree_compiler import GroupSpec

ReleaseReason = Literal[
    "bound", "deleted", "expired", "node-lost", "superseded", "node-rejected", "invalid"
]
# unknown: the API server did not answer in time, or the pod runs, but not on the node that the log has
MemberTerminationCause = Literal[EndCause, "unknown"]

# How a victim terminated. deleted, evicted: by us (DELETE, or the Eviction API); ended: by itself, or another client deleted
# it; already-gone: before we deleted it; unobserved: while there was no leader, perhaps by our own deletion
GoneVia = Literal["deleted", "evicted", "ended", "already-gone", "unobserved"]
CancelReason = Literal[
    "preemptor-deleted",  # the preemptor does not exist any more
    "deletion-rejected",  # the API server rejects the deletion of all remaining victims
    "no-longer-needed",  # the tree fits without the evictions that had not begun
    "invalid",  # the tree breaks a rule, or is not complete any more
    "node-rejected",  # kube-scheduler rejects the nodes that were freed
    "capacity-lost",  # the victims are gone, but the preemptor still does not fit
    "taken-over",  # a preemptor of higher priority takes the freed capacity over, or evicts this preemptor
]

# Why a pod runs in reserved capacity. pinned: it may run on that node only (DaemonSets); higher-priority: than the
# reservations there; unaware: neither, so the scheduler that placed it did not see the reservation
CapacityUseReason = Literal["pinned", "higher-priority", "unaware"]

# memory: the writing process had seen a later commit; published: the log head in the ConfigMap is later than the log;
# epoch: the lease row is older than a lease that a process held
TruncationEvidence = Literal["memory", "published", "epoch"]
SteppedClock = Literal["service", "database"]

# deleted: the workload is gone; finished: all its work is done; opted-out: its label is gone or off;
# scheduled-by-other: another controller makes its groups
RetireReason = Literal["deleted", "finished", "opted-out", "scheduled-by-other"]

# admitted: the tree has reservations; deleted: its root group is gone; changed: other pods or minima than it is held for;
# expired: after the longest duration of a hold; node-lost: a node is gone, or does not suit the pods any more;
# superseded: a higher priority, or pods that stay, use the capacity; preempting: the tree evicts others instead;
# disabled: holds are switched off
HoldEndReason = Literal[
    "admitted", "deleted", "changed", "expired", "node-lost", "superseded", "preempting", "disabled"
]

# completed: all were made; stopped: by a user; refused: a pod could not leave within the longest time; not-replaced: no new
# pod got the node in that time; changed: a gang or a pod is not there any more
MovesEndReason = Literal[
    "completed", "stopped", "refused", "not-replaced", "changed", "no-longer-needed"
]

Known = Literal["on", "off", "unknown"]


# gc=False: values cannot form cycles, and garbage collection over a million events took a third of a replay
class EventData(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """Base of all events. `VERSION` is the version of the shape, stored beside the tag."""

    VERSION: ClassVar[int] = 1


class WishRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What a wish of a group reached by one topology key, and the best that is possible: proved where both are equal.

    Of `preferred` the number of domains with pods of the group; of `balanced` how many pods the smallest share is below an equal
    one; of `near` the pairs of pods in different domains; of `rank` the neighbours by rank in different domains.
    """

    kind: str  # preferred | balanced | near | rank
    key: str
    value: int
    best: int  # no placement of as many pods is below it
    pods: int = 0  # of the group, when it was planned; bound ones counted
    # how many of `pods` the best single domain of the narrowest key could hold; 0: one domain has them all
    largest: int = 0
    partner: str = ""  # of `near`: name of the other group


# Unknown fields of a group are left out by versions of the service that do not have them, those of an event are refused.
class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One group of an admitted tree, at the time of the admission."""

    kind: str
    name: str
    parent: str = ""  # name of the parent composite, empty at the root
    basic: bool = False
    minimum: int = 1  # minCount of a leaf, minGroupCount of a composite, 1 when basic
    required: tuple[str, ...] = ()  # of a composite: names of children that always count
    domain: dict[str, str] = {}  # topology key -> value of the domain it was placed in
    members: int = 0  # of a leaf: its members at the admission
    disruption_mode: str = "single"  # disruption mode: single or all
    uid: str = ""  # of the group object: a recreated group of the same name restarts the tree (B5)
    wishes: tuple[WishRecord, ...] = ()  # of the newest plan, one for each key of a wish


class AssignmentRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One pod and the node on which its capacity was reserved."""

    pod: str  # namespace/name
    uid: PodUid
    group: str  # name of the leaf, in the namespace of the root
    node: NodeName
    shape: int = 0  # index into `shapes` of the same event
    extra: bool = False  # beyond the minimum


class GangObserved(EventData, frozen=True, kw_only=True):
    """A root group was seen for the first time."""

    kind: str
    priority: int = 0
    groups: int = 1
    members: int = 0


class GangAdmitted(EventData, frozen=True, kw_only=True):
    """The minimum of a tree, and the extra members that fitted, got reservations in one step."""

    plan: PlanId
    kind: str
    priority: int
    groups: tuple[GroupRecord, ...]
    # requests: CPU in millicores, memory in bytes, the rest in units
    shapes: tuple[dict[str, int], ...]
    assignments: tuple[AssignmentRecord, ...]
    unplaced: tuple[str, ...] = ()  # members without a node, namespace/name
    topology: dict[str, dict[str, str]] = {}  # node -> topology key -> value at the time
    planner: str = ""  # version of the planner
    input_digest: str = ""  # SHA-256 of the canonical input, hex
    search_nodes: int = 0
    exhausted: bool = False  # no plan with more pods exists


class GangExtended(EventData, frozen=True, kw_only=True):
    """Further members got reservations after the admission (extra members, late members, replacements)."""

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
    message: str


class GangUnschedulable(EventData, frozen=True, kw_only=True):
    """The planner found no plan for a tree; recorded when the answer changes, not on every attempt."""

    outcome: str  # impossible | unknown | waiting
    reasons: tuple[str, ...]
    conflict: tuple[ConflictRecord, ...] = ()
    planner: str = ""
    input_digest: str = ""
    search_nodes: int = 0
    exhausted: bool = False
    # why capacity that others have or wait for is not for it: what is held, and why preemption does not help
    preemption_notes: tuple[str, ...] = ()
    # `preemption_notes` without names of other namespaces; empty: they have none
    preemption_notes_reduced: tuple[str, ...] = ()
    # What would help, each verified by planning, the cheapest first. Older events have it among the reasons.
    help: tuple[str, ...] = ()
    # fits | never | unknown: whether it would fit if no other pod ran; empty: not examined
    when_empty: str = ""
    reasons_when_empty: tuple[str, ...] = ()  # of *never*: what is missing then


class GangInvalid(EventData, frozen=True, kw_only=True):
    """A tree breaks a rule (B6 to B16, E16) and is not scheduled."""

    problems: tuple[str, ...]


class PodBound(EventData, frozen=True, kw_only=True):
    """The API server holds a Binding of this member to this node."""

    plan: PlanId
    pod: str
    uid: PodUid
    node: NodeName
    group: str = ""


class PodBindFailed(EventData, frozen=True, kw_only=True):
    """The API server rejected a Binding."""

    plan: PlanId
    pod: str
    uid: PodUid
    node: NodeName
    error: str


class BindBarrierTimedOut(EventData, frozen=True, kw_only=True):
    """Not all members of the minimum arrived at the bind barrier in time; none of the waiting members was bound."""

    plan: PlanId
    waited_ms: int
    arrived: tuple[str, ...]
    missing: tuple[str, ...]
    still_arriving: bool = False  # the time that kube-scheduler gives a call was over first


class NodeRejected(EventData, frozen=True, kw_only=True):
    """kube-scheduler rejected a node on which the member fits by our model."""

    pod: str
    uid: PodUid
    node: NodeName
    by_shape: bool  # the rejection also holds for pods of the same shape
    until_ms: int


class ReleasedPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A reservation that was released."""

    pod: str
    uid: PodUid
    node: NodeName


class ReservedCapacityUser(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that runs in capacity which was reserved for another pod."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    scheduler: str  # its spec.schedulerName; the default value if its creator set spec.nodeName
    priority: int
    via: CapacityUseReason


class ReservationReleased(EventData, frozen=True, kw_only=True):
    """Reserved capacity is free again, or is counted as a running pod (`bound`)."""

    plan: PlanId
    reason: ReleaseReason
    pods: tuple[ReleasedPod, ...]
    message: str = ""
    message_reduced: str = ""  # without names of other namespaces; empty: as `message`
    # the running pods that use it, if there are any (`superseded`)
    taken_by: tuple[ReservedCapacityUser, ...] = ()


class GangScheduled(EventData, frozen=True, kw_only=True):
    """The bound members meet the minimum of the whole tree."""

    plan: PlanId
    bound: int


class GangGroupsChanged(EventData, frozen=True, kw_only=True):
    """The groups of a scheduled gang have other minima than recorded, or were not recorded: it ran before the log had it."""

    groups: tuple[GroupRecord, ...]  # root first; those of a recorded tree with their domains


class MemberTerminated(EventData, frozen=True, kw_only=True, omit_defaults=True):
    """A bound member was deleted, or its node was lost."""

    pod: str
    uid: PodUid
    node: NodeName
    cause: MemberTerminationCause
    # reason of the status of the pod, perhaps with its message; left out where it has none
    message: str = ""
    held_until_us: int = 0  # end of the replacement hold; 0: there is none


class NodeTopologyChanged(EventData, frozen=True, kw_only=True):
    """A node that holds reservations or bound members changed its topology labels."""

    node: NodeName
    before: dict[str, str]
    after: dict[str, str]


class VictimPod(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One pod of a disruption unit that is to be evicted."""

    pod: str  # namespace/name
    uid: PodUid
    node: NodeName
    group: str = ""  # name of its leaf, in its namespace


class VictimUnit(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A disruption unit that is to be evicted as a whole (E-4)."""

    kind: str  # CompositePodGroup | PodGroup | Pod
    path: str  # namespace/name
    uid: str  # of the group or the pod
    priority: int
    pods: tuple[VictimPod, ...]
    cost: dict[str, int] = {}  # its part of the cost, by name (E-9)
    # why it was not reprieved, although the counted capacity would allow it (L34)
    not_reprieved_reason: str = ""

    @property
    def name(self) -> str:
        """Return `Kind/namespace/name`, or what stands for it where the name is hidden."""
        return self.path if is_hidden(self.path) else f"{self.kind}/{self.path}"


class AlternativeRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A set of victims that was considered and not chosen."""

    units: tuple[str, ...]  # Kind/namespace/name
    cost: dict[str, int]
    reason: str  # why it was not chosen


class SupersededRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Unbound reservations of a tree of lower priority that are released for the preemptor (E-10)."""

    gang: str  # namespace/name of its root
    gang_uid: GangUid
    plan: PlanId
    priority: int
    pods: tuple[ReleasedPod, ...]


class PreemptionPlanned(EventData, frozen=True, kw_only=True):
    """The units that are evicted for a preemptor, and the nodes planned for it; durable before the first deletion.

    The claims of pending preemptions are superseded in the same way as reservations. Units that are evicted for another
    preemption as well are among the victims; pods of them may terminate, or be gone, already.

    Without assignments a running gang evicts itself, to be placed anew: its lost members have no node in their domain (D26).
    """

    preemption: PlanId
    kind: str  # of the preemptor: CompositePodGroup | PodGroup | Pod
    priority: int
    victims: tuple[VictimUnit, ...]
    # of the whole set, by name (`planner/preempt/post_eviction_view` has their order)
    cost: dict[str, int]
    alternatives: tuple[AlternativeRecord, ...]
    shapes: tuple[dict[str, int], ...]  # as in `GangAdmitted`
    assignments: tuple[AssignmentRecord, ...]
    superseded: tuple[SupersededRecord, ...] = ()
    # pods that already terminate on nodes of the assignments; the preemptor waits for them
    already_terminating: tuple[VictimPod, ...] = ()
    planner: str = ""
    input_digest: str = ""
    search_nodes: int = 0
    exhausted: bool = False  # no cheaper set of victims exists


class VictimGone(EventData, frozen=True, kw_only=True):
    """A victim is gone from its node, so that its capacity is free."""

    preemption: PlanId
    unit: str  # Kind/namespace/name
    pod: str
    uid: PodUid
    node: NodeName
    via: GoneVia
    requested_us: int  # when the API server accepted its deletion; 0 if there was no request, or if it is unknown
    gone_us: int  # when the informers reported that it is gone


class PreemptionCompleted(EventData, frozen=True, kw_only=True):
    """The preemptor is bound."""

    preemption: PlanId
    bound: int  # members
    evicted: int  # victims that are gone
    duration_ms: int  # since it was planned


class PreemptionCancelled(EventData, frozen=True, kw_only=True):
    """The preemption ended: no further unit is evicted and the claims end; a unit of which a pod was evicted is evicted whole.

    `taken_over_by`, `taken_over_by_uid` and `taken_over_nodes` are for the reason *taken-over*: from then on the freed
    capacity is for `taken_over_by`. The claims of a tree on other nodes stay until the victims of the units that were
    begun are gone.
    """

    preemption: PlanId
    reason: CancelReason
    units_spared: tuple[str, ...]  # units without a pod that was evicted
    units_in_progress: tuple[str, ...]  # units that were begun and still have pods
    evicted: int  # victims that are gone
    message: str = ""
    message_reduced: str = ""  # without names of other namespaces; empty: as `message`
    taken_over_by: str = ""  # Kind/namespace/name of the preemptor that takes the capacity over
    taken_over_by_uid: str = ""
    taken_over_nodes: tuple[NodeName, ...] = ()  # nodes on which it takes the capacity over


class GangRemoved(EventData, frozen=True, kw_only=True):
    """The root group was deleted, or all its members ended."""

    reason: str


class CapacityHeld(EventData, frozen=True, kw_only=True):
    """Capacity is held, as it frees, for the minimum of a tree that waits for it for long; gangs of its priority and below leave it free.

    The assignments are a plan of the planner for these nodes without the pods that run there and may leave.
    """

    hold: PlanId
    kind: str  # of the root group
    priority: int
    waiting_since_us: int  # since when the tree is complete and refused
    reason: str = ""  # of its last refusal, without names of other namespaces
    until_us: int  # the longest duration of the hold
    groups: tuple[GroupRecord, ...]
    shapes: tuple[dict[str, int], ...]  # as in `GangAdmitted`
    assignments: tuple[AssignmentRecord, ...]
    fitting: int  # of the assignments, how many would fit when the hold began
    planner: str = ""
    input_digest: str = ""
    search_nodes: int = 0


class CapacityHoldReleased(EventData, frozen=True, kw_only=True):
    """The capacity that was held for a tree is not held any more."""

    hold: PlanId
    reason: HoldEndReason
    message: str = ""  # without names of other namespaces


class MoveRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A move: a member is evicted from a node, and its replacement gets the other, which is held for it."""

    pod: str  # namespace/name
    uid: PodUid
    group: str  # name of the leaf, in the namespace of the pod
    gang: str  # namespace/name of the root
    gang_uid: GangUid
    source: NodeName = msgspec.field(name="from")
    target: NodeName = msgspec.field(name="to")
    requests: dict[str, int]  # in the units of `GangAdmitted.shapes`
    priority: int  # of the gang
    lost_min: int = 0  # GPU-minutes of work that the eviction loses, when it was planned


class MovesPlanned(EventData, frozen=True, kw_only=True):
    """Moves of running members are to be made, one after the other; durable before the first eviction."""

    plan: PlanId
    question: str  # what they make room for
    by: str  # the user who asked for them, or the policy; empty: the service authenticates no callers
    moves: tuple[MoveRecord, ...]
    planner: str = ""
    input_digest: str = ""
    exhausted: bool = False  # no fewer moves lead there
    # namespace/name and UID of the gang that waited, for which they make room; empty: of nodes, or of a gang that is not in the log
    for_gang: str = ""
    for_uid: GangUid = NIL_GANG


class MoveCompleted(EventData, frozen=True, kw_only=True):
    """The replacement of a member that was evicted for a move is bound to its new node."""

    plan: PlanId
    number: int  # of the moves of the plan, from 1
    pod: str
    uid: PodUid
    source: NodeName = msgspec.field(name="from")
    target: NodeName = msgspec.field(name="to")
    replacement: str  # namespace/name of the new pod
    replacement_uid: PodUid
    duration_ms: int  # since the member was lost


class MovesPaused(EventData, frozen=True, kw_only=True):
    """A user paused or resumed moves: meanwhile no further pod is evicted."""

    plan: PlanId
    paused: bool
    by: str


class MovesEnded(EventData, frozen=True, kw_only=True):
    """Moves are over: what was held for those that were not made is free."""

    plan: PlanId
    reason: MovesEndReason
    made: int  # moves
    left: int  # moves
    message: str = ""
    by: str = ""  # of *stopped*: the user


class FreeDomainRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The largest free domain of one resource on one topology level."""

    resource: str
    key: str  # topology key; empty: one node
    domain: str  # value of the key, or name of the node; empty when nothing is free
    free: int  # there; CPU in millicores, the rest in units
    nodes: int  # nodes of that domain with some of it free
    total: int  # free in the whole cluster


class CapacityMeasured(EventData, frozen=True, kw_only=True):
    """The largest free domains; recorded at most once a minute, and only when they differ from the last record.

    Free is what all running pods, reservations and capacity claims leave on schedulable nodes.
    """

    as_of: Position  # the last event that is counted in it
    largest_free: tuple[FreeDomainRecord, ...]


class DroppedField(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A field that the API server does not keep when an object is created."""

    object: str  # version and kind, such as "scheduling.k8s.io/v1alpha3 PodGroup"
    field: str  # its path, such as "spec.schedulingConstraints"
    gate: str = ""  # feature gate of kube-apiserver that keeps it, where we know it


class ControlPlaneFeaturesDetected(EventData, frozen=True, kw_only=True):
    """Features of kube-apiserver and kube-scheduler; recorded when they differ from the last record.

    A server-side dry run of full objects shows the former, a metric the latter (K60).
    """

    served: tuple[str, ...]  # built-in kinds of groups, as in `DroppedField.object`
    dropped_fields: tuple[DroppedField, ...]
    untested: tuple[str, ...]  # what the dry run did not show, and why
    admission_policy: Known  # whether a pod that names a group gets our gate at its creation
    native_group_scheduling: Known  # whether native gang scheduling of kube-scheduler is on
    message: str = ""  # evidence for `native`, or why it is unknown


class NoticeRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a user should know about the tree of a workload."""

    reason: str  # CamelCase
    message: str


class TreeCompiled(EventData, frozen=True, kw_only=True, omit_defaults=True):
    """The groups of a workload (Job, JobSet, ...) were determined; they are created after this event."""

    kind: str
    workload: str  # namespace/name
    uid: str
    generation: int
    table_version: int  # of the table of workload kinds
    profile: str
    # owner of the groups where it is not the workload itself: Kind/namespace/name
    owner: str = ""
    owner_uid: str = ""
    groups: tuple[GroupSpec, ...] = ()  # parents first
    # made by the workload's own controller; annotated after this event
    adopted: tuple[AdoptedGroup, ...] = ()
    basic: bool = False  # no gang could be made, for the reason in `reason` and `message`: its pods are placed one by one
    # its controller keeps its pods away, so no capacity is held for lost members
    suspended: bool = False
    reason: str = ""
    message: str = ""
    notices: tuple[NoticeRecord, ...] = ()
    input_digest: str = ""  # SHA-256 of the canonical input, hex


class TreeRefused(EventData, frozen=True, kw_only=True, omit_defaults=True):
    """No tree can be made from a workload that asked for one: its pods wait, its groups stay as they are."""

    kind: str
    workload: str
    uid: str
    generation: int
    table_version: int
    profile: str
    reason: str  # CamelCase, as in the Kubernetes Event
    field: str
    message: str
    input_digest: str = ""


class TreeRetired(EventData, frozen=True, kw_only=True):
    """A workload needs no groups any more; those that still exist are deleted after this event."""

    kind: str
    workload: str
    uid: str
    reason: RetireReason


class DriftDetected(EventData, frozen=True, kw_only=True):
    """The fold of the log and the cluster disagree."""

    kind: str
    object: str
    message: str


class ClockStepped(EventData, frozen=True, kw_only=True):
    """A clock stepped against the monotonic clock of the leader, by more than 2 s.

    Recorded times follow the clock of the database and never decrease; see `runtime.database_clock`.
    """

    clock: SteppedClock
    step_ms: int  # positive: ahead
    message: str = ""


class LeaseAcquired(EventData, frozen=True, kw_only=True):
    """The first event of its epoch: which process writes from here on."""

    holder: str
    address: str
    previous_holder: str = ""


class HistoryTruncated(EventData, frozen=True, kw_only=True):
    """Events that were durable are missing: the database is an older copy, or was a lagging standby."""

    evidence: TruncationEvidence
    known_position: Position  # the last position that is known to have been in the log; 0 if only an epoch is known
    known_epoch: Epoch  # epoch of that knowledge; every later epoch is higher
    known_hash: str = ""  # hash at that position, hex, if it is known
    known_event: str = ""  # id of the event at that position, if it is known
    found_position: Position  # where the log ended when this was noticed
    found_epoch: Epoch  # of the lease row as it was found
    found_hash: str = ""  # hash at the found position, hex
    timeline: str = ""  # timeline of the database; a promoted standby starts a new one
    message: str = ""


AnyEventData: TypeAlias = (
    GangObserved
    | GangAdmitted
    | GangExtended
    | GangUnschedulable
    | GangInvalid
    | PodBound
    | PodBindFailed
    | BindBarrierTimedOut
    | NodeRejected
    | ReservationReleased
    | GangScheduled
    | GangGroupsChanged
    | MemberTerminated
    | PreemptionPlanned
    | VictimGone
    | PreemptionCompleted
    | PreemptionCancelled
    | NodeTopologyChanged
    | GangRemoved
    | CapacityHeld
    | CapacityHoldReleased
    | MovesPlanned
    | MoveCompleted
    | MovesPaused
    | MovesEnded
    | CapacityMeasured
    | ControlPlaneFeaturesDetected
    | TreeCompiled
    | TreeRefused
    | TreeRetired
    | DriftDetected
    | ClockStepped
    | HistoryTruncated
    | LeaseAcquired
)


class NewEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that has no position in the log yet."""

    gang_uid: GangUid
    gang: str  # namespace/name, for display; empty for the nil stream
    data: AnyEventData
    actor: str  # identity of the extender, or a component of it
    cause: str = ""  # the kube-scheduler call or cluster change that led to it
    cause_position: Position | None = None


class EventSource(msgspec.Struct, frozen=True, kw_only=True):
    """Who decides, and what led to it, as events have it."""

    actor: str
    cause: str

    def draft(self, gang_uid: GangUid, gang: str, data: AnyEventData) -> NewEvent:
        """Return an event for the stream of a root (namespace/name)."""
        return NewEvent(gang_uid=gang_uid, gang=gang, data=data, actor=self.actor, cause=self.cause)


class RecordedEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event with its position, as the log stores it and as it is folded into the state."""

    position: Position
    event_id: str  # UUID; after an append with unknown outcome it is looked up
    epoch: Epoch
    at_us: int  # microseconds since the epoch, never before the event in front of it
    gang_uid: GangUid
    stream_version: int  # place in the stream of this root, contiguous from 1
    gang: str
    actor: str
    cause: str
    data: AnyEventData
    cause_position: Position | None = None
