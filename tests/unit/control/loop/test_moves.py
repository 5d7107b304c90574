"""Moves are made one at a time, through kill -9 at every step, and no gang falls below its minimum; else they end with the reason."""

from __future__ import annotations

import msgspec
import pytest
from immutables import Map

from extender.cli.commands.moves_command import under_way_lines
from extender.cluster.manifests.plan_request_body import answer_moves_to_apply
from extender.control.actuators import move_controller
from extender.control.actuators.move_controller import POLICY, MovesPolicy
from extender.core.holds.hold_planning import HELD_FOR_MOVES
from extender.core.log.capacity_claim import CapacityClaim
from extender.core.log.events import GangExtended, MoveCompleted, MovesEnded, MovesPlanned, PodBound
from extender.core.log.moves_state import after_event
from extender.core.log.reservation_state import CapacityHold, claims_by_node
from extender.core.model.errors import BadInput, ClusterUnavailable, NotFound
from extender.core.model.ids import GroupKey, NodeName
from extender.core.model.message_formatting import rfc3339
from extender.core.model.nodes import Taint
from extender.core.model.visibility import EVERYTHING, Visibility
from extender.core.planner.moves.move_types import Move
from extender.core.preempt.moves_lifecycle import lost_place
from extender.queries.log.decision_replay import replay_decision
from extender.queries.plan.moves_query import MovesInput, moves_under_way, planned_moves
from extender.queries.plan.plan_dto import MovesQuestion
from extender.queries.plan.plan_query import PlanInput
from extender.queries.state.state_dto import Scope
from extender.queries.state.state_report import build_state_report
from extender.telemetry import METRICS
from tests.support.logs.fake_store import FakeEventQueries
from tests.support.service.fakes import Stage, check_state, idle
from tests.support.service.live_plans import live_plans
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
AFTER_S = 600
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
        asked=MovesQuestion(drain=nodes),
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


def policy(stage):
    """Return the policy of a stage; the planner works in this process."""

    async def ask(body):
        return (await live_plans(stage).plan(body, answer=answer_moves_to_apply)).body

    events = FakeEventQueries(stage.database)
    parts = stage.parts.mover, stage.leader, events, ask, stage.clock, stage.settings
    return MovesPolicy(*parts)


async def waiting_for_a_rack(**settings):
    """Lead with the gang of three, and one that waits for two nodes of one rack: one move away."""
    stage = await running(moves_after_s=AFTER_S, hold_capacity_after_s=0, **settings)
    for node, rack in (("n0", "r0"), ("n1", "r1"), ("n2", "r2"), ("n3", "r0"), ("n4", "r1")):
        stage.cluster.change_node(node, labels={RACK: rack})
    stage.cluster.add(*a_gang("train", pods=2, topo=RACK))
    await stage.settled()
    assert stage.root("train").phase == "unschedulable"
    return stage


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
    """A gang of the same priority does not get it, also while the member still runs, and has the reason; after a stop it does."""
    stage = await running()
    await begun(stage, "n0", "n1")
    stage.cluster.add(*a_gang("rival", pods=1), *a_gang("two", pods=1, requests={GPU: 2}))
    await stage.settled()
    assert stage.root("rival").phase == "unschedulable"
    assert HELD_FOR_MOVES in stage.root("rival").last_decision.reasons
    assert HELD_FOR_MOVES not in stage.root("two").last_decision.reasons
    explained = await explaining(stage)("PodGroup/default/rival")
    assert HELD_FOR_MOVES in explained.reasons
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


@pytest.mark.parametrize("name", ["decide_moves", "what_keeps"])
async def test_a_defect_in_moves_keeps_no_gang(name, monkeypatch):
    """In what is recorded of them, or in whether the next pod may leave: others are admitted meanwhile, and moves go on later."""
    stage = await running()
    await begun(stage, "n0", "n1")
    await evicted(stage, 1)
    inner, raises = getattr(move_controller, name), [True]

    def broken(*arguments):
        if raises:
            raise ZeroDivisionError("the test fails it")
        return inner(*arguments)

    monkeypatch.setattr(move_controller, name, broken)
    before = sum(sample.value for sample in METRICS.object_faults.collect()[0].samples)
    stage.cluster.delete_pod("g-0")
    stage.cluster.add(a_member("g-0x"), a_node("n5", gpu=1), *a_gang("new", pods=1))
    await stage.settled()
    assert stage.root("new").phase == "admitted"
    if name == "what_keeps":
        stage.cluster.change_pod("g-0x", node=NodeName(stage.where("g")["g-0x"]), phase="Running")
    await stage.settled()
    await eventually(
        lambda: sum(s.value for s in METRICS.object_faults.collect()[0].samples) > before, "a fault"
    )
    raises.clear()

    async def goes_on():
        stage.later(5)
        await stage.settled()
        place = stage.where("g").get("g-0x")
        if place and not stage.cluster.pod("g-0x").node:
            stage.cluster.change_pod("g-0x", node=NodeName(place), phase="Running")
        return len(stage.cluster.did("evict")) == 2

    await eventually(goes_on, "the second move")
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


