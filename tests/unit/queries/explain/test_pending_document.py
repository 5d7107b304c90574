"""docs/troubleshooting: a page per outcome, with the output of `gang-extender explain` as it is, and a tree of links to them."""

from __future__ import annotations

import ast
import asyncio
import inspect
import random
import re
from collections.abc import Awaitable, Callable
from typing import get_args

import msgspec
import pytest

from deploy.demo.ports import free_port
from extender.cli.commands.explain_command import print_explanation
from extender.cli.commands.history_commands import EVENT_COLUMNS
from extender.cli.output.list_table import ListFormat, ListTable
from extender.cluster.read.object_decoding import WRITTEN
from extender.control.loop.reconciler import REASON
from extender.control.verbs.extender_service import ExtenderService
from extender.core.admit import gang_sentences
from extender.core.log.events import (
    AnyEventData,
    ControlPlaneFeaturesDetected,
    NewEvent,
    NodeRejected,
    ReleasedPod,
    ReservationReleased,
    TreeCompiled,
    TreeRefused,
)
from extender.core.log.reservation_state import EffectivePhase
from extender.core.model import pod_groups
from extender.core.model.errors import NotFound, RequestRejected
from extender.core.model.ids import NIL_GANG
from extender.core.model.pods import GATE, SUCCEEDED, PodEnd
from extender.core.workloads.tree_compiler import GroupSpec
from extender.core.workloads.workload_object import TREE_LABEL
from extender.http.web.health import Health
from extender.queries.explain import (
    explain_service,
    object_explanation,
)
from extender.queries.explain.explain_service import ExplainService
from extender.queries.explain.explanation import Explanation
from extender.queries.explain.name_lookup import parse_name
from extender.queries.log.event_dto import event_line
from tests.support.document_outputs import DOCS, DocumentOutputs, fixed_parts
from tests.support.planning.hostile_trees import a_fleet_of_racks, odd_sized
from tests.support.service.command_line import run_command
from tests.support.service.fakes import Stage
from tests.support.service.live_plans import live_plans
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.control.actuators.test_evictor import lows, preemptor_tree
from tests.unit.control.admission.test_capacity_holds import held
from tests.unit.control.admission.test_holds_of_tenants import (
    AFTER_S,
    LASTS_S,
    a_tree,
    full,
    later,
)
from tests.unit.core.admit.test_native_gang_scheduling import NEW
from tests.unit.queries.explain.test_explain_service import explaining

DOCUMENT = DocumentOutputs("troubleshooting/pending", "gang-extender explain")
TREE = DOCS / "troubleshooting/my-gang-is-pending.md"
WHOLE = {GPU: 8}


def nodes(count: int = 4):
    return [a_node(f"n{n}", {RACK: f"r{n // 2}"}, gpu=8) for n in range(count)]


def gang(name: str, pods: int = 2, **more):
    return a_gang(name, pods=pods, requests=WHOLE, **more)


async def bound(stage: Stage, *pods: str) -> None:
    await stage.settled()
    for number, pod in enumerate(pods):
        stage.cluster.change_pod(pod, node=f"n{number}")
    await stage.settled()


async def runs(stage: Stage) -> None:
    await bound(stage, "train-0", "train-1")


async def loses_one(stage: Stage) -> None:
    await runs(stage)
    stage.cluster.delete_pod("train-1")
    await stage.settled()  # its end is looked up first
    await stage.settled()  # then recorded


async def nothing_more(stage: Stage) -> None:
    await stage.settled()


async def is_deleted(stage: Stage) -> None:
    """The group and its pods go, and the control loop has not seen it yet."""
    await stage.settled()
    stage.cluster.delete_pod("train-0")
    stage.cluster.delete_pod("train-1")
    stage.cluster.delete_group("train")


async def record(stage: Stage, event: AnyEventData, gang: str = "") -> None:
    """Append an event as another part of the service would."""
    uid = stage.root(gang).uid if gang else NIL_GANG
    path = f"default/{gang}" if gang else ""
    await stage.leader.append([NewEvent(gang_uid=uid, gang=path, data=event, actor="test")])


