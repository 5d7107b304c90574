"""Moves are made one at a time, through kill -9 at every step, and no gang falls below its minimum; else they end with the reason."""

from __future__ import annotations

import msgspec
import pytest

from extender.cli.commands.moves_command import under_way_lines
from extender.core.log.events import GangExtended, MoveCompleted, MovesEnded, MovesPlanned, PodBound
from extender.core.log.moves_state import after_event
from extender.core.model.errors import BadInput, ClusterUnavailable, NotFound
from extender.core.model.ids import NodeName
from extender.core.model.nodes import Taint
from extender.core.preempt.moves_lifecycle import lost_place
from extender.queries.log.decision_replay import replay_decision
from extender.queries.plan.moves_query import MovesInput, moves_under_way, planned_moves
from extender.queries.plan.plan_query import PlanInput
from tests.support.service.fakes import Stage, check_state, idle
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.queries.explain.test_explain_service import explaining

LEASE_MS = 3_600_000
TTL_S = 300
MADE_AGAIN = {
    "ownerReferences": [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "g", "uid": "job", "controller": True}
    ]
}
MINIMUM = 2
SILENT_TAINT = Taint(key="node.kubernetes.io/unreachable", value="", effect="NoSchedule")


def a_member(name, gang="g"):
    return a_pod(name, gang, requests={GPU: 1}, metadata=MADE_AGAIN)


async def running(**settings):
    """Lead with a gang of three, its minimum two, on n0 to n2; n3 and n4 are free."""
    group, *_ = a_gang("g", pods=MINIMUM)
    stage = Stage(
        *(a_node(f"n{i}", gpu=1) for i in range(3)),
        group,
        *(a_member(f"g-{i}") for i in range(3)),
        ttl_ms=LEASE_MS,
        **settings,
    )
    await stage.lead()
    await stage.one_pass()
    for name, node in stage.where("g").items():
        stage.cluster.change_pod(name, node=NodeName(node), phase="Running")
    await stage.settled()
    assert stage.root("g").phase == "scheduled"
    assert len(stage.root("g").bound) == 3
    stage.cluster.add(a_node("n3", gpu=1), a_node("n4", gpu=1))
    stage.start(stage.parts.mover.run())
    await stage.settled()
    return stage


def asked(stage, *nodes):
    question = MovesInput(
        plan=PlanInput(groups=frozenset(), pods=frozenset(), state=stage.leader.pending_state),
        drain=nodes,
        members_only=True,
    )
    return planned_moves(stage.cluster.view(), question)


async def begun(stage, *nodes):
    answer, request = asked(stage, *nodes)
    body = msgspec.json.encode(request, order="deterministic")
    await stage.parts.mover.begin(answer.question, answer.moves, body, "ann", proved=True)
    await stage.settled()
    return answer.moves


async def taken_over(stage, **settings):
    """End the process, and let another begin on the same database and cluster."""
    await stage.killed()
    again = Stage(
        database=stage.database,
        cluster=stage.cluster,
        clock=stage.clock,
        ttl_ms=LEASE_MS,
        **settings,
    )
    await again.lead()
    again.start(again.parts.mover.run())
    await again.settled()
    return again


async def evicted(stage, count):
    await eventually(lambda: len(stage.cluster.did("evict")) == count, "an eviction")


def assert_minimum(stage):
    left = [p for p in stage.cluster.seen.pods.values() if p.node and not p.deleting]
    assert len(left) >= MINIMUM, left
    check_state(stage.leader.committed)


@pytest.mark.parametrize("crashes", [False, True])
async def test_members_are_moved_one_after_the_other(crashes):
    """Planned, evicted, gone, made again, placed, bound, twice; with a kill -9 between any two of these."""
    stage = await running()

    async def step():
        nonlocal stage
        await stage.settled()
        assert_minimum(stage)
        if crashes:
            stage = await taken_over(stage)
            assert_minimum(stage)

    moves = await begun(stage, "n0", "n1")
    assert {(m.source, m.target) for m in moves} == {("n0", "n3"), ("n1", "n4")}
    for number, move in enumerate(moves):
        name = move.pod.partition("/")[2]
        await evicted(stage, number + 1)
        assert stage.cluster.did("evict")[number] == (move.pod, "evicted")
        await step()
        stage.cluster.delete_pod(name)
        await step()
        assert len(stage.event_data(MoveCompleted)) == number
        stage.cluster.add(a_member(f"{name}x"))
        await step()
        assert stage.where("g") == {f"{name}x": move.target}
        stage.cluster.change_pod(f"{name}x", node=NodeName(move.target), phase="Running")
        await step()
        assert len(stage.event_data(MoveCompleted)) == number + 1
    await step()
    assert len(stage.cluster.did("evict")) == len(moves)
    assert stage.leader.committed.moves is None
    assert [e.reason for e in stage.event_data(MovesEnded)] == ["completed"]
    assert len(stage.event_data(GangExtended)) == len(moves)
    assert {p.node for p in stage.cluster.seen.pods.values()} == {"n2", "n3", "n4"}
    await stage.killed()


