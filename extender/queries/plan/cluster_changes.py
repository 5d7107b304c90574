"""What a plan query changes about the cluster before it plans: nodes that are away, and further empty nodes.

A node that is away takes its pods with it: those of the planned trees are planned again, because their controllers
would make them again; all others are left out. Reservations, claims and replacement holds on it are left out too.

A further node has the labels, the taints and the capacity of its model and no pods, so it is in the same topology
domains. The name of the model, wherever a label or the hostname has it as its value, becomes the name of the new node.
What describes the state of the model (cordoned, deleting, taints `node.kubernetes.io/...`) is left out.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from extender.core.log.reservation_state import GangState, ReservationState
from extender.core.model.cluster_view import ClusterView, with_pod, without_node, without_pod
from extender.core.model.errors import BadInput
from extender.core.model.ids import NodeName, PodUid
from extender.core.model.message_formatting import counted, did_you_mean, join_names
from extender.core.model.nodes import Node
from extender.core.model.pods import Pod

HOSTNAME: Final = "kubernetes.io/hostname"
STATE_TAINTS: Final = "node.kubernetes.io/"  # set by controllers: not ready, under pressure
NODES_ADDED_MAX: Final = 10_000
SHOWN_MAX: Final = 8  # names or values in one message
_COPIES: Final = re.compile(r"(?P<count>[0-9]{1,99})x(?P<node>.+)")


class ChangedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster and the state to plan on."""

    view: ClusterView
    state: ReservationState
    given: tuple[str, ...]  # what was changed, one sentence each


def without_nodes(
    view: ClusterView,
    state: ReservationState,
    texts: Sequence[str],
    *,
    planned: Callable[[Pod], bool],
) -> ChangedCluster:
    """Return the cluster without some nodes.

    Args:
        texts: Names of nodes, or `key=value` of a label.
        planned: Whether a pod belongs to a tree that is planned.
    """
    given: list[str] = []
    away: dict[NodeName, None] = {}
    for text in texts:
        named = named_nodes(view, text, "without")
        away |= dict.fromkeys(named)
        pods = sum(len(view.on_node.get(name, ())) for name in named)
        nodes = text if named == [text] else f"{text} ({counted(len(named), 'node')})"
        given.append(
            f"without {nodes}" + (f" and the {counted(pods, 'pod')} there" if pods else "")
        )
    for name in away:
        pods_there = tuple(view.on_node.get(name, {}).values())
        view = without_node(view, name)
        for pod in pods_there:
            view = without_pod(view, pod.uid)
            if planned(pod) and not pod.deleting:
                view = with_pod(view, replace(pod, node=None, nominated=None))
    return ChangedCluster(view=view, state=_state_without(state, away), given=tuple(given))


def named_nodes(view: ClusterView, text: str, option: str) -> list[NodeName]:
    """Return the nodes of a name or of a label, sorted.

    Args:
        text: A name, or `key=value` of a label.

    Raises:
        BadInput: There is none; the message has what is similar.
    """
    key, equals, value = text.partition("=")
    if not equals:
        if text in view.nodes:
            return [NodeName(text)]
        hint = did_you_mean(text, view.nodes, most=3) or _some_nodes(view)
        raise BadInput(f'{option} "{text}": the cluster has no node of this name{hint}')
    values = {node.labels[key] for node in view.nodes.values() if key in node.labels}
    if not values:
        labels = {label for node in view.nodes.values() for label in node.labels}
        hint = did_you_mean(key, labels) or f"; nodes have {_some(labels) or 'no labels'}"
        label = key or '""'
        raise BadInput(f'{option} "{text}": no node has the label {label}{hint}')
    if value not in values:
        hint = did_you_mean(value, values) or f"; its values are {_some(values)}"
        raise BadInput(f'{option} "{text}": no node has this value of {key}{hint}')
    return sorted(name for name, node in view.nodes.items() if node.labels.get(key) == value)