def compiled(*, suspended: bool = False) -> TreeCompiled:
    return TreeCompiled(
        kind="Job", workload="default/train", uid="job", generation=1, table_version=1,
        profile="default", groups=(GroupSpec(kind="PodGroup", name="train", minimum=2),),
        suspended=suspended,
    )  # fmt: skip


async def kube_scheduler_schedules_groups(stage: Stage) -> None:
    found = ControlPlaneFeaturesDetected(
        served=("scheduling.k8s.io/v1beta1 PodGroup",), dropped_fields=(), untested=(),
        admission_policy="on", native_group_scheduling="on",
    )  # fmt: skip
    await record(stage, found)
    stage.cluster.add(a_pod("train-1", "train"))
    await stage.settled()


async def is_compiled(stage: Stage) -> None:
    await record(stage, compiled())


async def is_refused(stage: Stage) -> None:
    event = TreeRefused(
        kind="Job", workload="default/train", uid="job", generation=1, table_version=1,
        profile="default", reason="PrioritiesDiffer", field="spec.template.spec.priorityClassName",
        message="its pods have two priorities; give all of them one priorityClassName",
    )  # fmt: skip
    await record(stage, event)


async def is_suspended(stage: Stage) -> None:
    await runs(stage)
    await record(stage, compiled(suspended=True))
    for name in ("train-0", "train-1"):
        stage.cluster.delete_pod(name)
    await stage.settled()
    await stage.settled()


async def is_preempted(stage: Stage) -> None:
    """Both pods of `low` are evicted, as the preemption asked for."""
    await stage.settled()
    for name in ("low-0", "low-1"):
        stage.cluster.change_pod(name, deleting=True, disruption_target="PreemptionByScheduler")
        stage.cluster.delete_pod(name)
        await stage.settled()
        await stage.settled()


async def what_runs_terminates(stage: Stage) -> None:
    """The pod that uses the capacity is deleted, and its grace period runs."""
    stage.cluster.change_pod("old", deleting=True)
    await stage.settled()


async def a_node_is_rejected(stage: Stage) -> None:
    """kube-scheduler keeps refusing the only node with capacity; the reservation there was released."""
    (held,) = stage.root("train").reservations.values()
    refused = NodeRejected(
        pod=held.pod,
        uid=held.uid,
        node=held.node,
        by_shape=True,
        until_ms=stage.clock.now_us() // 1000 + 300_000,
    )
    await record(stage, refused, "train")
    pods = (ReleasedPod(pod=held.pod, uid=held.uid, node=held.node),)
    await record(
        stage, ReservationReleased(plan=held.plan, reason="node-rejected", pods=pods), "train"
    )
    await stage.settled()


async def capacity_becomes_free(stage: Stage) -> None:
    """The pods that were in the way go, and the control loop has not seen it yet."""
    await stage.settled()
    for number in (0, 2):
        stage.cluster.delete_pod(f"other-{number}")


async def succeeds(stage: Stage) -> None:
    await runs(stage)
    for name in ("train-0", "train-1"):
        stage.cluster.end_pod(name, PodEnd("ended", SUCCEEDED))
    await stage.settled()
    await stage.settled()


async def kube_scheduler_refuses_the_node(stage: Stage) -> None:
    """The gang was planned again without a rejected node; kube-scheduler refuses the next one too."""
    await a_node_is_rejected(stage)
    message = "0/4 nodes are available: 1 node(s) had volume node affinity conflict, 3 node(s) didn't match the gang."
    stage.cluster.change_pod("train-0", unschedulable=message)
    await stage.settled()


async def one_member_binds(stage: Stage) -> None:
    """kube-scheduler binds one of two members: the call waits for the other one."""
    await is_nominated(stage)
    stage.bind("train-0")
    uid = stage.cluster.pod("train-0").uid
    await eventually(lambda: stage.barriers.at_bind(uid), "the call waits")


async def is_nominated(stage: Stage) -> None:
    for pod, node in stage.where("train").items():
        stage.cluster.change_pod(pod, nominated=node)
    await stage.settled()


