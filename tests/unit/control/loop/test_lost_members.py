"""Lost members of a running gang: in their domain where it has a node, and else as `lostMembers` of their group asks for (D26)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from extender.core.log.events import (
    GangExtended,
    GangUnschedulable,
    MemberTerminated,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
)
from extender.core.log.reservation_state import claims_of_kind
from extender.core.model.ids import NodeName
from extender.queries.log.decision_replay import replay_decision
from extender.queries.log.preemption_report import PreemptionQuery, preemptions
from tests.support.logs.fake_store import FakeEventQueries
from tests.support.service.fakes import Stage, check_state, idle
from tests.support.service.manifest_builders import (
    BLOCK,
    GPU,
    RACK,
    a_fleet,
    a_group,
    a_node,
    a_pod,
)
from tests.support.waiting import eventually

LEASE_MS = 3_600_000
PODS = 4


def gang(choice: str = "", minimum: int = PODS):
    """A gang of one rack."""
    constraints = {"topology": [{"key": RACK}], **({"lostMembers": choice} if choice else {})}
    return [
        a_group("g", gang=minimum, schedulingConstraints=constraints),
        *(a_pod(f"g-{n}", "g", requests={GPU: 1}) for n in range(PODS)),
    ]


async def running(*objects, fleet="2 blocks x 2 racks x 4 nodes"):
    """A bound gang, one member on each node of a rack."""
    stage = Stage(*a_fleet(fleet, gpu=1), *objects, ttl_ms=LEASE_MS)
    await stage.lead()
    await stage.settled()
    await run(stage)
    return stage


async def run(stage):
    """Let members with reservations run where these are."""
    for name, node in stage.where("g").items():
        stage.cluster.change_pod(name, node=NodeName(node), phase="Running")
    await stage.settled()


async def lose(stage, *names):
    """Lose nodes with their pods; the controller makes others."""
    for name in names:
        node = stage.cluster.pod(name).node
        stage.cluster.delete_node(node)
        stage.cluster.delete_pod(name)
    await stage.settled()
    stage.cluster.add(*(a_pod(f"{name}-new", "g", requests={GPU: 1}) for name in names))
    await stage.settled()


def racks(stage):
    """Return by member the rack of its node, bound or reserved."""
    nodes = stage.cluster.view().nodes
    held = stage.where("g") | {
        pod.name: pod.node for pod in stage.cluster.view().pods.values() if pod.group and pod.node
    }
    return {name: nodes[node].labels[RACK] for name, node in held.items()}


async def proofs(stage):
    """Make all decisions about the gang again from their inputs."""
    for event in stage.events():
        if isinstance(event.data, GangExtended | GangUnschedulable | PreemptionPlanned):
            stored = await stage.inputs.load(event.data.input_digest)
            replay = replay_decision(event.position, event.data, stored)
            assert replay.same, replay.differences


@pytest.mark.parametrize("choice", ["", "Widen", "GiveUp"])
@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_several_lost_nodes_at_once_are_replaced_in_the_rack(choice, lost):
    """Whatever is chosen: the rack has nodes left."""
    async with await running(*gang(choice), fleet="2 blocks x 2 racks x 7 nodes") as stage:
        (before,) = set(racks(stage).values())
        await lose(stage, *(f"g-{n}" for n in range(lost)))
        assert set(racks(stage).values()) == {before}
        assert len(racks(stage)) == PODS
        assert not stage.event_data(PreemptionPlanned)
        await proofs(stage)


async def test_by_default_they_wait():
    async with await running(*gang()) as stage:
        await lose(stage, "g-0", "g-1")
        assert stage.where("g") == {}
        assert stage.root("g").last_decision.outcome == "impossible"
        assert not stage.event_data(GangExtended, PreemptionPlanned)


async def test_widen_places_them_as_near_as_possible_after_the_proof():
    """In the other rack of the block; the refusal is recorded first, and the plan has what its wish reached."""
    async with await running(*gang("Widen")) as stage:
        (before,) = set(racks(stage).values())
        await lose(stage, "g-0", "g-1")
        (refused,) = stage.event_data(GangUnschedulable)
        (extended,) = stage.event_data(GangExtended)
        assert refused.outcome == "impossible"
        names = stage.names()
        assert names.index("GangUnschedulable") < names.index("GangExtended")
        block = before.rpartition("-")[0]
        new = [racks(stage)[f"g-{n}-new"] for n in (0, 1)]
        assert len(set(new)) == 1
        assert new[0] != before
        assert new[0].startswith(block)
        wishes = {
            (w.key, w.value, w.best) for w in extended.groups[0].wishes if w.kind == "preferred"
        }
        assert wishes == {(RACK, 2, 2), (BLOCK, 1, 1)}
        (event,) = (e for e in stage.events() if e.data == extended)
        assert "lostMembers Widen: no node of the domain" in event.cause
        await proofs(stage)


@pytest.mark.parametrize("ranked", [False, True])
async def test_a_slice_whose_domain_is_full_is_widened(ranked):
    """Slices of two pods, racks of two nodes: the other slice stays, and the lost pod is in another rack."""
    constraints = {"slices": [{"size": 2, "key": RACK}], "lostMembers": "Widen"}

    def member(name, rank):
        labels = {"batch.kubernetes.io/job-completion-index": str(rank)} if ranked else {}
        pod = a_pod(name, "g", requests={GPU: 1})
        pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), **labels}
        return pod

    group = a_group("g", gang=PODS, schedulingConstraints=constraints)
    pods = [member(f"g-{n}", n) for n in range(PODS)]
    async with await running(group, *pods, fleet="2 blocks x 2 racks x 2 nodes") as stage:
        before = racks(stage)
        assert sorted(Counter(before.values()).values()) == [2, 2]
        node = stage.cluster.pod("g-0").node
        stage.cluster.delete_node(node)
        stage.cluster.delete_pod("g-0")
        await stage.settled()
        stage.cluster.add(member("g-0-new", 0))
        await stage.settled()
        after = racks(stage)
        assert after.pop("g-0-new") not in before.values()
        del before["g-0"]
        assert after == before
        assert stage.event_data(GangUnschedulable)[-1].outcome == "impossible"
        (extended,) = stage.event_data(GangExtended)
        await run(stage)  # bound in two racks it is no contradiction
        assert stage.root("g").phase == "scheduled"
        assert stage.event_data(GangExtended) == [extended]
        await proofs(stage)


@pytest.mark.parametrize(("choice", "moved"), [("Widen", True), ("widen", False)])
async def test_a_built_in_group_has_the_choice_as_an_annotation(choice, moved):
    """A value that is none of the choices is a warning, and the lost members wait."""
    group, *pods = gang()
    group["apiVersion"] = "scheduling.k8s.io/v1alpha3"
    group["metadata"]["annotations"] = {"gang-extender.dev/lost-members": choice}
    async with await running(group, *pods) as stage:
        await lose(stage, "g-0")
        assert bool(stage.event_data(GangExtended)) is moved
        (warnings,) = [group.warnings for group in stage.cluster.view().groups.values()]
        assert bool(warnings) is not moved
        assert all("'widen' is none of Wait, Widen, GiveUp" in text for text in warnings)


async def test_a_widened_gang_stays_in_its_domains_and_returns_to_one():
    """Bound in two racks it is no contradiction; when its rack has nodes again, the next loss is replaced there."""
    async with await running(*gang("Widen")) as stage:
        (before,) = set(racks(stage).values())
        await lose(stage, "g-0")
        await run(stage)
        (other,) = set(racks(stage).values()) - {before}
        larger = a_fleet("2 blocks x 2 racks x 6 nodes", gpu=1)
        stage.cluster.add(*[n for n in larger if n["metadata"]["labels"][RACK] == before][4:])
        await lose(stage, "g-0-new")
        assert set(racks(stage).values()) == {before}
        assert other not in racks(stage).values()
        await proofs(stage)


async def test_widen_does_not_leave_the_domain_of_the_group_above():
    """The block of the root is required and full."""
    root = a_group(
        "t", composite=True, gang=1, schedulingConstraints={"topology": [{"key": BLOCK}]}
    )
    leaf = a_group(
        "g",
        gang=PODS,
        parent="t",
        schedulingConstraints={"topology": [{"key": RACK}], "lostMembers": "Widen"},
    )
    pods = [a_pod(f"g-{n}", "g", requests={GPU: 1}) for n in range(PODS)]
    async with Stage(
        *a_fleet("2 blocks x 1 rack x 4 nodes", gpu=1), root, leaf, *pods, ttl_ms=LEASE_MS
    ) as stage:
        await stage.lead()
        await stage.settled()
        for name, node in stage.where("t").items():
            stage.cluster.change_pod(name, node=NodeName(node), phase="Running")
        await stage.settled()
        await lose(stage, "g-0")
        assert stage.where("t") == {}
        assert not stage.event_data(GangExtended)


@pytest.mark.parametrize("choice", ["Widen", "GiveUp"])
async def test_members_beyond_the_minimum_wait(choice):
    async with await running(*gang(choice, minimum=2)) as stage:
        await lose(stage, "g-0")
        assert stage.where("g") == {}
        assert not stage.event_data(GangExtended, PreemptionPlanned)


async def taken_over(stage):
    """End the process, and let another begin on the same database and cluster."""
    await stage.killed()
    again = Stage(
        database=stage.database, cluster=stage.cluster, clock=stage.clock, ttl_ms=LEASE_MS
    )
    await again.lead()
    again.start(again.parts.evictor.run())
    await again.settled()
    return again


@pytest.mark.parametrize("crashes", [False, True])
async def test_give_up_evicts_all_and_the_gang_is_placed_anew_as_one(crashes):
    """With a kill -9 between any two steps: the plan is recorded before the first eviction, and each pod is evicted."""
    stage = await running(*gang("GiveUp"))
    if not crashes:  # else it ends before the first eviction
        stage.start(stage.parts.evictor.run())

    async def step():
        nonlocal stage
        await stage.settled()
        if crashes:
            stage = await taken_over(stage)

    (before,) = set(racks(stage).values())
    await lose(stage, "g-0")
    (planned,) = stage.event_data(PreemptionPlanned)
    assert [p.pod for p in planned.victims[0].pods] == [f"default/g-{n}" for n in (1, 2, 3)]
    assert planned.assignments == ()
    assert not (crashes and stage.cluster.did("evict"))
    await step()
    expected = {f"default/g-{n}" for n in (1, 2, 3)}
    await eventually(
        lambda: {name for name, _ in stage.cluster.did("evict")} == expected, "evictions"
    )
    assert not stage.event_data(PreemptionCompleted)
    for n in (1, 2, 3):
        stage.cluster.delete_pod(f"g-{n}")
        await step()
    assert len(stage.event_data(PreemptionCompleted)) == 1
    (line,) = (await preemptions(FakeEventQueries(stage.database), PreemptionQuery())).lines
    assert (line.outcome, line.in_vain) == ("completed", "")  # nothing was to be bound for it
    assert stage.where("g") == {}
    stage.cluster.add(*(a_pod(f"g-{n}-new", "g", requests={GPU: 1}) for n in (1, 2, 3)))
    await step()
    await run(stage)
    await step()
    assert len(racks(stage)) == PODS
    (anew,) = set(racks(stage).values())
    assert anew != before
    assert not stage.event_data(PreemptionCancelled)
    assert len(stage.event_data(PreemptionPlanned)) == 1
    assert len(stage.event_data(MemberTerminated)) == PODS
    await proofs(stage)
    await stage.killed()


@pytest.mark.parametrize("choice", ["Widen", "GiveUp"])
async def test_a_node_that_joins_during_the_search_is_taken(choice):
    """The refusal that the choice follows from holds no longer: nothing is placed elsewhere, and nothing evicted."""
    async with await running(*gang(choice)) as stage:
        (rack,) = set(racks(stage).values())
        planner, joined = stage.parts.planner, []
        inner = planner.plan

        async def plan(encoded):
            answer = await inner(encoded)
            decision = stage.root("g").last_decision
            if decision is not None and decision.outcome == "impossible" and not joined:
                joined.append(f"{rack}-n9")
                labels = {BLOCK: rack.partition("-")[0], RACK: rack}
                stage.cluster.add(a_node(joined[0], labels, gpu=1))
            return answer

        planner.plan = plan
        await lose(stage, "g-0")
        assert joined
        assert set(racks(stage).values()) == {rack}
        assert stage.where("g") == {"g-0-new": joined[0]}
        assert not stage.event_data(PreemptionPlanned)


async def test_a_gang_that_fits_nowhere_else_is_not_given_up():
    async with await running(*gang("GiveUp"), fleet="1 block x 1 rack x 4 nodes") as stage:
        await lose(stage, "g-0")
        assert not stage.event_data(PreemptionPlanned)
        assert stage.root("g").last_decision.outcome == "impossible"
        # a rack comes: it is given up then
        stage.cluster.add(*a_fleet("1 block x 2 racks x 4 nodes", gpu=1)[4:])
        await stage.settled()
        assert len(stage.event_data(PreemptionPlanned)) == 1


async def test_what_has_a_lower_priority_in_the_rack_goes_before_it_is_left():
    """Another rack has free nodes: the rack is left only when no eviction in it helps."""
    low = [
        a_pod(f"low-{n}", node=f"b{b}-r{r}-n4", requests={GPU: 1}, priority=0)
        for n, (b, r) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1)))
    ]
    constraints = {"topology": [{"key": RACK}], "lostMembers": "Widen"}
    group = a_group("g", gang=PODS, priority=5, schedulingConstraints=constraints)
    pods = [a_pod(f"g-{n}", "g", requests={GPU: 1}, priority=5) for n in range(PODS)]
    stage = await running(*low, group, *pods, fleet="2 blocks x 2 racks x 5 nodes")
    async with stage:
        (rack,) = set(racks(stage).values())
        node = stage.cluster.pod("g-0").node
        stage.cluster.delete_node(node)
        stage.cluster.delete_pod("g-0")
        await stage.settled()
        stage.cluster.add(a_pod("g-0-new", "g", requests={GPU: 1}, priority=5))
        await stage.settled()
        (planned,) = stage.event_data(PreemptionPlanned)
        assert [a.node for a in planned.assignments] == [f"{rack}-n4"]
        assert stage.where("g") == {}


async def test_no_order_of_losses_breaks_a_promise():
    """Nodes die and come back, pods are made again, the process is killed: at the end each gang has all of its pods."""
    counts = [await life(seed) for seed in range(6)]
    assert all(map(sum, zip(*counts, strict=True)))  # both choices were made somewhere


async def life(seed):
    """Live through losses at random; return how often gangs were widened and given up."""
    chance = random.Random(seed)
    fleet = a_fleet("1 block x 5 racks x 2 nodes", gpu=1)
    choices = {"wide": "Widen", "up": "GiveUp", "wait": "Wait"}
    groups = [
        a_group(
            name,
            gang=2,
            schedulingConstraints={"topology": [{"key": RACK}], "lostMembers": choice},
        )
        for name, choice in choices.items()
    ]
    stage = Stage(*fleet, *groups, ttl_ms=LEASE_MS)
    stage.cluster.obeys = True
    made = 0

    async def begin():
        await stage.lead()
        stage.start(stage.parts.evictor.run())

    def step_of_others():
        """Let the controllers make what is missing, and kube-scheduler bring what has a reservation to its node."""
        nonlocal made
        pods = stage.cluster.view().pods.values()
        for name in choices:
            for _ in range(
                2 - sum(pod.group is not None and pod.group.name == name for pod in pods)
            ):
                made += 1
                stage.cluster.add(a_pod(f"{name}-{made}", name, requests={GPU: 1}))
        for claim in claims_of_kind(stage.leader.committed, "reservation"):
            pod = stage.cluster.view().pods.get(claim.uid)
            if pod is not None and pod.node is None and claim.node in stage.cluster.view().nodes:
                stage.cluster.change_pod(pod.path, node=claim.node, phase="Running")

    await begin()
    for _ in range(25):
        step = chance.choice(("die", "die", "come", "kill", "pass", "pass"))
        nodes = stage.cluster.view().nodes
        if step == "die":
            name = chance.choice(sorted(nodes))
            stage.cluster.delete_node(name)
            for pod in [p for p in stage.cluster.view().pods.values() if p.node == name]:
                stage.cluster.delete_pod(pod.path)
        elif step == "come" or len(nodes) < 6:
            stage.cluster.add(*(n for n in fleet if n["metadata"]["name"] not in nodes))
        elif step == "kill":
            await stage.killed()
            stage = Stage(
                database=stage.database, cluster=stage.cluster, clock=stage.clock, ttl_ms=LEASE_MS
            )
            await begin()
        await stage.one_pass()
        step_of_others()
        check_state(stage.leader.committed)
    nodes = stage.cluster.view().nodes
    stage.cluster.add(*(n for n in fleet if n["metadata"]["name"] not in nodes))

    async def complete():
        await stage.one_pass()
        await idle(20)  # turns of the evictor
        step_of_others()
        stage.later(1)
        held = [root.bound for root in stage.leader.committed.gangs.values()]
        return [len(bound) for bound in held] == [2, 2, 2]

    for _ in range(100):
        if await complete():
            break
    else:
        raise AssertionError(
            f"seed {seed}: {stage.root('up')}, {stage.root('wide')}, {stage.root('wait')}"
        )
    used = Counter(pod.node for pod in stage.cluster.view().pods.values())
    assert set(used.values()) == {1}
    assert len(used) == 6
    planned = {
        pod.pod: unit.path
        for plan in stage.event_data(PreemptionPlanned)
        for unit in plan.victims
        for pod in unit.pods
    }
    assert {name for name, _ in stage.cluster.did("evict")} <= planned.keys()
    assert set(planned.values()) <= {"default/up"}
    labels = stage.cluster.view().nodes
    for name in ("up", "wait"):
        own = [p for p in stage.cluster.view().pods.values() if p.group and p.group.name == name]
        assert len({labels[pod.node].labels[RACK] for pod in own}) == 1
    await stage.killed()
    widened = sum("Widen" in event.cause for event in stage.events())
    return widened, len(stage.event_data(PreemptionPlanned))
