"""Shapes of a state in outside form, and of the difference between two of them.

They are those of `GET /v1/state`, `GET /v1/gangs` and `gang-extender state -o json`, and stay as they are; fields may
be added.
`picturing` fills them.
"""

from __future__ import annotations

import msgspec

from extender.core.model.errors import BadInput
from extender.core.model.ids import NodeName


class Scope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which part of a state is asked for; empty fields do not restrict."""

    node: NodeName = NodeName("")
    domain: dict[str, str] = {}  # one topology key and its value
    namespace: str = ""  # of the roots


class MemberAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member that held room or ran."""

    pod: str  # namespace/name
    uid: str
    group: str  # name of its leaf
    node: str
    state: str  # reserved | bound
    extra: bool  # beyond the minimum; known of reservations only
    requests: dict[
        str, int
    ]  # CPU in millicores, memory in bytes, the rest in units; empty: not known


class GroupAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A group of an admitted tree, as its newest admission or extension saw it."""

    name: str
    kind: str
    parent: str  # empty at the root
    basic: bool
    minimum: int
    members: int  # seen at the admission; leaves only
    domain: dict[str, str]
    reserved: int  # members of this group and of all below it
    bound: int


class GangAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A root as it stood."""

    gang: str  # namespace/name
    uid: str
    kind: str
    priority: int
    state: str  # observed | waiting | refused | preempting | invalid | admitted | satisfied
    reserved: int
    bound: int
    outcome: str  # of the answer that stood; empty: none did
    reasons: tuple[str, ...]
    answered: str  # RFC 3339; empty: no answer stood
    answer_position: int  # 0: no answer stood
    observed: str  # RFC 3339
    admitted: str  # RFC 3339; empty: not yet
    plan: str  # of the newest admission or extension; empty: none
    groups: list[GroupAt]
    members: list[MemberAt]


class PodAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member on a node."""

    pod: str
    uid: str
    gang: str
    group: str
    state: str  # reserved | bound | promised: its room is being made | kept: it was lost
    requests: dict[str, int]


class NodeAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What gangs had of a node."""

    node: str
    topology: dict[str, str]  # labels as far as admissions recorded them
    reserved: dict[str, int]  # sums of requests
    bound: dict[str, int]
    promised: dict[str, int]  # to preemptors, while their victims go
    pods: list[PodAt]
    kept: dict[str, int] = {}  # of lost members, for their replacements


class VictimAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod that had to go and was not known to be gone."""

    pod: str
    uid: str
    unit: str  # Kind/namespace/name
    node: str


class PreemptionAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A preemption under way."""

    preemption: str
    position: int  # of its plan
    planned: str  # RFC 3339
    preemptor: str  # namespace/name
    preemptor_uid: str
    kind: str  # CompositePodGroup | PodGroup | Pod
    priority: int
    ended: bool  # only units that were begun go on going
    evicted: int  # victims that were gone
    victims: list[VictimAt]
    promised: list[MemberAt]  # where the preemptor is to run; state is "promised"


class Totals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How much there was in the part that was asked for."""

    gangs: int
    pending: int  # gangs that held no room and did not run: observed, waiting, refused, preempting, invalid
    reserved: int  # members
    bound: int  # members
    nodes: int


class ControlPlaneAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What kube-apiserver and kube-scheduler were found to do by themselves."""

    served: list[str]  # built-in kinds of groups, with their versions
    dropped: list[
        str
    ]  # fields that kube-apiserver does not keep, of which kinds, and the gate that is off
    untested: list[str]
    policy: (
        str  # on | off | unknown: whether a pod that names a group gets our gate at its creation
    )
    native: str  # on | off | unknown: group scheduling of kube-scheduler itself
    text: str  # how that is known, or why it is not


class StateReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a state."""

    totals: Totals
    gangs: list[GangAt]  # by name
    nodes: list[NodeAt]  # by name; those on which a gang had something
    preemptions: list[PreemptionAt]  # by position
    control_plane: ControlPlaneAt | None  # None: not found out until then
    not_known: list[str]  # sentences: what the log cannot tell


class GangBrief(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a gang stood, in short."""

    state: str
    priority: int
    reserved: int
    bound: int
    outcome: str
    reasons: tuple[str, ...]


class GangChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A gang that stood otherwise at the second moment."""

    gang: str
    uid: str
    change: str  # new | gone | changed
    before: GangBrief | None
    after: GangBrief | None


class MemberPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a member was."""

    state: str  # reserved | bound
    node: str


class MemberChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member that was elsewhere, or in another state, at the second moment."""

    pod: str
    uid: str
    gang: str
    before: MemberPlacement | None
    after: MemberPlacement | None


class StateDifference(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was otherwise at the second of two moments."""

    gangs: list[GangChange]
    members: list[MemberChange]
    not_known: list[str]


def scope_of(node: str, domain: str, namespace: str) -> Scope:
    """Read the part that is asked for.

    Args:
        node: Name of a node, or empty.
        domain: `key=value` of a topology label, or empty.
        namespace: Of roots, or empty.

    Raises:
        BadInput: A domain that is none, or node and domain at once.
    """
    key, equals, value = domain.partition("=")
    if domain and not (key and equals and value):
        msg = f"domain: {domain!r} is not KEY=VALUE, for example topology.kubernetes.io/rack=r7"
        raise BadInput(msg)
    if node and domain:
        msg = f"node {node!r} and domain {domain!r}: ask for one of them; a node is in one domain anyway"
        raise BadInput(msg)
    return Scope(node=NodeName(node), domain={key: value} if domain else {}, namespace=namespace)