async def the_barrier_times_out(stage: Stage) -> None:
    """One of two members arrives, the other does not; the control loop has not planned the tree again yet."""
    await is_nominated(stage)
    await stage.bind("train-0")


async def a_binding_fails(stage: Stage) -> None:
    """The API server refuses one of two Bindings."""
    await is_nominated(stage)
    stage.cluster.fault = lambda verb, name: (
        RequestRejected("403 admission webhook pods.example.com denied the request")
        if (verb, name) == ("bind", "default/train-0")
        else None
    )
    await asyncio.gather(stage.bind("train-0"), stage.bind("train-1"))
    await stage.settled()


async def the_parent_is_being_deleted(stage: Stage) -> None:
    key = stage.cluster.group("tree").key.name
    stage.cluster.change_group(key, deleting=True, deleted_us=0)
    await stage.settled()


async def all_nodes_are_cordoned(stage: Stage) -> None:
    """All nodes are cordoned, and the gang gets no reservation there any more."""
    for number in range(4):
        stage.cluster.change_node(f"n{number}", unschedulable=True)
    await stage.settled()


async def is_released_in_each_pass(stage: Stage) -> None:
    """A defect, set by the test: reservations are released in every pass."""
    reconciler = stage.control_loop._reconciler
    reconciler._expired = lambda state: frozenset(
        uid for uid, root in state.gangs.items() if root.reservations
    )
    for _ in range(6):
        stage.later(0.1)
        await stage.one_pass()


GATED = [{"name": "kueue.x-k8s.io/admission"}]
OURS = [{"name": GATE}]
OTHERS = [a_pod(f"other-{n}", node=f"n{n}", requests=WHOLE) for n in (0, 2)]
BEHIND = [a_pod(f"other-{n}", node=f"n{n}", requests=WHOLE) for n in (2, 3)]


def tree(minimum: int, *leaves: str):
    """Make a root that needs some of its children, of which each has two pods."""
    objects = [a_group("tree", gang=minimum, composite=True)]
    for leaf in leaves:
        objects.append(a_group(leaf, gang=2, parent="tree"))
        objects += [a_pod(f"{leaf}-{n}", leaf, requests=WHOLE) for n in range(2)]
    return objects


def chain(levels: int):
    """Make composite groups c0, c1, ..., each the parent of the next."""
    above = ["", *(f"c{n}" for n in range(levels - 1))]
    return [a_group(f"c{n}", gang=1, composite=True, parent=above[n]) for n in range(levels)]


def tainted():
    """Make the four nodes again, with a taint."""
    made = nodes()
    for node in made:
        node["spec"] = {"taints": [{"key": "example.com/maintenance", "effect": "NoSchedule"}]}
    return made


def never_preempting():
    """Make a gang of priority 10 that evicts no others."""
    group, *pods = preemptor_tree()
    for one in (group, *pods):
        one["spec"]["preemptionPolicy"] = "Never"
    return [group, *pods]