async def test_the_new_node_is_held_from_the_plan_on():
    """A gang of the same priority does not get it, also while the member still runs; after a stop it does."""
    stage = await running()
    await begun(stage, "n0", "n1")
    stage.cluster.add(*a_gang("rival", pods=1))
    await stage.settled()
    assert stage.root("rival").phase == "unschedulable"
    await stage.parts.mover.stop("ann")
    await stage.settled()
    assert stage.root("rival").phase == "admitted"
    (end,) = stage.event_data(MovesEnded)
    assert (end.reason, end.by, end.made, end.left) == ("stopped", "ann", 0, 2)
    await stage.killed()


async def test_a_plan_is_replayed_from_its_input():
    """The recorded moves are found again."""
    stage = await running()
    await begun(stage, "n0", "n1")
    event = next(e for e in stage.events() if isinstance(e.data, MovesPlanned))
    stored = await stage.inputs.load(event.data.input_digest)
    replayed = replay_decision(event.position, event.data, stored)
    assert (replayed.same, replayed.recorded) == (True, "2 moves")
    await stage.killed()


@pytest.mark.parametrize("changes", [{"unschedulable": True}, {}])
async def test_a_member_without_a_replacement_hold_gets_its_new_node(changes):
    """Its old node is cordoned, or holds are off: what is held on the new one is for its gang."""
    stage = await running(**({} if changes else {"replacement_ttl_s": 0}))
    stage.cluster.change_node("n0", **changes)
    (move,) = await begun(stage, "n0")
    await evicted(stage, 1)
    name = move.pod.partition("/")[2]
    stage.cluster.delete_pod(name)
    await stage.settled()
    assert not stage.root("g").replacement_holds
    stage.cluster.add(a_member(f"{name}x"))
    await stage.settled()
    assert stage.where("g") == {f"{name}x": move.target}
    await stage.killed()


async def test_paused_moves_evict_no_further_pod():
    """The move that has begun is made to its end; after `resume` the next pod leaves."""
    stage = await running()
    moves = await begun(stage, "n0", "n1")
    await evicted(stage, 1)
    await stage.parts.mover.pause("ann", paused=True)
    name = moves[0].pod.partition("/")[2]
    stage.cluster.delete_pod(name)
    await stage.settled()
    waiting = moves_under_way(stage.leader.committed.moves, "").state
    assert waiting.endswith("; paused: no further pod is evicted then")
    stage.cluster.add(a_member(f"{name}x"))
    await stage.settled()
    stage.cluster.change_pod(f"{name}x", node=NodeName(moves[0].target), phase="Running")
    await stage.settled()
    assert len(stage.event_data(MoveCompleted)) == 1
    stage.clock.advance(2 * TTL_S)
    stage = await taken_over(stage)
    assert len(stage.cluster.did("evict")) == 1
    shown = moves_under_way(stage.leader.committed.moves, "")
    assert (shown.made, shown.state) == (
        1,
        f"paused before {moves[1].pod} leaves {moves[1].source}",
    )
    await stage.parts.mover.pause("ann", paused=False)
    await stage.settled()
    await evicted(stage, 2)
    await stage.killed()


async def test_a_gang_that_is_moved_is_explained():
    """`explain` of the gang and `moves` have what is done now."""
    stage = await running()
    stage.cluster.fault = lambda verb, _: (
        ClusterUnavailable("no disruption allowed", refused=True) if verb == "evict" else None
    )
    moves = await begun(stage, "n0", "n1")
    first = f"{moves[0].pod} leaves {moves[0].source}"
    explained = await explaining(stage)("PodGroup/default/g")
    assert explained.reasons == (f"2 members of it are being moved; {first}",)
    await eventually(lambda: stage.parts.mover._refusal, "the refusal")
    await stage.settled()
    waits_for = stage.parts.mover.waits_for
    shown = [*under_way_lines(moves_under_way(stage.leader.committed.moves, waits_for))]
    assert shown[0].startswith("drain n0, n1: 0 of 2 moves made; since 2027-")
    assert shown[0].endswith(", asked for by ann")
    assert shown[1] == f"  {first} later: no disruption allowed"
    assert shown[2] == f"    1  {moves[0].pod}  {moves[0].source} -> {moves[0].target}  now"
    await stage.killed()


