"""Answer POST /v1/plan and POST /v1/moves: the questions of `gang-extender plan`, `make-room` and `drain` as one JSON body."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TypeVar, cast

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from extender.cluster.manifests.manifest_entries import FAULTS_MAX, AnyEntry, Role, entries_in
from extender.cluster.manifests.manifest_loader import Manifest, build, complete
from extender.cluster.manifests.node_group_file import node_groups
from extender.cluster.manifests.tree_copies import Taken, TreeCopies
from extender.cluster.manifests.workload_objects import LiveSources, PodLabels
from extender.cluster.manifests.yaml_reader import Document, Value, json_message, read_bytes
from extender.cluster.read.field_problems import field_problems
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import (
    ClusterView,
    with_blueprints,
    with_group,
    with_node,
    with_pdb,
    with_pod,
    without_pod,
)
from extender.core.model.errors import BadInput, several
from extender.core.model.ids import GroupKey, PodUid
from extender.core.model.pod_groups import Group, composite_key, leaf_key
from extender.core.model.pods import Pod
from extender.core.model.visibility import EVERYTHING, Visibility
from extender.core.planner.moves.move_types import MovesRequest
from extender.queries.plan.capacity_query import answer_capacity_query
from extender.queries.plan.moves_query import PlannedMoves, moves_input, planned_moves
from extender.queries.plan.plan_dto import (
    MovesAnswer,
    MovesQuestion,
    PlanObjects,
    PlanQuestion,
    PlanReply,
)
from extender.queries.plan.plan_query import PlanInput, plan_warnings
from extender.queries.plan.plan_service import NOW_BODY_MAX, LiveInput, LiveSnapshot, restored
from extender.runtime.system_clock import SystemClock

T = TypeVar("T", Group, Pod)
Q = TypeVar("Q", PlanQuestion, MovesQuestion)
# per question about the cluster of the service, where thousands may be pending; also the most copies
ROOTS_MAX = 200


def answer_plan_request(body: bytes, ours: LiveInput | None = None) -> bytes:
    """Return the answer to a question.

    Args:
        ours: The cluster of the service, for a question without one.

    Returns:
        JSON of a `PlanReply`.
    """
    parsed = _parsed(body, PlanQuestion)
    given = _read_objects(body, parsed, ours)
    view = given.view
    question = replace(
        given.question,
        all_pending=parsed.all_pending or not (parsed.workload or parsed.manifest or parsed.groups),
        budget=parsed.budget,
        preemption=parsed.preemption,
        node_groups=node_groups(parsed.node_groups, "body: node_groups"),
    )
    extra_warnings = plan_warnings(view, question, live=ours is not None)
    taken: set[Taken] = {(key.kind, key.namespace, key.name) for key in view.groups}
    taken |= {("Pod", pod.namespace, pod.name) for pod in view.pods.values()}
    copies = TreeCopies(given.entries, given.sources, taken)
    result = answer_capacity_query(view, question, parsed, copies.copy, most=ROOTS_MAX)
    reply = PlanReply(
        **msgspec.structs.asdict(result),
        warnings=tuple(dict.fromkeys((*given.warnings, *extra_warnings))),
        as_of=ours.as_of if ours is not None else "",
    )
    return msgspec.json.encode(reply)


def answer_moves_request(body: bytes, ours: LiveInput | None = None) -> bytes:
    """Return the answer to a question about moves.

    Args:
        body: JSON of a `MovesQuestion`.
        ours: The cluster of the service, for a question without one.

    Returns:
        JSON of a `MovesAnswer`.
    """
    return msgspec.json.encode(_planned_moves(body, ours, members_only=False)[0])


def answer_moves_to_apply(body: bytes, ours: LiveInput | None = None) -> bytes:
    """Return the answer to a question about moves that are to be made: of members of gangs that the service has placed.

    The arguments are those of `answer_moves_request`.

    Returns:
        JSON of `PlannedMoves`.

    Raises:
        BadInput: The body is invalid, or has a cluster.
    """
    if ours is None:
        raise BadInput("cluster: moves are made in the cluster of the service; leave it out")
    answer, request = _planned_moves(body, ours, members_only=True)
    encoded = msgspec.json.encode(request, order="deterministic")
    tree = str(request.tree.root.key) if request.tree is not None else ""
    return msgspec.json.encode(PlannedMoves(answer=answer, request=encoded, tree=tree))


def _planned_moves(
    body: bytes, ours: LiveInput | None, *, members_only: bool
) -> tuple[MovesAnswer, MovesRequest]:
    parsed = _parsed(body, MovesQuestion)
    given = _read_objects(body, parsed, ours)
    now_us = given.question.moment.now_us or SystemClock().now_us()
    moves = moves_input(parsed, given.question, now_us, members_only=members_only)
    answer, request = planned_moves(given.view, moves)
    answer = replace(
        answer,
        warnings=(*given.warnings, *answer.warnings),
        as_of=ours.as_of if ours is not None else "",
    )
    return answer, request


class _Given(msgspec.Struct, frozen=True, kw_only=True):
    view: ClusterView
    question: PlanInput
    warnings: tuple[str, ...]
    entries: tuple[AnyEntry, ...]
    sources: LiveSources


def _read_objects(body: bytes, parsed: PlanObjects, ours: LiveInput | None) -> _Given:
    cluster = () if parsed.cluster is UNSET else parsed.cluster
    if ours is None and parsed.cluster is UNSET:
        limit = f"{NOW_BODY_MAX} at most to plan on that of the service"
        raise BadInput(f"body: has {len(body)} bytes and no cluster; {limit}")
    entries = (
        *_read(cluster, "cluster", Role.CLUSTER),
        *_read(parsed.workload, "workload", Role.WANTED),
        *entries_in(read_bytes(parsed.manifest.encode(), "body: manifest"), Role.WANTED),
    )
    live: tuple[ClusterView, ReservationState] | None = None
    sources = LiveSources()
    if ours is not None:
        classes = tuple(msgspec.json.decode(encoded) for encoded in ours.priority_classes)
        entries = (*_read(classes, "priority classes of the cluster", Role.CLUSTER), *entries)
        live = restored(ours.snapshot)
        pods = tuple(_members(live[0]))
        sources = LiveSources(pods=pods, profiles=ours.profiles, claims=ours.claims)
    try:
        manifest = build(complete(entries, live=sources))
    except RecursionError as error:
        raise BadInput("body: nested too deep") from error
    question = PlanInput(
        groups=frozenset(manifest.groups),
        pods=frozenset(manifest.pods),
        order=manifest.order,
        origins=manifest.origins,
        refused=manifest.refused,
        readers=EVERYTHING if ours is None else ours.readers,
    )
    _check_namespaces(manifest, question.readers)
    view = manifest.world.view
    if ours is not None and live is not None:
        view, question = _added(manifest, question, ours.snapshot, *live)
    named = {_group_named(text, view, question.readers) for text in parsed.groups}
    return _Given(
        view=view,
        question=replace(question, groups=question.groups | named),
        warnings=manifest.warnings,
        entries=entries,
        sources=sources,
    )


def _parsed(body: bytes, kind: type[Q]) -> Q:
    try:
        plain = msgspec.json.decode(body)
    except msgspec.ValidationError as error:  # JSON, with a number that is too large for a double
        raise BadInput(f"body: {error}") from error
    except msgspec.DecodeError as error:
        raise BadInput(f"body: {json_message(body, error)}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"body: not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise BadInput("body: nested too deep") from error
    try:
        return msgspec.convert(_with_integers(plain), kind)
    except msgspec.ValidationError as error:
        field_faults = islice(field_problems(plain, kind, lambda _: frozenset()), FAULTS_MAX)
        problems = tuple(f"body: {problem}" for problem in field_faults)
        nothing = ("body: a field is null; leave it out",)
        raise several(problems or nothing, complete=len(problems) < FAULTS_MAX) from error


def _with_integers(plain: object) -> object:
    """Return a body with integers where they are written as 415.0, which is an integer for JSON Schema."""
    if not isinstance(plain, dict):
        return plain
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in plain.items()
    }


def _check_namespaces(manifest: Manifest, readers: Visibility) -> None:
    """Raise BadInput for objects to plan in a namespace that the caller does not see: they could replace objects there."""
    view = manifest.world.view
    objects = (*view.groups, *view.pods.values(), *view.budgets.values())
    namespaces = {obj.namespace for obj in objects} | {space for space, _ in view.blueprints}
    for namespace in sorted(namespaces):
        if not readers.sees(namespace):
            text = "you have no right to read groups there; plan in a namespace of yours"
            raise BadInput(f"body: namespace {namespace!r}: {text}")


def _group_named(text: str, view: ClusterView, readers: Visibility) -> GroupKey:
    """Return the key of a group of the cluster, by Kind/namespace/name."""
    kind, _, path = text.partition("/")
    namespace, _, name = path.partition("/")
    for key in (composite_key(namespace, name), leaf_key(namespace, name)):
        if key.kind == kind and key in view.groups and readers.sees(namespace):
            return key
    raise BadInput(f"body: groups: the cluster has no group {text!r}; write Kind/namespace/name")


def _members(view: ClusterView) -> Iterator[PodLabels]:
    """Return namespace and labels of the pods that name a leaf and do not terminate."""
    pods = chain.from_iterable(pods.values() for pods in view.members.values())
    return ((pod.namespace, pod.labels) for pod in pods if not pod.deleting)


def _added(
    manifest: Manifest,
    question: PlanInput,
    saved: LiveSnapshot,
    view: ClusterView,
    state: ReservationState,
) -> tuple[ClusterView, PlanInput]:
    """Return our cluster with the wanted objects; an existing object of the same name is replaced and keeps its UID."""
    added = manifest.world.view
    for node in added.nodes.values():
        view = with_node(view, node)
    for workload, templates in added.blueprints.items():
        view = with_blueprints(view, workload, templates)
    for budget in added.budgets.values():
        view = with_pdb(view, budget)
    for key, group in added.groups.items():
        same = view.groups.get(key)
        view = with_group(view, group if same is None else _as_known(group, same))
    existing = {pod.path: pod for pod in view.pods.values()} if added.pods else {}
    uids: dict[PodUid, PodUid] = {}
    for pod in added.pods.values():
        old = existing.get(pod.path)
        if old is None:
            view = with_pod(view, pod)
        else:
            uids[pod.uid] = old.uid
            view = with_pod(without_pod(view, old.uid), _as_known(pod, old))
    return view, replace(
        question,
        pods=frozenset(uids.get(uid, uid) for uid in question.pods),
        state=state,
        topology_keys=saved.topology_keys,
        moment=saved.moment,
        roots_max=ROOTS_MAX,
    )


def _as_known(obj: T, existing: T) -> T:
    return replace(obj, uid=existing.uid, created_us=existing.created_us)


def _read(objects: Sequence[object], field: str, role: Role) -> tuple[AnyEntry, ...]:
    documents = (
        Document(where=f"body: {field}[{number}]", value=cast("Value", value))
        for number, value in enumerate(objects)
    )
    return entries_in(documents, role)