# title of the section -> objects, what happens, settings
SCENARIOS = {
    "It names no group": ([a_pod("alone")], nothing_more, {}),
    "It lacks the group of its workload": (
        [a_pod("train-0", metadata={"labels": {TREE_LABEL: "default"}})],
        nothing_more,
        {},
    ),
    "Does not exist": ([a_group("serve-prefill"), a_pod("p", "serve-prefil")], nothing_more, {}),
    "Does not exist any more": (gang("train"), is_deleted, {}),
    "Is being made for its workload": ([], is_compiled, {}),
    "Has no groups": ([], is_refused, {}),
    "Is not scheduled": ([a_group("leaf", parent="tree"), a_pod("p", "leaf")], nothing_more, {}),
    "Is not valid": ([a_group("train", gang=2), a_pod("p", "train", priority=7)], nothing_more, {}),
    "Waits for members": (
        [a_group("train", gang=3), a_pod("train-0", "train", requests=WHOLE)],
        nothing_more,
        {},
    ),
    "Waits for members: other scheduling gates": (
        gang("train", schedulingGates=GATED),
        nothing_more,
        {},
    ),
    "Waits for 1 pod that terminates": (
        [*nodes(1), a_pod("old", node="n0", requests=WHOLE, priority=9), *gang("train", 1)],
        what_runs_terminates,
        {},
    ),
    "Waits for child groups": (tree(3, "left", "right"), nothing_more, {}),
    "Waits: with its own group scheduling on": (
        [
            a_group("train", gang=2, version=NEW),
            a_pod("train-0", schedulingGroup={"podGroupName": "train"}),
        ],
        kube_scheduler_schedules_groups,
        {},
    ),
    "Is a child group of": (tree(2, "left", "right"), nothing_more, {}),
    "Can never be placed": (gang("train", 5), nothing_more, {}),
    "Does not fit now": ([*OTHERS, *gang("train", topo=RACK)], nothing_more, {}),
    "May fit or not": (
        [*BEHIND, a_pod("other", node="n0", requests=WHOLE), *gang("train", 1)],
        a_node_is_rejected,
        {"preemption": False},
    ),
    "It fits only when": (
        [*lows("n0", "n1"), *preemptor_tree()],
        nothing_more,
        {"preemption": False},
    ),
    "Fits now and is about to be admitted": (
        [*OTHERS, *gang("train", topo=RACK)],
        capacity_becomes_free,
        {},
    ),
    "Waits for victims of its preemption": (
        [*lows("n0", "n1"), *preemptor_tree()],
        nothing_more,
        {},
    ),
    "Has its capacity reserved": (gang("train"), nothing_more, {}),
    "Still have our gate": (gang("train", schedulingGates=OURS), nothing_more, {}),
    "Runs": (gang("train"), runs, {}),
    "An extra member": ([*BEHIND, *gang("train", 3, minimum=2)], runs, {}),
    "A child group beyond the minimum": ([*BEHIND, *tree(1, "left", "right")], nothing_more, {}),
    "Has ended": (gang("train"), succeeds, {}),
    "Is degraded": (gang("train"), loses_one, {}),
    "Was preempted": ([*lows("n0", "n1"), *preemptor_tree()], is_preempted, {}),
    "Is suspended": (gang("train"), is_suspended, {}),
    "Nothing is called": (gang("train"), nothing_more, {}),
    "Nothing is called: nothing similar either": (gang("train"), nothing_more, {}),
    "Node": ([*OTHERS, *gang("train")], nothing_more, {}),
    "Is not scheduled: its parent was being deleted": (
        [
            a_group("tree", gang=1, composite=True),
            a_group("leaf", parent="tree"),
            a_pod("p", "leaf"),
        ],
        the_parent_is_being_deleted,
        {},
    ),
    "Is not scheduled: a cycle of parents": (
        [
            a_group("a", gang=1, composite=True, parent="b"),
            a_group("b", gang=1, composite=True, parent="a"),
        ],
        nothing_more,
        {},
    ),
    "Is not scheduled: too many groups are above it": (
        [*chain(6), a_group("leaf", parent="c5"), a_pod("p", "leaf")],
        nothing_more,
        {},
    ),
    "Is not scheduled: too many child groups": (
        tree(1, "left", "right"),
        nothing_more,
        {"max_children": 1},
    ),
    "Is not valid: schedulerName": (
        [
            a_group("train", gang=2),
            a_pod("train-0", "train"),
            a_pod("train-1", "train", schedulerName="gang-scheduler"),
        ],
        nothing_more,
        {},
    ),
    "Is not valid: priority": (
        [a_group("tree", gang=1, composite=True), a_group("leaf", parent="tree", priority=7)],
        nothing_more,
        {},
    ),
    "Is not valid: preemptionPolicy": (
        [
            a_group("tree", gang=1, composite=True),
            a_group("leaf", parent="tree", preemptionPolicy="Never"),
        ],
        nothing_more,
        {},
    ),
    "Is not valid: preemptionPolicy of a pod": (
        [
            a_group("tree", gang=1, version=NEW, preemptionPolicy="Never"),
            a_pod("worker-0", "tree"),
        ],
        nothing_more,
        {},
    ),
    "Is not valid: Workloads": (
        [
            a_group("tree", gang=1, composite=True, workload="train"),
            a_group("leaf", parent="tree", workload="serve"),
        ],
        nothing_more,
        {},
    ),
    "Is not valid: levels": ([*chain(4), a_group("leaf", parent="c3")], nothing_more, {}),
    "Is not valid: child groups": (
        tree(1, "left", "right"),
        nothing_more,
        {"max_children": 1},
    ),
    "Is not valid: disruption of a child group": (
        [
            a_group("tree", gang=1, composite=True, whole=True),
            a_group("leaf", gang=1, parent="tree"),
        ],
        nothing_more,
        {},
    ),
    "Is not valid: a field that was dropped": (
        [
            a_group(
                "train",
                gang=2,
                version=NEW,
                metadata={"annotations": {WRITTEN: "schedulingConstraints"}},
            )
        ],
        nothing_more,
        {},
    ),
    "Waits: a group that kube-scheduler does not know": (
        [
            a_group("train", gang=2),
            a_pod("train-0", schedulingGroup={"podGroupName": "train"}),
        ],
        kube_scheduler_schedules_groups,
        {},
    ),
    "Waits: a gate of another controller": (
        [
            a_group("train", gang=1, version=NEW),
            a_pod("train-0", schedulingGroup={"podGroupName": "train"}, schedulingGates=GATED),
        ],
        kube_scheduler_schedules_groups,
        {},
    ),
    "Can never be placed: taints": (
        [*gang("train"), *tainted()],
        nothing_more,
        {},
    ),
    "Can never be placed: node selector": (
        gang("train", nodeSelector={"example.com/pool": "large"}),
        nothing_more,
        {},
    ),
    "Can never be placed: topology key": (
        gang("train", topo="topology.example.com/rak"),
        nothing_more,
        {},
    ),
    "Can never be placed: cordoned nodes": (
        gang("train"),
        all_nodes_are_cordoned,
        {},
    ),
    "Does not fit now: nothing of lower priority": (
        [*OTHERS, *gang("train", topo=RACK)],
        nothing_more,
        {},
    ),
    "Does not fit now: preemptionPolicy Never": (
        [*lows("n0", "n1"), *never_preempting()],
        nothing_more,
        {},
    ),
    "Has its capacity reserved: kube-scheduler refuses the node": (
        gang("train", 1),
        kube_scheduler_refuses_the_node,
        {},
    ),
    "Has its capacity reserved: the bind barrier": (gang("train"), one_member_binds, {}),
    "Fits now and is about to be admitted: the bind barrier timed out": (
        gang("train"),
        the_barrier_times_out,
        {"barrier_timeout_s": 0.05},
    ),
    "Has its capacity reserved: a Binding failed": (gang("train"), a_binding_fails, {}),
    "Does not exist: an object that cannot be read": ([a_pod("p", "train")], nothing_more, {}),
    "Waits for the end of its back-off": (gang("train"), is_released_in_each_pass, {}),
}