async def test_one_plan_at_a_time():
    """A second one is refused with what would help; without one there is nothing to stop."""
    stage = await running()
    with pytest.raises(NotFound, match="none are under way"):
        await stage.parts.mover.stop("ann")
    await begun(stage, "n0")
    with pytest.raises(BadInput, match="gang-extender moves stop"):
        await begun(stage, "n1")
    await stage.killed()


async def test_no_member_leaves_while_another_is_missing():
    """The plan was made when all ran; before each eviction the minimum is looked at again, for a bounded time."""
    stage = await running()
    stage.cluster.go.clear()  # the eviction waits, as while the API server is away
    answer, _ = asked(stage, "n0")
    await stage.parts.mover.begin(answer.question, answer.moves, b"{}", "", proved=True)
    stage.cluster.delete_pod("g-2" if answer.moves[0].pod != "default/g-2" else "g-1")
    stage.cluster.go.set()
    await stage.settled()
    assert stage.cluster.did("evict") == []
    assert "its minimum is 2" in stage.parts.mover.waits_for
    stage.clock.advance(TTL_S + 1)
    await stage.settled()
    (end,) = stage.event_data(MovesEnded)
    assert end.reason == "refused"
    assert "could not leave within 300 s: PodGroup/default/g runs with 2 pods" in end.message
    assert stage.leader.committed.moves is None
    await stage.killed()


async def test_an_eviction_that_is_refused_for_long_ends_the_moves():
    """The answer of the API server is in the event."""
    stage = await running()
    stage.cluster.fault = lambda verb, _: (
        ClusterUnavailable("no disruption allowed", refused=True) if verb == "evict" else None
    )
    await begun(stage, "n0")
    await eventually(lambda: stage.parts.mover._refusal, "the refusal")
    stage.clock.advance(TTL_S + 1)
    await stage.settled()
    (end,) = stage.event_data(MovesEnded)
    assert (end.reason, "no disruption allowed" in end.message) == ("refused", True)
    await stage.killed()


async def test_what_keeps_a_pod_now_is_named_before_an_old_refusal():
    """The API server refused the eviction once; since then the new node is cordoned."""
    stage = await running()
    stage.cluster.fault = lambda verb, _: (
        ClusterUnavailable("no disruption allowed", refused=True) if verb == "evict" else None
    )
    (move,) = await begun(stage, "n0")
    await eventually(lambda: stage.parts.mover._refusal, "the refusal")
    stage.cluster.change_node(move.target, unschedulable=True)
    await stage.settled()
    assert stage.parts.mover.waits_for == f"node {move.target} is gone or takes no pods"
    await stage.killed()


async def test_a_member_that_comes_back_has_still_to_leave():
    """Its node was gone for a while, and its replacement has the place: the move is not made, and the plan ends."""
    stage = await running()
    (move,) = await begun(stage, "n0")
    await evicted(stage, 1)
    stage.cluster.delete_pod(move.pod.partition("/")[2])
    await stage.settled()
    stage.cluster.add(a_member("again"))
    await stage.settled()
    moves = stage.leader.committed.moves
    assert moves.replacement
    back = next(
        e for e in stage.events() if isinstance(e.data, PodBound) and e.data.uid == move.uid
    )
    after = after_event(moves, back)
    assert (after.lost_us, after.replacement) == (0, "")
    assert [claim.node for claim in after.claims()] == [move.target]
    state = msgspec.structs.replace(stage.leader.committed, moves=after)
    assert lost_place(stage.cluster.view(), state, after.moves).startswith(
        f"node {move.target}, where"
    )
    await stage.killed()


async def test_no_member_leaves_for_a_domain_that_a_group_has_alone_now():
    """A gang was placed in it after the plan: the new pod could not go there."""
    stage = await running()
    for name, rack in (("n3", "r1"), ("n4", "r1")):
        stage.cluster.change_node(name, labels={RACK: rack})
    stage.cluster.go.clear()
    answer, _ = asked(stage, "n0")
    await stage.parts.mover.begin(answer.question, answer.moves, b"{}", "", proved=True)
    alone = {"schedulingConstraints": {"exclusive": {"key": RACK, "scope": "Cluster"}}}
    stage.cluster.add(
        a_group("x", gang=1, **alone), a_pod("x-0", "x", node="n4", requests={GPU: 1})
    )
    stage.cluster.go.set()
    await stage.settled()
    await idle()
    assert stage.cluster.did("evict") == []
    assert stage.parts.mover.waits_for == "node n3 is in a domain that a group has alone"
    await stage.killed()