# --- what is held for members that have still to leave


async def test_a_new_member_of_the_gang_does_not_get_a_node_that_is_held_for_a_later_move():
    """It is no replacement: nothing has left."""
    stage = await running()
    stage.cluster.fault = lambda verb, _: (
        ClusterUnavailable("no disruption allowed", refused=True) if verb == "evict" else None
    )
    await begun(stage, "n0", "n1")
    stage.cluster.add(a_member("g-3"))
    await stage.settled()
    assert stage.where("g") == {}
    stage.cluster.add(a_node("n5", gpu=1))
    await stage.settled()
    assert stage.where("g") == {"g-3": "n5"}
    await stage.killed()


async def test_what_is_held_for_later_moves_does_not_keep_the_first_pod():
    """The second leaves the new node of the first, and the third comes there: one after the other all have their place."""
    stage = await running()
    stage.cluster.change_node("n2", allocatable={"cpu": 64_000, "pods": 110, GPU: 2})
    await stage.settled()
    at = {p.node: p for p in stage.cluster.seen.pods.values()}
    steps = [("n0", "n2"), ("n2", "n0"), ("n1", "n2")]
    moves = [
        Move(pod=at[a].path, uid=at[a].uid, group="", source=a, target=b, priority=0)
        for a, b in steps
    ]
    await stage.parts.mover.begin("test", moves, b"{}", "", proved=True)
    await stage.settled()
    assert stage.parts.mover.waits_for == ""
    await evicted(stage, 1)
    assert stage.cluster.did("evict") == [(moves[0].pod, "evicted")]
    await stage.killed()


async def test_the_state_has_what_is_held_for_moves():
    """By node and pod; of the gangs of others the sum."""
    stage = await running()
    await begun(stage, "n0", "n1")
    for readers in (EVERYTHING, Visibility.of(("default",)), Visibility.of(("team-b",))):
        nodes = {
            n.node: n for n in build_state_report(stage.leader.committed, Scope(), readers).nodes
        }
        assert {name: n.move_claims for name, n in nodes.items() if n.move_claims} == {
            "n3": {GPU: 1, "pods": 1},
            "n4": {GPU: 1, "pods": 1},
        }
        states = [pod.state for pod in nodes["n3"].pods] + [o.state for o in nodes["n3"].others]
        assert states == ["moving"]
    await stage.killed()


# --- the policy


@pytest.mark.parametrize(("node", "steps"), [("n3", ("n0", "n4")), ("n4", ("n1", "n3"))])
async def test_no_pod_is_moved_to_what_is_held_for_the_gang_to_place(node, steps):
    """It is free for the gang, but the new pod would not get it."""
    stage = await waiting_for_a_rack()
    uid, now_us = stage.root("train").uid, stage.clock.now_us()
    claim = CapacityClaim(
        kind="hold", plan="h", gang_uid=uid, pod="default/train-0", uid="t", group="train", node=NodeName(node),
        requests={GPU: 1}, priority=0, at_us=0,
    )  # fmt: skip
    hold = CapacityHold(
        hold="h", gang_uid=uid, gang="default/train", kind="PodGroup", priority=0, position=1, at_us=now_us, until_us=now_us + 1,
        waiting_since_us=now_us, groups=(), pods=(claim,),
    )  # fmt: skip
    state = msgspec.structs.replace(
        stage.leader.committed, claims_on=claims_by_node([claim]), capacity_holds=Map({uid: hold})
    )
    train = frozenset({GroupKey("default", "train", "PodGroup")})
    question = MovesInput(plan=PlanInput(groups=train, state=state))
    answer, _ = planned_moves(stage.cluster.view(), question)
    assert answer.verdict == "moves", answer
    (move,) = answer.moves
    assert (move.source, move.target) == steps
    await stage.killed()