async def test_a_workload_that_was_never_resumed_is_suspended() -> None:
    """As Kueue suspends a new one: its gang has had no pod, so the log has its tree alone."""
    async with Stage(*nodes(), a_group("train", gang=2)) as stage:
        await stage.lead()
        await record(stage, compiled(suspended=True))
        await stage.settled()
        answer = await explaining(stage)("train")
    assert "is suspended: Job default/train is suspended; it waits for members" in answer.answer
    assert answer.help == ("resume the workload (spec.suspend: false)",)


async def search_turns(name: str) -> Explanation:
    """Three gangs of one namespace need a search; the first one is searched."""
    gangs = [o for n in range(3) for o in gang(f"g{n}")]
    async with Stage(*nodes(), *gangs) as stage:
        await stage.lead()
        planner, answers = stage.parts.planner, []
        inner, ask = planner.plan, explaining(stage)
        planner.at_once = lambda request: "search"

        async def look(encoded):
            answers.append(await ask(name))
            return await inner(encoded)

        planner.plan = look
        await stage.one_pass()
        return answers[0]


async def new_gangs(name: str) -> Explanation:
    gangs = [o for n in range(3) for o in gang(f"g{n}", 1)]
    async with Stage(*nodes(), *gangs, max_new_gangs_per_minute=1) as stage:
        await stage.lead()
        await stage.one_pass()
        return await explaining(stage)(name)