async def test_a_replacement_that_does_not_come_ends_the_moves():
    """What was held is free, and the gang goes on with what it has."""
    stage = await running()
    (move,) = await begun(stage, "n0")
    await evicted(stage, 1)
    stage.cluster.delete_pod(move.pod.partition("/")[2])
    await stage.settled()
    stage.clock.advance(TTL_S + 1)
    await stage.settled()
    (end,) = stage.event_data(MovesEnded)
    assert (end.reason, end.left) == ("not-replaced", 1)
    check_state(stage.leader.committed)
    await stage.killed()


async def test_a_long_grace_period_does_not_end_the_moves():
    """The time begins when the member is gone."""
    stage = await running()
    stage.cluster.deletes_us = stage.clock.now_us() + 2 * TTL_S * 1_000_000
    (move,) = await begun(stage, "n0")
    await evicted(stage, 1)
    await stage.settled()
    stage.clock.advance(TTL_S + 1)
    await stage.settled()
    assert stage.event_data(MovesEnded) == []
    stage.cluster.delete_pod(move.pod.partition("/")[2])
    await stage.settled()
    assert stage.event_data(MovesEnded) == []
    stage.clock.advance(TTL_S + 1)
    await stage.settled()
    (end,) = stage.event_data(MovesEnded)
    assert end.reason == "not-replaced"
    await stage.killed()


async def test_a_member_that_ends_before_its_turn_ends_the_moves():
    """Its controller has it made elsewhere: the plan does not hold any more."""
    stage = await running()
    moves = await begun(stage, "n0", "n1")
    await evicted(stage, 1)
    stage.cluster.delete_pod(moves[1].pod.partition("/")[2])
    await stage.settled()
    first = moves[0].pod.partition("/")[2]
    stage.cluster.delete_pod(first)
    await stage.settled()
    stage.cluster.add(a_member(f"{first}x"))
    await stage.settled()
    stage.cluster.change_pod(f"{first}x", node=NodeName(moves[0].target), phase="Running")
    await stage.settled()
    (end,) = stage.event_data(MovesEnded)
    assert (end.reason, end.made, end.left) == ("changed", 1, 1)
    await stage.killed()


@pytest.mark.parametrize("lost", ["with its node", "silent", "to a preemptor"])
async def test_no_member_leaves_while_another_does_not_count(lost):
    """Of three one runs on a node that is gone or silent, or is a victim that is not deleted yet: the others are the minimum."""
    stage = await running(preemption=True)
    stage.cluster.fault = lambda verb, _: (
        ClusterUnavailable("webhook", refused=True) if verb == "mark_disrupted" else None
    )
    answer, _ = asked(stage, "n0")
    if lost == "with its node":
        stage.cluster.delete_node("n2")
    elif lost == "silent":
        stage.cluster.change_node("n2", taints=(SILENT_TAINT,))
    else:
        group, pod = a_gang("vip", pods=1, nodeSelector={"kubernetes.io/hostname": "n2"})
        group["spec"]["priority"] = pod["spec"]["priority"] = 9
        stage.cluster.add(group, pod)
        await stage.settled()
        assert [p.gang for p in stage.leader.committed.preemptions.values()] == ["default/vip"]
    await stage.parts.mover.begin(answer.question, answer.moves, b"{}", "", proved=True)
    await stage.settled()
    await idle()
    assert stage.cluster.did("evict") == []
    assert "runs with 2 pods, and its minimum is 2" in stage.parts.mover.waits_for
    await stage.killed()


async def test_the_end_of_a_gang_of_a_later_move_ends_paused_moves():
    """What was held for it has no owner, and to move the others would lead nowhere."""
    stage = await running()
    group, _ = a_gang("h", pods=1)
    stage.cluster.add(group, *(a_member(f"h-{i}", "h") for i in range(2)), a_node("n5", gpu=1))
    await stage.settled()
    for name, node in stage.where("h").items():
        stage.cluster.change_pod(name, node=NodeName(node), phase="Running")
    await stage.settled()
    stage.cluster.add(a_node("n6", gpu=1))
    stage.cluster.go.clear()
    answer, _ = asked(stage, "n0", stage.cluster.pod("h-0").node)
    assert [move.group for move in answer.moves] == ["PodGroup/default/g", "PodGroup/default/h"]
    await stage.parts.mover.begin(answer.question, answer.moves, b"{}", "", proved=True)
    await stage.parts.mover.pause("ann", paused=True)
    stage.cluster.go.set()
    for name in ("h-0", "h-1"):
        stage.cluster.delete_pod(name)
    stage.cluster.delete_group("h")
    await stage.settled()
    await stage.settled()
    (end,) = stage.event_data(MovesEnded)
    assert (end.reason, end.left) == ("changed", 2)
    assert "default/h" in end.message
    assert stage.cluster.did("evict") == []
    check_state(stage.leader.committed)
    await stage.killed()


