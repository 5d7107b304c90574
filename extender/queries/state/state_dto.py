"""The form of states in `GET /v1/state`, `GET /v1/gangs` and `gang-extender state -o json`.

Fields may be added; none is removed or changes its meaning. `queries/state/state_report` fills them.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from extender.core.admit.gang_sentences import WishLine
from extender.core.model.errors import BadInput
from extender.core.model.ids import NodeName


class Scope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The requested part of a state; empty fields do not restrict it."""

    node: NodeName = NodeName("")
    domain: dict[str, str] = {}  # one topology key and its value
    namespace: str = ""  # of the root groups
    states: tuple[str, ...] = ()  # of the gangs


class MemberAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member with a reservation, or bound."""

    pod: str  # namespace/name
    uid: str
    group: str  # name of its PodGroup
    node: str
    state: str  # reserved | bound
    extra: bool  # beyond the minimum; known for reservations only
    # CPU in millicores, memory in bytes, the rest in units; empty: not known
    requests: dict[str, int]


class GroupAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group of an admitted tree, as recorded by the newest admission or extension."""

    name: str
    kind: str
    parent: str  # empty at the root
    basic: bool
    minimum: int
    members: int  # at the admission; PodGroups only
    domain: dict[str, str]
    reserved: int  # members of this group and of all below it
    bound: int
    wishes: tuple[WishLine, ...] = ()  # what they reached, one line for each key of a wish


class MemberLossAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of a bound member that did not succeed."""

    pod: str  # namespace/name
    uid: str
    node: str
    cause: str  # preempted | evicted | node-lost | rejected-by-kubelet | ended | deleted | unknown
    message: str  # of the status of the pod; may be empty
    preemptor: str  # Kind/namespace/name, if it was a victim of a recorded preemption; else empty
    position: int  # of its event
    time: str  # RFC 3339


class GangAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A gang at a point in time."""

    gang: str  # namespace/name
    uid: str  # empty: its workload is suspended, and it has had no pod yet; only lists have it
    kind: str
    priority: int
    # One of observed, waiting, unschedulable, preempting, invalid, admitted, scheduled; after its minimum was bound
    # also one of degraded, preempted, suspended, completed.
    state: str
    reserved: int
    bound: int
    outcome: str  # of the current refusal; empty: there is none
    # of the current refusal; of a degraded, preempted or suspended gang, first what happened to it
    reasons: tuple[str, ...]
    last_decision_time: str  # RFC 3339, time of the refusal; empty: there is none
    last_decision_position: int  # position of the refusal; 0: there is none
    observed: str  # RFC 3339
    admitted: str  # RFC 3339; empty: not yet
    plan: str  # of the newest admission or extension; empty: none
    groups: list[GroupAt]
    members: list[MemberAt]
    # Kind/namespace/name of the workload that the service made the root group for; empty: none
    workload: str = ""
    minimum_present: int = 0  # pods of the minimum that are bound, or ended with success
    minimum_needed: int = 0  # pods of the minimum; 0 before the first admission
    last_loss: MemberLossAt | None = None
    # RFC 3339, since when its minimum is not bound: observed, or its last loss; empty: it is bound or need not be
    waiting_since: str = ""
    help: tuple[str, ...] = ()  # of the current refusal: what would help, the cheapest first
    # of the current refusal: fits | never | unknown, whether it would fit if no other pod ran; empty: not examined
    when_empty: str = ""


class PodAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member on a node."""

    pod: str
    uid: str
    gang: str
    group: str
    # reserved | bound | claimed: by a preemptor | replacement: held for that of a lost member | held: for a gang that waits | moving: held for that of a member that is moved here
    state: str
    requests: dict[str, int]


class OthersAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Members of one priority on a node whose names the caller does not see."""

    state: str  # as of `PodAt`
    priority: int
    pods: int
    requests: dict[str, int]  # of all of them together


class NodeAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Reservations, bound members, claims and holds of a node."""

    node: str
    topology: dict[str, str]  # labels that admissions recorded
    reserved: dict[str, int]  # sums of requests
    bound: dict[str, int]
    preemption_claims: dict[str, int]  # claimed by preemptors until their victims are gone
    pods: list[PodAt]
    replacement_holds: dict[str, int] = {}  # held for the replacements of lost members
    capacity_holds: dict[str, int] = {}  # held, as it frees, for gangs that wait
    move_claims: dict[str, int] = {}  # held for members that are moved here
    # of namespaces that the caller does not see, by state and priority; the sums above include them
    others: tuple[OthersAt, ...] = ()


class VictimAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A victim that is not gone yet."""

    pod: str
    uid: str
    unit: str  # Kind/namespace/name
    node: str


class PreemptionAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pending preemption."""

    preemption: str
    position: int  # of its plan
    planned: str  # RFC 3339
    preemptor: str  # namespace/name
    preemptor_uid: str
    kind: str  # CompositePodGroup | PodGroup | Pod
    priority: int
    ended: bool  # the preemption ended; units whose eviction has begun are still evicted
    evicted: int  # victims that are gone
    victims: list[VictimAt]
    claims: list[MemberAt]  # claimed places of the preemptor; state is "claimed"


class CapacityHoldAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Capacity that is held, as it frees, for a gang that waits."""

    hold: str
    position: int  # of its event
    held: str  # RFC 3339
    until: str  # RFC 3339, its latest end
    waiting_since: str  # RFC 3339, since when the gang is complete and has no place
    gang: str  # namespace/name
    gang_uid: str
    kind: str
    priority: int
    places: list[MemberAt]  # of its pods; state is "held"


class Totals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Totals of the requested part."""

    gangs: int
    # gangs that are observed, waiting, unschedulable, preempting, invalid or preempted
    pending: int
    reserved: int  # members
    bound: int  # members
    nodes: int


class ControlPlaneAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Features of kube-apiserver and kube-scheduler, as the service found them."""

    served: list[str]  # built-in kinds of groups, with their versions
    # fields that kube-apiserver drops, with their kinds and the feature gate that is off
    dropped_fields: list[str]
    untested: list[str]
    # on | off | unknown: whether the admission policy adds our scheduling gate to members
    admission_policy: str
    native_group_scheduling: str  # on | off | unknown: kube-scheduler's own group scheduling
    message: str  # the evidence, or why there is none


class StateReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a state."""

    totals: Totals
    gangs: list[GangAt]  # by name
    nodes: list[NodeAt]  # by name; nodes with something of a gang
    preemptions: list[PreemptionAt]  # by position
    control_plane: ControlPlaneAt | None  # None: not found until then
    limitations: list[str]  # sentences: what the log does not contain
    capacity_holds: list[CapacityHoldAt] = []  # by position


class GangBrief(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of a gang in short."""

    state: str
    priority: int
    reserved: int
    bound: int
    outcome: str
    reasons: tuple[str, ...]


class GangChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A gang that differs at the second point in time."""

    gang: str
    uid: str
    change: str  # new | gone | changed
    before: GangBrief | None
    after: GangBrief | None


class MemberPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The place of a member."""

    state: str  # reserved | bound
    node: str


class MemberChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member whose node or state differs at the second point in time."""

    pod: str
    uid: str
    gang: str
    before: MemberPlacement | None
    after: MemberPlacement | None


class StateDifference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The differences between two points in time."""

    gangs: list[GangChange]
    members: list[MemberChange]
    limitations: list[str]


def scope_of(
    node: str = "", domain: str = "", namespace: str = "", states: Collection[str] = ()
) -> Scope:
    """Return the requested part of a state.

    Args:
        domain: `key=value` of a topology label, or empty.

    Raises:
        BadInput: The domain is not KEY=VALUE, or node and domain are both given.
    """
    key, equals, value = domain.partition("=")
    if domain and not (key and equals and value):
        msg = f"domain: {domain!r} is not KEY=VALUE, for example topology.kubernetes.io/rack=r7"
        raise BadInput(msg)
    if node and domain:
        raise BadInput(f"node {node!r} and domain {domain!r}: give only one of them")
    return Scope(
        node=NodeName(node),
        domain={key: value} if domain else {},
        namespace=namespace,
        states=tuple(sorted(states)),
    )