async def held_capacity(name: str) -> Explanation:
    """A gang needs the whole cluster, which smaller gangs keep full; one of them ended."""
    stage, stream = await held()
    async with stage:
        await stream.one_ends()
        await stream.fill()
        return await explaining(stage)(name)


def unheld(pods: int, *, runs: str, waits_s: int) -> Callable[[str], Awaitable[Explanation]]:
    """Return a scenario: a gang waits for long on a cluster that is full of pods of a namespace."""

    async def scenario(name: str) -> Explanation:
        async with await full(runs) as stage:
            stage.cluster.add(*a_tree("large", pods, namespace="first"))
            await stage.settled()
            await later(stage, waits_s)
            return await explaining(stage)(name)

    return scenario


async def small_budget(name: str) -> Explanation:
    """A tree that almost fits, planned with a budget of 40 search nodes."""
    tree = odd_sized("train", "default", random.Random(1))
    async with Stage(*a_fleet_of_racks(), *tree, preemption=False, search_budget=40) as stage:
        await stage.lead()
        await stage.one_pass()
        plans = live_plans(stage)

        async def plan(query):
            return await plans.plan_live(msgspec.structs.replace(query, budget=40))

        service = ExplainService(stage.cluster, stage.leader, stage.clock, plan)
        return await service.explain(parse_name(name, "default"))


# Scenarios with passes of their own
OWN_PASSES = {
    "May fit or not: the search budget": small_budget,
    "Waits for its turn": search_turns,
    "Waits for its search": search_turns,
    "Waits for its turn: new gangs of its namespace": new_gangs,
    "Does not fit now: capacity is held for it": held_capacity,
    "Does not fit now: capacity is held for others": held_capacity,
    "Does not fit now: no capacity is held for it: its own namespace": unheld(
        2, runs="first", waits_s=AFTER_S
    ),
    "Does not fit now: no capacity is held for it: its share": unheld(
        3, runs="other", waits_s=AFTER_S
    ),
    "Does not fit now: no capacity is held for it: unused holds": unheld(
        2, runs="other", waits_s=AFTER_S + LASTS_S
    ),
}


NO_ANSWER = "No answer from"  # a command that finds no service


async def output_of(title: str, name: str, capsys) -> str:
    """Return what `gang-extender explain` prints in a scenario."""
    if title == NO_ANSWER:
        port = free_port()
        done = run_command("explain", name, GANG_EXTENDER_SERVER=f"http://127.0.0.1:{port}")
        return done.stderr.replace(str(port), "8888")
    if own := OWN_PASSES.get(title):
        return printed(await own(name), capsys)
    objects, happens, settings = SCENARIOS[title]
    small = [a_node(f"n{n}", {RACK: f"r{n}"}, gpu=1) for n in range(2)]
    names = {o["metadata"]["name"] for o in objects}
    fleet = small if "low" in names else [] if "n0" in names else nodes()
    async with Stage(*fleet, *objects, **settings) as stage:
        children = stage.settings.max_children
        stage.cluster.seen = msgspec.structs.replace(stage.cluster.seen, max_children=children)
        await stage.lead()
        await stage.settled()
        await happens(stage)
        try:
            found = await explaining(stage)(name)
        except NotFound as error:
            return f"gang-extender: {error}\n"
    return printed(found, capsys)


def printed(found: Explanation, capsys) -> str:
    """Return what the command prints of an explanation."""
    capsys.readouterr()
    print_explanation(found)
    return str(capsys.readouterr().out)


@pytest.mark.parametrize("title", [*SCENARIOS, *OWN_PASSES, NO_ANSWER])
async def test_the_output_is_in_the_document(title, capsys) -> None:
    async def printed_for(name: str) -> str:
        output = await output_of(title, name, capsys)
        assert title.partition(":")[0].lower() in output.splitlines()[0].lower()
        return output

    await DOCUMENT.compare(title, printed_for)