@pytest.mark.parametrize("taken", ["n3", "n4"])
async def test_moves_to_a_node_that_was_taken_since_the_search_are_not_begun(taken):
    """A gang was placed there: no member leaves for a plan that cannot be made to its end."""
    stage = await running()
    answer, _ = asked(stage, "n0", "n1")
    stage.cluster.add(*a_gang("rival", pods=1, nodeSelector={"kubernetes.io/hostname": taken}))
    await stage.settled()
    assert stage.where("rival") == {"rival-0": taken}
    with pytest.raises(BadInput, match=f"node {taken}, where default/g-. was to go, has not"):
        await stage.parts.mover.begin(answer.question, answer.moves, b"{}", "", proved=True)
    assert stage.event_data(MovesPlanned) == []
    await stage.killed()


@pytest.mark.parametrize("how", ["pod", "deleted"])
@pytest.mark.parametrize("begun_already", [False, True])
async def test_a_new_node_that_goes_to_others_ends_the_moves_at_once(how, begun_already):
    """Also the place of a later move, before the first pod leaves."""
    stage = await running()
    if not begun_already:
        stage.cluster.fault = lambda verb, _: (
            ClusterUnavailable("no disruption allowed", refused=True) if verb == "evict" else None
        )
    moves = await begun(stage, "n0", "n1")
    at = moves[0 if begun_already else 1].target
    if begun_already:
        await evicted(stage, 1)
        stage.cluster.delete_pod(moves[0].pod.partition("/")[2])
        await stage.settled()
    if how == "pod":
        stage.cluster.add(a_pod("other", node=at, requests={GPU: 1}))
    else:
        stage.cluster.delete_node(at)
    await stage.settled()
    (end,) = stage.event_data(MovesEnded)
    assert (end.reason, end.made, end.left) == ("changed", 0, 2)
    assert f"node {at}, where {moves[0 if begun_already else 1].pod} was to go" in end.message
    check_state(stage.leader.committed)
    await stage.killed()


async def test_a_terminating_pod_on_the_new_node_does_not_end_the_moves():
    """It goes by itself; until then no member leaves."""
    stage = await running()
    stage.cluster.fault = lambda verb, _: (
        ClusterUnavailable("no disruption allowed", refused=True) if verb == "evict" else None
    )
    (move,) = await begun(stage, "n0")
    stage.cluster.add(a_pod("other", requests={GPU: 1}))
    stage.cluster.change_pod("other", node=NodeName(move.target), deleting=True)
    await stage.settled()
    assert stage.event_data(MovesEnded) == []
    assert stage.parts.mover.waits_for == f"node {move.target} has not enough {GPU} free"
    await stage.killed()


async def test_replacements_that_are_never_bound_do_not_keep_the_moves_alive():
    """Each is deleted and made again with a reservation of its own: only the first is progress."""
    stage = await running()
    (move,) = await begun(stage, "n0")
    await evicted(stage, 1)
    stage.cluster.delete_pod(move.pod.partition("/")[2])
    await stage.settled()
    for number in range(4):
        stage.cluster.add(a_member(f"again-{number}"))
        await stage.settled()
        stage.clock.advance(TTL_S / 2)
        stage.cluster.delete_pod(f"again-{number}")
        await stage.settled()
    assert [end.reason for end in stage.event_data(MovesEnded)] == ["not-replaced"]
    check_state(stage.leader.committed)
    await stage.killed()


async def test_the_end_of_the_gang_ends_the_moves():
    """Nothing is held for it."""
    stage = await running()
    await begun(stage, "n0")
    for name in ("g-0", "g-1", "g-2"):
        stage.cluster.delete_pod(name)
    stage.cluster.delete_group("g")
    await stage.settled()
    await stage.settled()  # how the members ended is known now
    (end,) = stage.event_data(MovesEnded)
    assert (end.reason, end.message) == ("changed", "gang default/g was removed")
    await stage.killed()
