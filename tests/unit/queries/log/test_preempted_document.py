"""docs/troubleshooting/my-gang-was-preempted.md: a section for each way that it can end, with the paragraph as it is printed."""

from __future__ import annotations

import ast
import inspect

import msgspec
import pytest

from extender.core.model.errors import NotFound
from extender.queries.log import preemption_report as paragraph
from extender.queries.log.preemption_dto import (
    AlternativeLine,
    EvictedPodLine,
    PreemptionLine,
    UnitLine,
)
from extender.queries.log.preemption_report import (
    PreemptionQuery,
    preemption_paragraph,
    preemptions,
)
from tests.support.document_outputs import DocumentOutputs, fixed_parts
from tests.support.logs.fake_store import FakeEventQueries
from tests.support.service.manifest_builders import RACK, a_node, a_pod
from tests.unit.control.actuators.test_evictor import ONE, lows, preemptor_tree, runs
from tests.unit.control.admission.test_preemption_policy import leading, settled

DOCUMENT = DocumentOutputs(
    "troubleshooting/my-gang-was-preempted.md", "gang-extender explain --why-preempted"
)

LINE = PreemptionLine(
    preemption="p",
    position=17,
    planned="2026-11-24T03:12:05.120000Z",
    preemptor="PodGroup/prod/serve",
    preemptor_uid="u",
    priority=1000,
    victims=[
        UnitLine(
            unit="PodGroup/research/train",
            priority=10,
            pods=[
                EvictedPodLine(pod=f"research/train-{n}", node=f"n{n}", group="train")
                for n in range(4)
            ],
        )
    ],
    superseded=[],
    cost={},
    alternatives=[],
    placed=4,
    needed={"cpu": 64_000, "memory": 4 << 36, "nvidia.com/gpu": 32, "pods": 4},
    proved=True,
)
DONE = {"outcome": "completed", "bound": 4, "duration_ms": 12_300}
POD = UnitLine(
    unit="Pod/research/sweep-7",
    priority=0,
    pods=[EvictedPodLine(pod="research/sweep-7", node="n9", group="sweep")],
)
DEARER = AlternativeLine(
    units=("PodGroup/research/eval",),
    cost={},
    reason="costs more: 50 instead of 10 as highest priority of a victim",
)


def changed(**changes: object) -> PreemptionLine:
    return msgspec.structs.replace(LINE, **changes)


# title -> the preemption, and the name of the owner's pod or group
SCENARIOS = {
    "a whole gang": (changed(**DONE, alternatives=[DEARER]), "research/train"),
    "one pod of a gang": (changed(**DONE, victims=[*LINE.victims, POD]), "research/sweep-7"),
    "not ended yet": (changed(proved=False), "research/train-2"),
    "cancelled": (
        changed(
            outcome="cancelled",
            reason="preemptor-deleted",
            message="1 victim evicted",
            ended="2026-11-24T03:12:09.000000Z",
        ),
        "research/train",
    ),
    "taken over": (
        changed(
            outcome="cancelled",
            reason="taken-over",
            taken_over_by="PodGroup/prod/urgent",
            ended="2026-11-24T03:12:09.000000Z",
        ),
        "research/train",
    ),
    "spared": (
        changed(**DONE, victims=[msgspec.structs.replace(LINE.victims[0], spared=True)]),
        "research/train",
    ),
    "only reservations": (
        changed(**DONE, victims=[], superseded=["research/train"]),
        "research/train",
    ),
}


@pytest.mark.parametrize("title", SCENARIOS)
async def test_the_paragraph_is_in_the_document(title: str) -> None:
    line, victim = SCENARIOS[title]

    async def printed_for(name: str) -> str:
        assert name == victim
        return preemption_paragraph(line, victim)

    await DOCUMENT.compare(title, printed_for)


def test_members_of_one_gang_are_named_once() -> None:
    second = msgspec.structs.replace(POD, unit="Pod/research/sweep-8")
    text = preemption_paragraph(changed(**DONE, victims=[POD, second]), "research/sweep")
    assert text.count("whose disruption mode *single* lets one pod be evicted") == 1
    assert "2 pods are members of PodGroup sweep" in text


def test_the_document_has_no_other_section() -> None:
    assert DOCUMENT.titles() == [*SCENARIOS]


def test_every_first_sentence_has_a_section() -> None:
    """What the paragraph can begin with, when a victim asks, is in one of the outputs."""
    found = {
        part
        for function in (paragraph._who, paragraph._released)
        for part in fixed_parts(ast.parse(inspect.getsource(function)))
    }
    lines = DOCUMENT.first_lines()
    missing = {part for part in found if not any(part.strip() in line for line in lines)}
    assert missing == {" was planned without evictions."}, "without a victim's name only"


async def test_a_paragraph_from_the_log() -> None:
    """Asked for by a pod, by its group, and by a group that only lost reservations; weights are never there."""
    nodes = [a_node(f"n{n}", {RACK: f"r{n // 2}"}, gpu=1) for n in range(4)]
    hi, *members = preemptor_tree()
    hi["spec"]["schedulingConstraints"] = {"topology": [{"key": RACK}]}
    dear = [a_pod(f"dear-{n}", node=f"n{n}", requests=ONE, priority=5) for n in (2, 3)]
    async with await leading(*nodes, *dear, *lows("n0", "n1"), hi, *members) as stage:
        await settled(stage)
        stage.clock.advance(2)
        stage.cluster.delete_pod("low-0")
        stage.cluster.delete_pod("low-1")
        await settled(stage, 2)
        await runs(stage)
        reader = FakeEventQueries(stage.database)
        for victim in ("default/low-1", "default/low"):
            (line,) = (await preemptions(reader, PreemptionQuery(victim=victim))).lines
            text = line.explanation
            assert text.startswith(
                "PodGroup default/low (priority 0), with 2 pods, was evicted on "
            )
            assert "for PodGroup default/hi (priority 10)." in text
            assert (
                "PodGroup default/hi needed a place for 2 pods with nvidia.com/gpu 2 in all" in text
            )
            assert "has the disruption mode *all*" in text
            assert "Examined and not taken: Pod default/dear-" in text
            assert text.endswith("2 pods of PodGroup default/hi are bound.")
            assert str(2**31) not in text
        with pytest.raises(
            NotFound, match="victim default/none: the log has no preemption of a pod"
        ):
            await preemptions(reader, PreemptionQuery(victim="default/none"))