EVENTS = DocumentOutputs("troubleshooting/pending", "gang-extender events --type")
EVENT_SCENARIOS = {
    "The record of a barrier that timed out": "Fits now and is about to be admitted: the bind barrier timed out",
    "The record of a Binding that failed": "Has its capacity reserved: a Binding failed",
    "The record of a refused node": "Has its capacity reserved: kube-scheduler refuses the node",
}


@pytest.mark.parametrize("title", EVENT_SCENARIOS)
async def test_the_record_is_in_the_document(title, capsys) -> None:
    """The event of an outcome is printed from the log as the page has it."""
    objects, happens, settings = SCENARIOS[EVENT_SCENARIOS[title]]
    async with Stage(*nodes(), *objects, **settings) as stage:
        await stage.lead()
        await stage.settled()
        await happens(stage)
        events = stage.events()
    table = ListTable(EVENT_COLUMNS, lambda line: line.gang, ListFormat())

    async def printed_for(kind: str) -> str:
        capsys.readouterr()
        lines = [event_line(event) for event in events]
        table.print([line for line in lines if line.type == kind], empty="No events.")
        return str(capsys.readouterr().out)

    await EVENTS.compare(title, printed_for)


def test_each_record_is_one_of_a_scenario() -> None:
    assert sorted(EVENTS.titles()) == sorted(EVENT_SCENARIOS)


async def test_the_event_of_a_back_off_is_in_the_document() -> None:
    """The text of the Event on the root group of a tree that is released in every pass."""
    document = DocumentOutputs(
        "troubleshooting/pending/readmission-backoff.md", "kubectl get events"
    )
    async with Stage(*nodes(), *gang("train")) as stage:
        await stage.lead()
        stage.start(stage.reporter.run())
        await stage.one_pass()
        await is_released_in_each_pass(stage)
        await eventually(
            lambda: any(n.reason == REASON for n in stage.cluster.notices), "the Event"
        )
        message = next(n.message for n in stage.cluster.notices if n.reason == REASON)

    async def printed_for(_: str) -> str:
        return f"MESSAGE\n{message}\n"

    (title,) = document.titles()
    await document.compare(title, printed_for)


async def not_leading(stage: Stage) -> None:
    """The replica has not asked for the lease yet."""


async def just_leading(stage: Stage) -> None:
    await stage.lead()


READINESS = DocumentOutputs("troubleshooting/pending/service-not-ready.md", "curl -s")
READINESS_SCENARIOS = {
    "No replica leads": not_leading,
    "A replica has just begun to lead": just_leading,
}


@pytest.mark.parametrize("title", READINESS_SCENARIOS)
async def test_the_readiness_is_in_the_document(title) -> None:
    async def printed_for(_: str) -> str:
        async with Stage(*nodes(), *gang("train")) as stage:
            await READINESS_SCENARIOS[title](stage)
            checks = stage.extender_service.checks()
        ready = all(check.ok for check in checks)
        encoded = msgspec.json.encode(Health(ready=ready, checks=list(checks)))
        return msgspec.json.format(encoded, indent=2).decode()

    await READINESS.compare(title, printed_for)


