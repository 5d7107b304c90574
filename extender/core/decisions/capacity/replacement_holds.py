"""Room of lost bound members, held for their replacements for a bounded time (SPEC C.6, V26).

Held against everybody of equal or lower priority that is planned by us or passes filter; who has a higher
priority does not see it and may take it, which is recorded (`superseded`). A member has a replacement only
where its gang runs on: of one that is gone, or ends, as a whole nothing is held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from immutables import Map

from extender.core.decisions.capacity.oversubscription import squeezed_out
from extender.core.log.events import LossCause, MemberLost, ReleaseReason
from extender.core.log.reservation_state import (
    BoundMember,
    GangState,
    ReplacementHold,
    ReservationState,
)
from extender.core.model.cluster_view import NOTHING, ClusterView
from extender.core.model.ids import GroupKey, NodeName, PodUid, RootUid
from extender.core.model.pod_groups import Tree
from extender.core.model.pods import SUCCEEDED

NO_VACANCIES: Map[PodUid, ReplacementHold] = Map()
_NOT_HELD: tuple[LossCause, ...] = ("preempted", "node-lost")  # others have it, or nobody can


def vacancies_against(
    view: ClusterView,
    state: ReservationState,
    node: NodeName,
    *,
    priority: int,
    root_uid: RootUid | str,
) -> Iterator[ReplacementHold]:
    """Give the vacancies on a node whose room somebody must leave free, beside what assigned pods take.

    Args:
        view: The cluster; a lost member that still terminates takes its room itself.
        state: What is held.
        node: Where.
        priority: Of who asks; who has a higher one is not kept out.
        root_uid: Of who asks; a tree is not kept out of its own room.
    """
    for vacancy in _against(state, node, priority=priority, root_uid=root_uid):
        if not _occupied(view, vacancy):
            yield vacancy


def kept_from(
    view: ClusterView,
    state: ReservationState,
    node: NodeName,
    *,
    priority: int,
    root_uid: RootUid | str,
) -> Iterator[Mapping[str, int]]:
    """Give what vacancies take from a pod that kube-scheduler offers a node, one mapping for each.

    One whose lost member is still there takes nothing beside it; but it counts, so that the pod is judged by
    what we see: kube-scheduler may have heard of the end before us.

    Args: as `vacancies_against`.
    """
    for vacancy in _against(state, node, priority=priority, root_uid=root_uid):
        yield {} if _occupied(view, vacancy) else vacancy.requests


def _against(
    state: ReservationState, node: NodeName, *, priority: int, root_uid: RootUid | str
) -> Iterator[ReplacementHold]:
    for vacancy in state.vacant_on.get(node, NO_VACANCIES).values():
        if vacancy.root_uid != root_uid and vacancy.priority >= priority:
            yield vacancy


def _occupied(view: ClusterView, vacancy: ReplacementHold) -> bool:
    pod = view.pods.get(vacancy.uid)
    return pod is not None and pod.node == vacancy.node


def leaves_room_to(
    state: ReservationState, node: NodeName, uid: PodUid, *, priority: int, root_uid: RootUid
) -> bool:
    """Say whether the room of a pod that terminates may be waited for: nobody's replacement has it.

    Args:
        state: What is held.
        node: Where the pod terminates.
        uid: The pod.
        priority: Of who would wait.
        root_uid: Of who would wait.
    """
    vacancy = state.vacant_on.get(node, NO_VACANCIES).get(uid)
    return vacancy is None or vacancy.root_uid == root_uid or vacancy.priority < priority


def taken_vacancies(view: ClusterView, state: ReservationState) -> frozenset[PodUid]:
    """Find vacancies whose room is gone: assigned pods and reservations leave no place for them.

    The lowest priorities give way first, then the youngest, until the rest fits.
    """
    taken: set[PodUid] = set()
    for name, vacant in state.vacant_on.items():
        node = view.nodes.get(name)
        if node is None:
            continue
        waiting = [
            r.requests
            for uid, r in state.held_on.get(name, Map()).items()
            if (pod := view.pods.get(uid)) is None or pod.node is None
        ]
        standing = (view.usage.get(name, NOTHING).requests, *waiting)
        taken.update(
            squeezed_out(node, standing, (v for v in vacant.values() if not _occupied(view, v)))
        )
    return frozenset(taken)


def time_over(state: ReservationState, now_us: int) -> frozenset[PodUid]:
    """Find the vacancies that have been held long enough."""
    return frozenset(
        uid
        for vacant in state.vacant_on.values()
        for uid, vacancy in vacant.items()
        if vacancy.until_us <= now_us
    )


def seats_of(root: GangState) -> Mapping[str, list[NodeName]]:
    """Give by leaf the nodes where its lost members were, the oldest loss first."""
    seats: dict[str, list[NodeName]] = {}
    for vacancy in sorted(root.vacant.values(), key=lambda v: (v.at_us, v.pod, v.uid)):
        seats.setdefault(vacancy.group, []).append(vacancy.node)
    return seats


def held_until(
    view: ClusterView,
    tree: Tree | None,
    member: BoundMember,
    lost: MemberLost,
    victims: Collection[PodUid],
    *,
    now_us: int,
    held_us: int,
) -> int:
    """Say until when the room of a lost member is held; 0 where it is not.

    The time runs from the end of its grace period: until then it sits in the room itself.

    Args:
        view: The cluster.
        tree: Its tree, where there is one.
        member: Who was lost, while others of its gang run on.
        lost: Why.
        victims: Members that go for somebody else: their room is his.
        now_us: Now.
        held_us: How long room is held, 0 for not at all.
    """
    node = view.nodes.get(member.node)
    if not held_us or not member.requests or lost.cause in _NOT_HELD or member.uid in victims:
        return 0
    if node is None or node.unschedulable or node.deleting:
        return 0
    done = (lost.cause, lost.text) == ("ended", SUCCEEDED)
    if done or not _is_replaced(tree, member.group):
        return 0
    pod = view.pods.get(member.uid)
    return max(now_us, pod.deletes_us if pod is not None else 0) + held_us


def _is_replaced(tree: Tree | None, leaf: str) -> bool:
    """Say whether a leaf still takes members."""
    if tree is None or tree.root.deleting:
        return False
    key = GroupKey(tree.root.key.namespace, leaf, "PodGroup")
    return any(group.key == key and not group.deleting for group in tree.groups)


def given_up(
    view: ClusterView,
    root: GangState,
    tree: Tree | None,
    taken: Collection[PodUid],
    over: Collection[PodUid],
    *,
    runs: bool,
) -> Mapping[ReleaseReason, tuple[str, list[ReplacementHold]]]:
    """Find the vacancies of a root that are held no longer, by reason, with the reason in words.

    Args:
        view: The cluster.
        root: Whose.
        tree: As it is now.
        taken: What `taken_vacancies` gave.
        over: Those whose time is over.
        runs: Whether any member of it runs.
    """
    found: dict[ReleaseReason, tuple[str, list[ReplacementHold]]] = {}
    for vacancy in _in_order(root.vacant.values()):
        why = _why_given_up(view, root, vacancy, tree, taken, over, runs=runs)
        if why is not None:
            found.setdefault(why[0], (why[1], []))[1].append(vacancy)
    return found


def _replaced_past_us(root: GangState, tree: Tree | None, vacancy: ReplacementHold) -> bool:
    """Say whether another member of the leaf runs in the place, which the log is about to learn."""
    key = GroupKey(root.root.partition("/")[0], vacancy.group, "PodGroup")
    members = tree.members.get(key, ()) if tree is not None else ()
    known = (root.bound, root.held)
    return any(p.node == vacancy.node and not any(p.uid in k for k in known) for p in members)


def _in_order(vacancies: Iterable[ReplacementHold]) -> list[ReplacementHold]:
    return sorted(vacancies, key=lambda v: v.pod)


def _why_given_up(
    view: ClusterView,
    root: GangState,
    vacancy: ReplacementHold,
    tree: Tree | None,
    taken: Collection[PodUid],
    over: Collection[PodUid],
    *,
    runs: bool,
) -> tuple[ReleaseReason, str] | None:
    node = view.nodes.get(vacancy.node)
    if not _is_replaced(tree, vacancy.group):
        return "deleted", "its group is gone or being deleted"
    if not runs:
        return "deleted", "no member of its gang runs any more"
    if node is None or node.unschedulable or node.deleting:
        return "node-lost", "its node is gone or takes no pods"
    if vacancy.uid in taken and not _replaced_past_us(root, tree, vacancy):
        return "superseded", "others took it"
    if vacancy.uid in over:
        return "expired", "no replacement came in time"
    return None