def _some(names: Iterable[str]) -> str:
    return join_names(sorted(names), SHOWN_MAX)


def _some_nodes(view: ClusterView) -> str:
    return f"; it has {_some(view.nodes)}" if view.nodes else "; it has no nodes"


def _state_without(state: ReservationState, away: Iterable[NodeName]) -> ReservationState:
    """Return the state without what is held on nodes."""
    lost_nodes = frozenset(away)
    lost: set[PodUid] = set()
    gangs = state.gangs
    for uid, gang in state.gangs.items():
        changed = _gang_without(gang, lost_nodes)
        if changed is not gang:
            lost |= {member for member in gang.reservations if member not in changed.reservations}
            gangs = gangs.set(uid, changed)
    claims_on = state.claims_on
    for name in lost_nodes:
        claims_on = claims_on.delete(name) if name in claims_on else claims_on
    gang_of = state.gang_of
    for pod in lost:
        gang_of = gang_of.delete(pod) if pod in gang_of else gang_of
    return replace(state, gangs=gangs, gang_of=gang_of, claims_on=claims_on)


def _gang_without(gang: GangState, lost_nodes: frozenset[NodeName]) -> GangState:
    held = {u: r for u, r in gang.reservations.items() if r.node not in lost_nodes}
    holds = {u: h for u, h in gang.replacement_holds.items() if h.node not in lost_nodes}
    if len(held) == len(gang.reservations) and len(holds) == len(gang.replacement_holds):
        return gang
    return replace(gang, reservations=held, replacement_holds=holds)


def further_nodes(
    view: ClusterView, texts: Sequence[str]
) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Return further empty nodes, and a sentence for each of `texts`.

    Args:
        view: The cluster, also with nodes that `without_nodes` takes away: a model may be one of them.
        texts: `NxNODE`, or `NODE` for one.
    """
    given = []
    added: dict[NodeName, Node] = {}
    for text in texts:
        count, model = _copies_of(view, text)
        if len(added) + count > NODES_ADDED_MAX:
            raise BadInput(
                f'with "{text}": adds more than {NODES_ADDED_MAX} nodes, the most of one question'
            )
        numbered = (NodeName(f"{model.name}-new-{n}") for n in itertools.count(1))
        free = (name for name in numbered if name not in view.nodes and name not in added)
        names = [*itertools.islice(free, count)]
        added |= {name: _like(model, name) for name in names}
        shown = names[0] if count == 1 else f"{names[0]} to {names[-1]}"
        given.append(f"with {counted(count, 'more empty node')} like {model.name}: {shown}")
    return tuple(added.values()), tuple(given)


def _copies_of(view: ClusterView, text: str) -> tuple[int, Node]:
    """Return how many nodes like which one are wanted; a node may itself have a name such as `4xa`."""
    if (node := view.nodes.get(NodeName(text))) is not None:
        return 1, node
    match = _COPIES.fullmatch(text)
    name = match["node"] if match is not None else text
    node = view.nodes.get(NodeName(name))
    if node is None:
        form = "" if match is not None else ", and it is not of the form 4xNODE"
        hint = did_you_mean(name, view.nodes, most=3) or _some_nodes(view)
        raise BadInput(f'with "{text}": the cluster has no node "{name}"{form}{hint}')
    count = int(match["count"]) if match is not None else 1
    if count == 0:
        raise BadInput(f'with "{text}": 0 nodes change nothing; write how many, such as 4x{name}')
    return count, node


def _like(model: Node, name: NodeName) -> Node:
    """Return an empty node like another one, of another name."""
    own = {str(model.name), model.labels.get(HOSTNAME, str(model.name))}
    return replace(
        model,
        name=name,
        uid="",
        labels={key: name if value in own else value for key, value in model.labels.items()},
        taints=tuple(taint for taint in model.taints if not taint.key.startswith(STATE_TAINTS)),
        unschedulable=False,
        deleting=False,
    )