async def test_a_gang_that_waits_for_long_gets_moves():
    """After `moves_after_s`, not before; the log has who asked and for which gang, and it is placed in the end."""
    stage = await waiting_for_a_rack()
    look = policy(stage).look
    await look()
    assert stage.event_data(MovesPlanned) == []
    stage.clock.advance(AFTER_S)
    await look()
    (plan,) = stage.event_data(MovesPlanned)
    assert (plan.by, plan.for_gang, plan.for_uid) == (
        POLICY,
        "default/train",
        stage.root("train").uid,
    )
    (move,) = plan.moves
    await stage.settled()
    explained = await explaining(stage)("PodGroup/default/train")
    assert "running pods are moved for it: 0 of 1 move made" in explained.reasons
    await evicted(stage, 1)
    name = move.pod.partition("/")[2]
    stage.cluster.delete_pod(name)
    stage.cluster.add(a_member(f"{name}x"))
    await stage.settled()
    stage.cluster.change_pod(f"{name}x", node=move.target, phase="Running")
    await stage.settled()
    assert [end.reason for end in stage.event_data(MovesEnded)] == ["completed"]
    assert stage.root("train").phase == "admitted"
    await look()
    assert len(stage.event_data(MovesPlanned)) == 1
    await stage.killed()


async def test_a_gang_waits_for_capacity_from_when_it_is_complete():
    """Its last member came long after it: until then it was no capacity that it waited for."""
    stage = await waiting_for_a_rack()
    stage.cluster.delete_pod("train-1")
    await stage.settled()
    assert stage.root("train").phase == "waiting"
    stage.clock.advance(AFTER_S)
    _, *pods = a_gang("train", pods=2, topo=RACK)
    stage.cluster.add(pods[1])
    await stage.settled()
    assert stage.root("train").phase == "unschedulable"
    look = policy(stage).look
    await look()
    assert stage.event_data(MovesPlanned) == []
    stage.clock.advance(AFTER_S)
    await look()
    assert len(stage.event_data(MovesPlanned)) == 1
    await stage.killed()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"moves_lost_work_min": 0}, "they lose 10 GPU-minutes of work; moves_lost_work_min is 0"),
        ({"moves_per_hour": 1}, "2 pods of namespace default would move within an hour"),
        ({}, "gang default/g was moved within the last hour"),
    ],
)
async def test_the_policy_keeps_to_its_limits(caplog, settings, why):
    """What was planned before counts, also that of a leader before; an hour later it does not."""
    stage = await waiting_for_a_rack(**settings)
    for pod in list(stage.cluster.seen.pods.values()):
        stage.cluster.change_pod(pod.name, checkpoint=rfc3339(stage.clock.now_us()))
    stage.clock.advance(AFTER_S)
    if "moves_lost_work_min" not in settings:
        by = POLICY if settings else "ann"
        answer, _ = asked(stage, "n2")
        await stage.parts.mover.begin(answer.question, answer.moves, b"{}", by, proved=True)
        await stage.parts.mover.stop("ann")
        stage = await taken_over(stage, moves_after_s=AFTER_S, hold_capacity_after_s=0, **settings)
    before = len(stage.event_data(MovesPlanned))
    with caplog.at_level("INFO"):
        await policy(stage).look()
    assert len(stage.event_data(MovesPlanned)) == before
    assert any(why in getattr(record, "reason", "") for record in caplog.records)
    await stage.killed()


async def test_a_pod_of_a_higher_priority_is_not_moved_by_the_policy():
    """A user may have it moved."""
    stage = await waiting_for_a_rack()
    for pod in list(stage.cluster.seen.pods.values()):
        if pod.node:
            stage.cluster.change_pod(pod.name, priority=5)
    stage.clock.advance(AFTER_S)
    await policy(stage).look()
    assert stage.event_data(MovesPlanned) == []
    await stage.killed()


@pytest.mark.parametrize("end", ["placed", "removed"])
async def test_moves_for_a_gang_that_waits_no_longer_end(end):
    """Before the pod leaves: it would be evicted for nothing."""
    stage = await waiting_for_a_rack()
    stage.cluster.fault = lambda verb, _: (
        ClusterUnavailable("no disruption allowed", refused=True) if verb == "evict" else None
    )
    stage.clock.advance(AFTER_S)
    await policy(stage).look()
    if end == "placed":
        stage.cluster.add(*(a_node(f"m{i}", {RACK: "r9"}, gpu=1) for i in range(2)))
    else:
        stage.cluster.delete_group("train")
        for name in ("train-0", "train-1"):
            stage.cluster.delete_pod(name)
    await stage.settled()
    await stage.settled()
    (ending,) = stage.event_data(MovesEnded)
    text = {
        "placed": "gang default/train has its place",
        "removed": "gang default/train was removed",
    }
    assert (ending.reason, ending.message, ending.made) == ("no-longer-needed", text[end], 0)
    await stage.killed()
