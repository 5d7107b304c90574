"""What a decision rested on, over HTTP and from the history: inputs that the service recorded itself."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from extender.cli.commands.history_commands import print_line
from extender.composition import read_wire_pod
from extender.core.log.events import GangAdmitted, PreemptionPlanned
from extender.core.model.ids import PlanId
from extender.core.planner.codec.request_codec import BUCKETS
from extender.http.responses.json_responses import problems
from extender.http.responses.request_visibility import BODY
from extender.http.scheduler.verb_handlers import VerbHandlers
from extender.http.v1.explain_api import ExplainApi
from extender.http.v1.gang_api import GangApi, TreeApi
from extender.http.v1.history_api import HistoryApi
from extender.queries.explain.explain_service import ExplainService
from extender.queries.log.gang_history import HistoryQuery, history
from tests.support.logs.fake_store import FakeEventQueries
from tests.support.service.fake_workloads import labels_of
from tests.support.service.fakes import Stage
from tests.support.service.live_plans import live_plans
from tests.support.service.manifest_builders import RACK, a_gang, a_node, a_pod
from tests.unit.control.actuators.test_evictor import ONE, lows, preemptor_tree

NODES = [a_node(f"n{n:03}", {RACK: f"r{n % 7}"}, gpu=1) for n in range(300)]


@web.middleware
async def with_body(request, handler):
    """Read the body as the limits of the server do; they have tests of their own."""
    request[BODY] = await request.read()
    return await handler(request)


@asynccontextmanager
async def asking(stage, *workloads):
    """Serve the verbs and the questions of a stage and of these workloads; yield a client."""
    reader = FakeEventQueries(stage.database)
    app = web.Application(middlewares=[problems, with_body])
    for part in (
        VerbHandlers(stage.extender_service, stage.leader, read_wire_pod, forwarder=None),
        HistoryApi(reader, stage.inputs),
        GangApi(reader, stage.inputs, stage.leader, labels_of(stage, *workloads)),
        TreeApi(stage.leader, labels_of(stage, *workloads)),
        ExplainApi(
            ExplainService(stage.cluster, stage.leader, stage.clock, live_plans(stage).plan_live),
            past=None,
        ),
    ):
        app.add_routes(part.routes())
    async with TestClient(TestServer(app)) as client:
        yield client


async def got(client, path):
    async with client.get(path) as reply:
        body = await reply.json(content_type=None)
        assert reply.status == 200, body
        return body


def position_of(stage, kind):
    (event,) = [e for e in stage.events() if isinstance(e.data, kind)]
    return event.position


@asynccontextmanager
async def preempted_by_the_verb():
    """A whole gang of three is taken by kube-scheduler's preempt verb for the pod `vip`; yield stage and client."""
    dear = a_pod("dear", node="n3", requests=ONE, priority=50)
    vip = a_pod("vip", requests=ONE, priority=100)
    nodes = [a_node(f"n{n}", gpu=1) for n in range(4)]
    async with Stage(*nodes, *lows("n0", "n1", "n2"), dear, vip) as stage:
        await stage.lead()
        await stage.one_pass()
        async with asking(stage) as client:
            pods = {
                node: stage.cluster.pod(name) for node, name in (("n0", "low-0"), ("n3", "dear"))
            }
            offered = {
                node: {"Pods": [{"UID": pod.uid}], "NumPDBViolations": 0}
                for node, pod in pods.items()
            }
            asked = stage.cluster.pod("vip")
            pod = {"metadata": {"name": "vip", "namespace": "default", "uid": asked.uid},
                   "spec": {"containers": [], "priority": 100}}  # fmt: skip
            body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": offered}
            async with client.post("/scheduler/preempt", json=body) as reply:
                assert reply.status == 200
                assert list((await reply.json())["NodeNameToMetaVictims"]) == ["n0"]
            yield stage, client


async def test_a_decision_of_the_preempt_verb_has_its_input_in_numbers():
    """One pod waits, two nodes were offered, and on them a unit of three pods and a lone pod could go."""
    async with preempted_by_the_verb() as (stage, client):
        found = await got(client, f"/v1/decisions/{position_of(stage, PreemptionPlanned)}")
        assert found["event"]["type"] == "PreemptionPlanned"
        asked = found["decision"]["input"]
        assert asked["stored"]
        assert (asked["nodes"], asked["waiting"], asked["bound"]) == (2, 1, 0)
        assert (asked["evictable"], asked["evictable_pods"]) == (2, 4)
        plan = stage.event_data(PreemptionPlanned)[0].preemption
        assert (await got(client, f"/v1/decisions/{plan}"))["decision"] == found["decision"]


