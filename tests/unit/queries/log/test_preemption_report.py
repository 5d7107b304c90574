"""What `gang-extender preemptions` and GET /v1/preemptions return, read from the log of a running service."""

from __future__ import annotations

import re

import msgspec
import pytest

from extender.cli.commands.preemptions_command import _print
from extender.core.log.events import PreemptionPlanned
from extender.core.model.errors import NotReady, StoreUnavailable
from extender.core.model.visibility import EVERYTHING, Visibility, is_hidden
from extender.core.verbs.preempt_verb import NodeCandidate
from extender.queries.log.decision_replay import replay_decision
from extender.queries.log.preemption_report import PreemptionQuery, preemptions
from extender.queries.log.reports import check_report_query, report
from tests.support.logs.example_log import at, tuesday
from tests.support.logs.fake_store import FakeDatabase, FakeEventLog, FakeEventQueries
from tests.support.logs.reference_reports import FakeReportQueries
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import RACK, a_node, a_pod
from tests.unit.control.actuators.test_evictor import ONE, lows, preemptor_tree, runs
from tests.unit.control.admission.test_preemption_policy import leading, settled


async def lines_of(stage, **wanted):
    return (await preemptions(FakeEventQueries(stage.database), PreemptionQuery(**wanted))).lines


async def test_a_preemption_from_its_plan_to_its_end(capsys):
    """Who, whom, why this set and not another, when each was gone, whether the preemptor ran, how long it took."""
    nodes = [a_node(f"n{n}", {RACK: f"r{n // 2}"}, gpu=1) for n in range(4)]
    hi, *members = preemptor_tree()
    hi["spec"]["schedulingConstraints"] = {"topology": [{"key": RACK}]}
    dear = [a_pod(f"dear-{n}", node=f"n{n}", requests=ONE, priority=5) for n in (2, 3)]
    async with await leading(*nodes, *dear, *lows("n0", "n1"), hi, *members) as stage:
        await settled(stage)
        (line,) = await lines_of(stage)
        assert line.outcome == "pending"
        assert [pod.gone for unit in line.victims for pod in unit.pods] == ["", ""]
        stage.clock.advance(2)
        stage.cluster.delete_pod("low-0")
        stage.cluster.delete_pod("low-1")
        await settled(stage, 2)
        await runs(stage)
        (line,) = await lines_of(stage)
        assert (line.preemptor, line.priority) == ("PodGroup/default/hi", 10)
        assert (line.outcome, line.bound) == ("completed", 2)
        assert line.duration_ms >= 2_000
        (unit,) = line.victims
        assert (unit.unit, unit.priority, unit.spared) == ("PodGroup/default/low", 0, False)
        assert [(p.pod, p.via, bool(p.requested), bool(p.gone)) for p in unit.pods] == [
            ("default/low-0", "deleted", True, True),
            ("default/low-1", "deleted", True, True),
        ]
        assert line.alternatives
        assert all(other.reason for other in line.alternatives)
        _print(line)
        text = capsys.readouterr().out
        assert "PodGroup/default/hi (priority 10): completed after" in text
        assert "default/low-1" in text
        cost = r"  cost: highest priority 0, gangs broken 1, lost \S+ GPU-hours, sum of priorities 0, units 1, pods 2"
        assert re.search(cost, text), text
        assert line.victims[0].lost_min == line.cost["lost_min"]
        assert "Lost: " in line.explanation
        assert "  not Pod/default/dear-" in text
        assert not line.in_vain
        stage.clock.advance(5)
        for pod in [p for p in stage.cluster.seen.pods.values() if p.name.startswith("hi")]:
            stage.cluster.delete_pod(pod.name)
        await settled(stage, 2)
        (line,) = await lines_of(stage)
        assert re.fullmatch(r"the preemptor ran for [5-9] s", line.in_vain)


async def test_questions_by_victim_preemptor_and_time():
    """A victim is named by pod or by the group of its unit; what does not match is left out."""
    nodes = [a_node(f"n{n}", gpu=1) for n in range(2)]
    async with await leading(*nodes, *lows("n0", "n1"), *preemptor_tree()) as stage:
        await settled(stage)
        for victim in ("default/low-0", "default/low"):
            assert len(await lines_of(stage, victim=victim)) == 1, victim
        assert not await lines_of(stage, victim="default/hi")
        assert len(await lines_of(stage, preemptor="default/hi")) == 1
        assert not await lines_of(stage, preemptor="default/low")
        assert not await lines_of(stage, since_us=stage.clock.now_us() + 1_000_000)


