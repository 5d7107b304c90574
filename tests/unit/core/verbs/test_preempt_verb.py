"""The preempt verb: no part of a gang is evicted alone, and no pod for capacity that filter would refuse."""

from __future__ import annotations

from extender.core.model.ids import PlanId
from extender.core.verbs import preempt_verb_input
from extender.core.verbs.preempt_verb import (
    NodeCandidate,
    answer_without_choice,
    build_preempt_input,
    choose_victims,
    planned_event,
)
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.unit.control.admission.test_preemption_policy import settled

ONE = {GPU: 1}
VIP = a_pod("vip", requests=ONE, priority=100)


async def playing(*objects, nodes=("n0", "n1"), **rest):
    """Lead over nodes of one GPU each; what runs there is known to the log."""
    stage = Stage(
        *(a_node(n, gpu=1) for n in nodes), *objects, VIP, **{"preemption": False, **rest}
    )
    await stage.lead()
    await stage.settled()
    return stage


def asked(stage, offered, *, records=True, pod="vip"):
    """Ask with names of victims by node; gives the names by node that are answered, and the plan."""
    cluster = stage.cluster
    candidates = [
        NodeCandidate(node=node, victims=tuple(cluster.pod(name).uid for name in names))
        for node, names in offered.items()
    ]
    view, state = cluster.seen, stage.leader.committed
    choice = answer_without_choice(view, state, cluster.pod(pod))
    if choice is None:
        question = build_preempt_input(
            view,
            state,
            stage.parts.exchange.published.observation.forest,
            cluster.pod(pod),
            candidates,
        )
        stored = preempt_verb_input.encode(question)
        assert preempt_verb_input.decode(stored.head, stored.parts) == question
        choice = choose_victims(question, preemption=PlanId("p") if records else None)
    names = {p.uid: p.name for p in view.pods.values()}
    plan = planned_event(view, choice.plan, stored.digest) if choice.plan is not None else None
    return {c.node: [names[u] for u in c.victims] for c in choice.candidates}, plan


def running(name, *nodes, minimum, whole=False, priority=1):
    group = a_group(name, gang=minimum, whole=whole, priority=priority)
    pods = [
        a_pod(f"{name}-{n}", name, node=node, requests=ONE, priority=priority)
        for n, node in enumerate(nodes)
    ]
    return [group, *pods]


async def test_a_gang_is_not_broken_below_its_minimum():
    """Of two nodes the one whose victim a gang needs is dropped; where an extra can go, it goes."""
    single = a_pod("single", node="n2", requests=ONE, priority=50)
    gang = running("g", "n0", "n1", minimum=2)
    async with await playing(*gang, single, nodes=("n0", "n1", "n2")) as stage:
        offered = {"n0": ["g-0"], "n2": ["single"]}
        assert asked(stage, offered) == ({"n2": ["single"]}, None)
        assert asked(stage, {"n0": ["g-0"]}) == ({}, None), "no node is better than half a gang"
    async with await playing(*running("g", "n0", "n1", minimum=1)) as stage:
        assert asked(stage, {"n0": ["g-0"]}) == ({"n0": ["g-0"]}, None), "it can lose one"


async def test_a_whole_unit_is_left_alone_where_something_cheaper_is_there():
    """Cheaper by the order of E-9: the highest priority counts before the number of pods."""
    unit = running("u", "n0", "n1", minimum=2, whole=True, priority=5)
    single = a_pod("single", node="n2", requests=ONE, priority=5)
    async with await playing(*unit, single, nodes=("n0", "n1", "n2")) as stage:
        answer, plan = asked(stage, {"n0": ["u-0"], "n2": ["single"]})
        assert (answer, plan) == ({"n2": ["single"]}, None)


async def test_a_whole_unit_is_taken_as_one_recorded_preemption():
    """It is cheaper than the other node: all its pods are in the plan, kube-scheduler gets those on the node."""
    unit = running("u", "n0", "n1", minimum=2, whole=True, priority=1)
    single = a_pod("single", node="n2", requests=ONE, priority=50)
    async with await playing(*unit, single, nodes=("n0", "n1", "n2")) as stage:
        offered = {"n0": ["u-0"], "n2": ["single"]}
        answer, plan = asked(stage, offered)
        assert answer == {"n0": ["u-0"]}
        assert plan is not None
        assert [(u.name, [p.pod for p in u.pods]) for u in plan.victims] == [
            ("PodGroup/default/u", ["default/u-0", "default/u-1"])
        ]
        assert plan.kind == "Pod"
        assert [a.units for a in plan.alternatives] == [("Pod/default/single",)]
        assert asked(stage, offered, records=False) == ({"n2": ["single"]}, None)


async def test_filter_and_preempt_agree():
    """Capacity that is held for a gang of higher priority is not freed in vain; for a lower one it is."""
    held = a_gang("top", pods=1, requests=ONE, priority=200)
    held[0]["spec"]["priority"] = 200
    low = a_pod("low", node="n0", requests={GPU: 1}, priority=1)
    async with await playing(*held, nodes=("n0",)) as stage:
        assert stage.where("top") == {"top-0": "n0"}
        stage.cluster.add(low)
        assert asked(stage, {"n0": ["low"]}) == ({}, None)
        assert (
            stage.extender_service.filter(stage.cluster.pod("vip"), ["n0"]).outcome == "protected"
        )


async def test_there_are_no_victims_for_equal_priority_and_for_members():
    """A unit of the same priority never goes, and a member is helped by its tree alone."""
    unit = running("u", "n0", minimum=1, whole=True, priority=100)
    low = a_pod("low", node="n1", requests=ONE, priority=1)
    async with await playing(*unit, low, *a_gang("m", pods=1, requests=ONE, priority=100)) as stage:
        assert asked(stage, {"n0": ["u-0"]}) == ({}, None)
        assert asked(stage, {"n1": ["low"]}, pod="m-0") == ({}, None)


async def test_the_service_records_before_it_answers_and_lets_the_whole_unit_go():
    """A second call gets the same answer; the pod on the other node goes too; when the pod runs, it is completed."""
    unit = running("u", "n0", "n1", minimum=2, whole=True, priority=1)
    async with await playing(*unit, preemption=True) as stage:
        stage.start(stage.parts.evictor.run())
        await stage.one_pass()
        vip = stage.cluster.pod("vip")
        offered = [NodeCandidate(node="n0", victims=(stage.cluster.pod("u-0").uid,))]
        for _ in range(2):
            (answer,) = await stage.extender_service.preempt(vip, offered)
            assert (answer.node, answer.victims) == ("n0", offered[0].victims)
        assert stage.names().count("PreemptionPlanned") == 1
        stage.cluster.obeys = True
        await settled(stage, 3)
        assert {name for name, _ in stage.cluster.did("evict")} == {"default/u-0", "default/u-1"}
        assert stage.extender_service.filter(stage.cluster.pod("vip"), ["n0"]).outcome == "passed"
        stage.cluster.change_pod("vip", node="n0")
        await stage.settled()
        assert stage.names().count("PreemptionCompleted") == 1
        assert not stage.leader.committed.preemptions


async def test_a_static_pod_is_no_victim():
    """kube-scheduler would delete its mirror, and the pod would run on: the node is dropped."""
    mirror = {"annotations": {"kubernetes.io/config.mirror": "0f1e"}}
    static = a_pod("static", node="n0", requests=ONE, priority=1, metadata=mirror)
    low = a_pod("low", node="n1", requests=ONE, priority=1)
    async with await playing(static, low) as stage:
        assert asked(stage, {"n0": ["static"], "n1": ["low"]}) == ({"n1": ["low"]}, None)