async def test_the_history_of_a_victim_of_the_preempt_verb_has_its_decisions(capsys):
    """Every event about the gang is there, and the decision of the verb among them, over HTTP and on the command line."""
    async with preempted_by_the_verb() as (stage, client):
        lines = await got(client, "/v1/gangs/default/low/history?decisions=true")
        decided = {line["type"]: line["decision"] for line in lines if line.get("decision")}
        assert decided["PreemptionPlanned"]["input"]["nodes"] == 2
        reader = FakeEventQueries(stage.database)
        found = await history(
            reader, stage.inputs, HistoryQuery(gang="default/low", decisions=True)
        )
        for line in found.lines:
            print_line(line, found.gang)
        text = capsys.readouterr().out
        assert "1 waiting and 0 bound members of 0 groups, 2 nodes" in text
        assert "2 units (4 pods) that could be evicted" in text


async def test_the_explanation_of_a_lone_preemptor_has_the_decision():
    """`explain` reads the newest answer, whichever verb gave it; a victim's own newest answer is not the verb's."""
    async with preempted_by_the_verb() as (_, client):
        found = await got(client, "/v1/gangs/default/low/explain")
        assert found["gang"]["gang"] == "default/low"
        assert found["event"] is None


async def test_nodes_are_counted_once_and_parts_about_units_are_not_nodes():
    """300 nodes beside 297 units in parts of their own are 300 nodes; units and their pods are counted apart."""
    gangs = [
        o
        for n in range(99)
        for o in lows(*(f"n{3 * n + i:03}" for i in range(3)), group=f"low-{n:02}", whole=n < 50)
    ]
    hi, *members = preemptor_tree(pods=3)
    hi["spec"]["schedulingConstraints"] = {"topology": [{"key": RACK}]}
    async with Stage(*NODES, *gangs, hi, *members) as stage, asking(stage) as client:
        await stage.lead()
        await stage.settled()
        (entry,) = stage.event_data(PreemptionPlanned)
        stored = await stage.inputs.load(entry.input_digest)
        assert len(stored.parts) > 2 * BUCKETS  # units have parts of their own
        found = await got(client, f"/v1/decisions/{position_of(stage, PreemptionPlanned)}")
        asked = found["decision"]["input"]
        assert asked["nodes"] == 300
        assert asked["waiting"] == 3
        assert asked["groups"] == 1
        assert asked["evictable"] == 50 + 49 * 3  # 50 gangs go whole, pods of the others alone
        assert asked["evictable_pods"] == 297


async def test_an_admission_without_victims_has_no_units():
    """A plan that was found at once rests on nodes alone."""
    async with Stage(*NODES, *a_gang("g", pods=4)) as stage, asking(stage) as client:
        await stage.lead()
        await stage.settled()
        asked = await got(client, f"/v1/decisions/{position_of(stage, GangAdmitted)}")
        asked = asked["decision"]["input"]
        assert (asked["nodes"], asked["waiting"], asked["groups"]) == (300, 4, 1)
        assert (asked["evictable"], asked["evictable_pods"]) == (0, 0)


@pytest.mark.parametrize("what", ["head", "part"])
async def test_a_damaged_input_is_still_a_corrupt_log(what):
    """Bytes that are no input are a 500 that names the digest, not numbers made up."""
    async with preempted_by_the_verb() as (stage, client):
        (entry,) = stage.event_data(PreemptionPlanned)
        assert entry.preemption != PlanId("")
        stored = stage.database.inputs[entry.input_digest]
        changed = (
            {"head": b"[]"} if what == "head" else {"parts": (b'["units"]', *stored.parts[1:])}
        )
        stage.database.inputs[entry.input_digest] = type(stored)(
            **{f: getattr(stored, f) for f in stored.__struct_fields__} | changed
        )
        async with client.get(f"/v1/decisions/{position_of(stage, PreemptionPlanned)}") as reply:
            assert reply.status == 500
            assert entry.input_digest in await reply.text()


async def test_a_search_has_kinds_and_names_and_refuses_what_it_cannot_answer():
    async with Stage(a_node("n-low"), *a_gang("low", pods=1)) as stage:
        await stage.lead()
        await stage.one_pass()
        async with asking(stage) as client:
            found = await got(client, "/v1/search?q=LOW")
            assert [(f["kind"], f["name"]) for f in found["found"]] == [
                ("PodGroup", "default/low"),
                ("Pod", "default/low-0"),
                ("Node", "n-low"),
            ]
            assert (await got(client, "/v1/search?q=low&limit=1"))["more"]
            for query, words in (
                ("", "query parameter q: has 0 characters"),
                ("?q=%20", "query parameter q: has 0 characters"),
                (f"?q={'x' * 601}", "query parameter q: has 601 characters"),
                ("?q=a&limit=201", "query parameter limit: '201' is not"),
                ("?q=a&kind=Pod", "query parameter kind: not known"),
            ):
                async with client.get(f"/v1/search{query}") as reply:
                    assert reply.status == 400
                    assert words in (await reply.json())["detail"]