async def test_a_recorded_preemption_can_be_decided_again():
    """The stored input gives the same victims and the same nodes."""
    nodes = [a_node(f"n{n}", gpu=1) for n in range(2)]
    async with await leading(*nodes, *lows("n0", "n1"), *preemptor_tree()) as stage:
        await settled(stage)
        event = next(e for e in stage.events() if isinstance(e.data, PreemptionPlanned))
        stored = await stage.inputs.load(event.data.input_digest)
        again = replay_decision(event.position, event.data, stored)
        assert again.same, again.differences
        assert again.recorded == again.now == "1 unit evicted, 2 placed"


async def test_a_lone_pods_preemption_can_be_decided_again():
    """The preempt verb stores what it chose among: the same unit, node and cost, and a difference is reported."""
    nodes = [a_node(f"n{n}", gpu=1) for n in range(3)]
    dear = a_pod("dear", node="n2", requests=ONE, priority=50)
    vip = a_pod("vip", requests=ONE, priority=100)
    async with Stage(*nodes, *lows("n0", "n1"), dear, vip) as stage:
        await stage.lead()
        await stage.one_pass()
        uid = {pod.name: pod.uid for pod in stage.cluster.seen.pods.values()}
        offered = [
            NodeCandidate(node=node, victims=(uid[name],))
            for node, name in {"n0": "low-0", "n2": "dear"}.items()
        ]
        await stage.extender_service.preempt(stage.cluster.pod("vip"), offered)
        event = next(e for e in stage.events() if isinstance(e.data, PreemptionPlanned))
        stored = await stage.inputs.load(event.data.input_digest)
        again = replay_decision(event.position, event.data, stored)
        assert again.same, again.differences
        assert again.recorded == again.now == "1 unit evicted, 1 placed"
        other = msgspec.structs.replace(event.data, victims=())
        assert replay_decision(event.position, other, stored).differences == (
            "PodGroup/default/low: evicted now",
        )


async def test_the_verb_answers_nothing_when_its_input_cannot_be_stored():
    """No input, no event, no victim: kube-scheduler gets an error and asks again."""
    nodes = [a_node(f"n{n}", gpu=1) for n in range(2)]
    async with Stage(*nodes, *lows("n0", "n1"), a_pod("vip", requests=ONE, priority=100)) as stage:
        await stage.lead()
        await stage.one_pass()

        async def refuses(_decision):
            raise StoreUnavailable("no capacity on the disk")

        stage.inputs.save = refuses
        offered = [NodeCandidate(node="n0", victims=(stage.cluster.pod("low-0").uid,))]
        with pytest.raises(NotReady, match="append did not happen"):
            await stage.extender_service.preempt(stage.cluster.pod("vip"), offered)
        assert not stage.event_data(PreemptionPlanned)
        assert not stage.leader.pending_state.preemptions


async def test_lost_work_has_the_names_of_the_callers_namespaces_only():
    """A row is about victims and preemptors: who sees one side gets no name of the other."""
    database = FakeDatabase()
    log = FakeEventLog(database)
    grant = await log.take(holder="a", address="", ttl_ms=60_000)
    await log.append(grant, tuesday(grant))
    asked = check_report_query(
        "lost-work", now_us=at("23:00:00"), since_us=at("00:00:00"), until_us=at("23:00:00")
    )
    rows = {}
    for readers in (EVERYTHING, Visibility.of(("team-b",)), Visibility.of(("research",))):
        given = await report(
            FakeReportQueries(database), FakeEventQueries(database), asked, readers
        )
        rows[readers] = [(row["namespace"], row["preemptor_namespace"]) for row in given.rows]
    every, victims, others = rows.values()
    assert every == [("team-b", "team-a")]
    ((shown, hidden),) = victims
    assert shown == "team-b"
    assert is_hidden(hidden)
    assert not others or all(is_hidden(name) for row in others for name in row)
