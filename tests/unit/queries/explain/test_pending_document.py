"""docs/my-gang-is-pending.md: a section for each first line, with the output of `gang-extender explain` as it is."""

from __future__ import annotations

import ast
import inspect

import pytest

from extender.cli.commands.explain_command import print_explanation
from extender.core.decisions.admit import gang_sentences
from extender.core.decisions.admit.plan_request import GATE
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
from extender.core.model.errors import NotFound
from extender.core.model.ids import NIL_GANG
from extender.core.model.pods import SUCCEEDED, PodEnd
from extender.core.workloads.tree_compiler import GroupSpec
from extender.queries.explain import explain_service, gang_checks, member_checks
from tests.support.document_outputs import DocumentOutputs, fixed_parts
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_group, a_node, a_pod
from tests.unit.control.actuators.test_evictor import lows, preemptor_tree
from tests.unit.core.decisions.admit.test_native_gang_scheduling import NEW
from tests.unit.queries.explain.test_explain_service import explaining

DOCUMENT = DocumentOutputs("my-gang-is-pending.md", "gang-extender explain")
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


# title of the section -> objects, what happens, settings
SCENARIOS = {
    "it names no group": ([a_pod("alone")], nothing_more, {}),
    "does not exist": ([a_group("serve-prefill"), a_pod("p", "serve-prefil")], nothing_more, {}),
    "does not exist any more": (gang("train"), is_deleted, {}),
    "is being made for its workload": ([], is_compiled, {}),
    "has no groups": ([], is_refused, {}),
    "is not scheduled": ([a_group("leaf", parent="tree"), a_pod("p", "leaf")], nothing_more, {}),
    "is not valid": ([a_group("train", gang=2), a_pod("p", "train", priority=7)], nothing_more, {}),
    "waits for members": (
        [a_group("train", gang=3), a_pod("train-0", "train", requests=WHOLE)],
        nothing_more,
        {},
    ),
    "waits for members: other scheduling gates": (
        gang("train", schedulingGates=GATED),
        nothing_more,
        {},
    ),
    "waits for child groups": (tree(3, "left", "right"), nothing_more, {}),
    "waits: with its own group scheduling on": (
        [
            a_group("train", gang=2, version=NEW),
            a_pod("train-0", schedulingGroup={"podGroupName": "train"}),
        ],
        kube_scheduler_schedules_groups,
        {},
    ),
    "is a child group of": (tree(2, "left", "right"), nothing_more, {}),
    "can never be placed": (gang("train", 5), nothing_more, {}),
    "does not fit now": ([*OTHERS, *gang("train", topo=RACK)], nothing_more, {}),
    "may fit or not": (
        [*BEHIND, a_pod("other", node="n0", requests=WHOLE), *gang("train", 1)],
        a_node_is_rejected,
        {"preemption": False},
    ),
    "it fits only when": (
        [*lows("n0", "n1"), *preemptor_tree()],
        nothing_more,
        {"preemption": False},
    ),
    "fits now and is about to be admitted": (
        [*OTHERS, *gang("train", topo=RACK)],
        capacity_becomes_free,
        {},
    ),
    "waits for victims of its preemption": (
        [*lows("n0", "n1"), *preemptor_tree()],
        nothing_more,
        {},
    ),
    "has its capacity reserved": (gang("train"), nothing_more, {}),
    "still have our gate": (gang("train", schedulingGates=OURS), nothing_more, {}),
    "runs": (gang("train"), runs, {}),
    "an extra member": ([*BEHIND, *gang("train", 3, minimum=2)], runs, {}),
    "a child group beyond the minimum": ([*BEHIND, *tree(1, "left", "right")], nothing_more, {}),
    "has ended": (gang("train"), succeeds, {}),
    "is degraded": (gang("train"), loses_one, {}),
    "was preempted": ([*lows("n0", "n1"), *preemptor_tree()], is_preempted, {}),
    "is suspended": (gang("train"), is_suspended, {}),
    "nothing is called": (gang("train"), nothing_more, {}),
    "nothing is called: nothing similar either": (gang("train"), nothing_more, {}),
    "Node": ([*OTHERS, *gang("train")], nothing_more, {}),
}


async def output_of(title: str, name: str, capsys) -> str:
    """Return what `gang-extender explain` prints in a scenario."""
    objects, happens, settings = SCENARIOS[title]
    small = [a_node(f"n{n}", {RACK: f"r{n}"}, gpu=1) for n in range(2)]
    fleet = small if any(o["metadata"]["name"] == "low" for o in objects) else nodes()
    async with Stage(*fleet, *objects, **settings) as stage:
        await stage.lead()
        await stage.settled()
        await happens(stage)
        try:
            found = await explaining(stage)(name)
        except NotFound as error:
            return f"gang-extender: {error}\n"
    capsys.readouterr()
    print_explanation(found)
    return str(capsys.readouterr().out)


@pytest.mark.parametrize("title", SCENARIOS)
async def test_the_output_is_in_the_document(title, capsys) -> None:
    async def printed_for(name: str) -> str:
        printed = await output_of(title, name, capsys)
        assert title.partition(":")[0] in printed.splitlines()[0]
        return printed

    await DOCUMENT.compare(title, printed_for)


def test_the_document_has_no_other_section() -> None:
    assert DOCUMENT.titles() == [*SCENARIOS]


# Modules with first lines, and parts of them that stand for another sentence.
WRITTEN_IN = (gang_sentences, gang_checks, member_checks, explain_service)
COMPOSED = {": ", " is ", "; "}  # a workload or pod before the sentence about its gang; a clause


def first_lines(module) -> set[str]:
    """Return the longest fixed part of every sentence that a module makes as an answer.

    These are the f-strings behind `answer=`, in assignments to `answer`, and in returns of functions `..._answer`,
    `answer` and `_not_found`.
    """
    found: set[str] = set()

    def note(value: ast.AST | None) -> None:
        if value is not None:
            found.update(fixed_parts(value))

    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "answer":
                    note(keyword.value)
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id in ("answer", "words")
            for target in node.targets
        ):
            note(node.value)
        if isinstance(node, ast.FunctionDef) and (
            node.name.endswith("answer") or node.name == "_not_found"
        ):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return):
                    note(inner.value)
    return found - COMPOSED - {""}


# Not first lines of `explain`: what a condition or an Event has of a tree whose rest waits.
ELSEWHERE = {"the rest of "}


def test_every_first_line_has_a_section() -> None:
    """Every sentence that `explain` can begin with is the first line of an output in a document."""
    outputs = (
        DOCUMENT.first_lines()
        + DocumentOutputs("node-groups.md", "gang-extender explain").first_lines()
    )
    missing = {
        text
        for module in WRITTEN_IN
        for text in first_lines(module) - ELSEWHERE
        if not any(text.strip() in line for line in outputs)
    }
    assert missing == set()