def test_each_readiness_check_is_in_the_document() -> None:
    names = re.findall(r'ReadinessCheck\(\s*"(\w+)"', inspect.getsource(ExtenderService))
    rows = re.findall(r"^\| `(\w+)` \|", READINESS.paths()[0].read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(set(names))


def test_the_document_has_no_other_section() -> None:
    assert sorted(DOCUMENT.titles()) == sorted([*SCENARIOS, *OWN_PASSES, NO_ANSWER])


def test_the_tree_leads_to_each_page() -> None:
    """Every page of an outcome is linked from the start page, once or more, and no link leads to another file."""
    linked = re.findall(r"\]\(pending/([a-z-]+\.md)\)", TREE.read_text())
    assert set(linked) == {path.name for path in DOCUMENT.paths()}


def test_every_rule_of_trees_has_an_output() -> None:
    """Each text of a broken rule of a tree or of a group's parents is in an output."""
    source = ast.parse(inspect.getsource(pod_groups))
    texts = {
        text
        for node in ast.walk(source)
        if isinstance(node, ast.FunctionDef) and "TreeProblem(" in ast.unparse(node)
        for text in fixed_parts(node)
    }
    outputs = DOCUMENT.outputs()
    short = {" names ", " has ", "", ": "}  # not the longest part of a text of its own
    missing = {text for text in texts - short if not any(text.strip() in one for one in outputs)}
    assert missing == set()


def test_every_state_has_an_output() -> None:
    """Each state of a gang is in the output of some page."""
    states = {
        m
        for one in DOCUMENT.outputs()
        for m in re.findall(r"^    \w*PodGroup \S+: (\w+),", one, re.MULTILINE)
    }
    phases = {phase for part in get_args(EffectivePhase) for phase in get_args(part)}
    assert phases - states == set()


# Modules with first lines
WRITTEN_IN = (gang_sentences, explain_service, object_explanation)
WRITTEN_BY = ("_text", "_not_found", "waits")  # ends of the names of functions


def first_lines(module) -> set[str]:
    """Return the longest fixed part of every sentence that a module makes as an answer.

    These are the texts behind `answer=`, `text=` of a finding and `link=` of details, in assignments to `answer`, `words` and
    `hint`, in refusals in the present, and in returns of the functions `WRITTEN_BY`.
    """
    values: list[ast.AST] = []
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call):
            finding = ast.unparse(node.func) in ("Finding", "msgspec.structs.replace")
            names = ("answer", "link", "text") if finding else ("answer", "link")
            values += (keyword.value for keyword in node.keywords if keyword.arg in names)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            if {ast.unparse(target) for target in targets} & {"answer", "words", "hint", "NOW"}:
                values.append(node.value)
        if isinstance(node, ast.FunctionDef) and node.name.endswith(WRITTEN_BY):
            returns = (inner for inner in ast.walk(node) if isinstance(inner, ast.Return))
            values += (inner.value for inner in returns if inner.value is not None)
    return {text for value in values for text in texts_in(value)}


def texts_in(value: ast.AST) -> set[str]:
    """Return the longest fixed part of every f-string, and every other string, of an expression."""
    parts = {
        id(part) for n in ast.walk(value) if isinstance(n, ast.JoinedStr) for part in ast.walk(n)
    }
    strings = (n for n in ast.walk(value) if isinstance(n, ast.Constant) and id(n) not in parts)
    return fixed_parts(value) | {n.value for n in strings if isinstance(n.value, str)}


# What a tree with a place waits for: listed in the pages, after the first lines.
PAUSES = {"it pauses ", "the pause before its next search for victims ends at "}
# Not in a first line of a page: the rest of a tree, in a condition or an Event; a refusal without a reason; the check of
# a preemption whose victims are gone; the capacity of a node that has none; a wish that a gang placed anew would reach; a pause.
ELSEWHERE = {
    "the rest of ", "no reason is known", "all victims are gone", "nothing is known", "fits now; ",
    " is free for all of it now", " are free for all of it now", *PAUSES,
}  # fmt: skip


def test_every_pause_is_in_a_page() -> None:
    """Both are written by `explain`, and a page has what they follow from."""
    assert first_lines(object_explanation) >= PAUSES
    pages = [path.read_text() for path in DOCUMENT.paths()]
    assert all(any(f"*{pause}" in page for page in pages) for pause in PAUSES)


def test_every_first_line_has_a_section() -> None:
    """Every sentence that `explain` can begin with is the first line of an output in a document."""
    outputs = (
        DOCUMENT.first_lines()
        + DocumentOutputs("how-to/node-groups.md", "gang-extender explain").first_lines()
    )
    missing = {
        text
        for module in WRITTEN_IN
        for text in first_lines(module) - ELSEWHERE
        if not any(text.strip() in line for line in outputs)
    }
    assert missing == set()
