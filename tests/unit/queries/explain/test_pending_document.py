"""docs/my-gang-is-pending.md: a section for each first line, with the output of `gang-extender explain` as it is."""

from __future__ import annotations

import pytest

from extender.cli.commands.explain_command import print_explanation
from extender.core.model.errors import NotFound
from tests.support.document_outputs import DocumentOutputs
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_group, a_node, a_pod
from tests.unit.control.actuators.test_evictor import lows, preemptor_tree
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
    await stage.settled()  # its end is looked up first, then recorded


async def nothing_more(stage: Stage) -> None:
    await stage.settled()


GATED = [{"name": "kueue.x-k8s.io/admission"}]
OTHERS = [a_pod(f"other-{n}", node=f"n{n}", requests=WHOLE) for n in (0, 2)]
# title of the section -> objects, what happens, settings
SCENARIOS = {
    "it names no group": ([a_pod("alone")], nothing_more, {}),
    "does not exist": ([a_group("serve-prefill"), a_pod("p", "serve-prefil")], nothing_more, {}),
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
    "can never be placed": (gang("train", 5), nothing_more, {}),
    "does not fit now": ([*OTHERS, *gang("train", topo=RACK)], nothing_more, {}),
    "it fits only when": (
        [*lows("n0", "n1"), *preemptor_tree()],
        nothing_more,
        {"preemption": False},
    ),
    "waits for victims of its preemption": (
        [*lows("n0", "n1"), *preemptor_tree()],
        nothing_more,
        {},
    ),
    "has its capacity reserved": (gang("train"), nothing_more, {}),
    "runs": (gang("train"), runs, {}),
    "is degraded": (gang("train"), loses_one, {}),
    "nothing is called": (gang("train"), nothing_more, {}),
}


async def output_of(title: str, name: str, capsys) -> str:
    """Return what `gang-extender explain` prints in a scenario."""
    objects, happens, settings = SCENARIOS[title]
    small = [a_node(f"n{n}", {RACK: f"r{n}"}, gpu=1) for n in range(2)]
    fleet = small if any(o["metadata"]["name"] == "low" for o in objects) else nodes()
    async with Stage(*fleet, *objects, **settings) as stage:
        await stage.lead()
        await happens(stage)
        await stage.settled()
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
