"""Moves are made one at a time, through kill -9 at every step, and no gang falls below its minimum; else they end with the reason."""

from __future__ import annotations

import msgspec
import pytest

from extender.cli.commands.moves_command import under_way_lines
from extender.core.log.events import GangExtended, MoveCompleted, MovesEnded, MovesPlanned
from extender.core.model.errors import BadInput, ClusterUnavailable, NotFound
from extender.core.model.ids import NodeName
from extender.queries.log.decision_replay import replay_decision
from extender.queries.plan.moves_query import MovesInput, moves_under_way, planned_moves
from extender.queries.plan.plan_query import PlanInput
from tests.support.service.fakes import Stage, check_state
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
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
