"""What goes over the wire to kube-scheduler: recorded calls of a real one, and calls that no client should send."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import jsonschema
import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from extender.composition import read_wire_pod
from extender.core.model.errors import RequestRejected
from extender.http.listener.tls_contexts import TlsContexts
from extender.http.scheduler import wire
from extender.http.scheduler.leader_proxy import LeaderProxy
from extender.http.scheduler.verb_handlers import VerbHandlers
from extender.http.v1.event_api import EventApi
from extender.http.v1.gang_api import GangApi, TreeApi
from extender.http.v1.history_api import HistoryApi
from extender.http.v1.plan_api import PlanApi
from extender.http.v1.state_api import LiveNodeApi
from extender.http.web.health import Probes
from extender.http.web.request_limits import ClusterSize
from extender.http.web.server import ApplicationParts, applications
from extender.queries.log.event_stream import EventStream
from extender.queries.state.node_inventory import NodeInventory
from extender.runtime.system_clock import SystemClock
from tests.support.hypothesis_profile import examples
from tests.support.logs.fake_store import FakeDecisionInputs, FakeEventLog, FakeEventQueries
from tests.support.service.fake_workloads import labels_of
from tests.support.service.fakes import Stage, status_api
from tests.support.service.manifest_builders import (
    GPU,
    GROUP_LABEL,
    RACK,
    a_gang,
    a_group,
    a_node,
    a_pod,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "wire"
MODES = ("node-names", "full-nodes")


def recorded(mode):
    return [json.loads(line) for line in (GOLDEN / f"{mode}.jsonl").read_text().splitlines()]


def _nodes_of(mode):
    """Return every node name the recording mentions."""
    names = set()
    for call in recorded(mode):
        request = call["request"]
        names |= set(request.get("NodeNames") or ())
        names |= {n["metadata"]["name"] for n in (request.get("Nodes") or {}).get("items") or ()}
        names |= {request["Node"]} if "Node" in request else set()
    return sorted(names)


STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
FILTER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["NodeNames", "Nodes", "FailedNodes", "FailedAndUnresolvableNodes", "Error"],
    "properties": {
        "NodeNames": {"type": ["array", "null"], "items": {"type": "string"}},
        "Nodes": {"type": ["object", "null"], "required": ["items"],
                  "properties": {"items": {"type": "array"}}},
        "FailedNodes": {"type": "object", "maxProperties": 0},
        "FailedAndUnresolvableNodes": STRINGS,
        "Error": {"type": "string"},
    },
}  # fmt: skip
PRIORITIZE = {
    "type": "array",
    "items": {
        "type": "object", "additionalProperties": False, "required": ["Host", "Score"],
        "properties": {"Host": {"type": "string"},
                       "Score": {"type": "integer", "minimum": 0, "maximum": 10}},
    },
}  # fmt: skip
BIND = {
    "type": "object", "additionalProperties": False, "required": ["Error"],
    "properties": {"Error": {"type": "string"}},
}  # fmt: skip
VICTIMS = {
    "type": "object", "additionalProperties": False, "required": ["Pods", "NumPDBViolations"],
    "properties": {
        "Pods": {"type": "array", "minItems": 1, "items": {
            "type": "object", "additionalProperties": False, "required": ["UID"],
            "properties": {"UID": {"type": "string", "minLength": 1}}}},
        "NumPDBViolations": {"type": "integer"},
    },
}  # fmt: skip
PREEMPT = {
    "type": "object", "additionalProperties": False, "required": ["NodeNameToMetaVictims"],
    "properties": {"NodeNameToMetaVictims": {"type": "object", "additionalProperties": VICTIMS}},
}  # fmt: skip
SCHEMAS = {"filter": FILTER, "prioritize": PRIORITIZE, "bind": BIND, "preempt": PREEMPT}


class Served:
    """A stage behind the real aiohttp application."""

    def __init__(self, *objects, reviews=None, plan=None, **rest):
        self.stage = Stage(*objects, **rest)
        stage = self.stage
        reader = FakeEventQueries(stage.database)
        gangs = GangApi(reader, FakeDecisionInputs(stage.database), stage.leader, labels_of(stage))
        status = status_api(stage, FakeEventLog(stage.database), gangs)
        feed = EventStream(FakeEventLog(stage.database), reader)
        self.converted = []  # names of the pods of calls that were converted whole

        def read_pod(body):
            pod = read_wire_pod(body)
            self.converted.append(pod.name)
            return pod

        self.tls = TlsContexts(stage.settings, SystemClock()) if stage.settings.has_tls else None
        self.forwarder = LeaderProxy(stage.leader, stage.settings, self.tls)
        plan_api = PlanApi(
            plan, plan, plan, stage.parts.mover, stage.leader, self.forwarder.pass_on
        )
        self.apps = applications(
            ApplicationParts(
                VerbHandlers(stage.extender_service, stage.leader, read_pod, self.forwarder),
                Probes(stage.extender_service, stage.leader),
                (
                    HistoryApi(reader, FakeDecisionInputs(stage.database)),
                    gangs,
                    status,
                    TreeApi(stage.leader, labels_of(stage)),
                    EventApi(reader, feed),
                    LiveNodeApi(NodeInventory(stage.cluster), stage.leader),
                    plan_api,
                ),
                feed.stop,
                lambda: ClusterSize(
                    len(stage.cluster.view().nodes), len(stage.cluster.view().pods)
                ),
                reviews,
                lambda: [key.namespace for key in stage.cluster.view().groups],
                [*status.replica_routes(), *plan_api.replica_routes()],
            ),
            stage.settings,
            self.tls,
        )
        port = int(self.stage.settings.listen.rpartition(":")[2]) if "listen" in rest else None
        self.client = TestClient(
            TestServer(self.apps[0], port=port), headers={"Content-Type": "application/json"}
        )

    async def __aenter__(self):
        await self.client.start_server()
        return self

    async def __aexit__(self, *_):
        await self.client.close()
        await self.forwarder.close()
        await self.stage.__aexit__()

    async def ready(self):
        await self.stage.lead()
        await self.stage.one_pass()
        return self

    async def post(self, verb, body):
        async with self.client.post(f"/scheduler/{verb}", json=body) as reply:
            return reply.status, await reply.read()

    async def ask(self, verb, body):
        status, raw = await self.post(verb, body)
        assert status == 200, raw
        answer = json.loads(raw)
        jsonschema.validate(answer, SCHEMAS[verb])
        return answer


@pytest.fixture
async def served():
    async with Served(
        a_node("n0", gpu=4),
        a_node("n1", gpu=4),
        *a_gang("g", pods=2),
        a_pod("alien", requests={GPU: 4}),
    ) as made:
        yield await made.ready()


def wire_pod(stage, name):
    """Make the pod of a call as kube-scheduler sends it."""
    pod = stage.cluster.pod(name)
    body = next(
        o for o in stage.cluster.objects if o["metadata"]["name"] == name and o["kind"] == "Pod"
    )
    return {
        "metadata": {**body["metadata"], "uid": pod.uid, "namespace": pod.namespace},
        "spec": body["spec"],
        "status": {"phase": "Pending"},
    }


@pytest.mark.parametrize("mode", MODES)
async def test_every_recorded_call_is_answered_by_the_schema(mode):
    """Go field names exactly, in the mode of the request; what is offered passes or is refused with a word."""
    nodes = (a_node(name, {RACK: "r0"}, gpu=8) for name in _nodes_of(mode))
    # Without a group that looks at racks there would be no opinion about any node.
    async with Served(*nodes, a_group("with-racks", topo=RACK)) as served:
        await served.ready()
        verbs = set()
        for call in recorded(mode):
            verb, request = call["verb"], call["request"]
            verbs.add(verb)
            if verb == "preempt":  # of a pod that the informers do not know
                status, body = await served.post(verb, request)
                assert (status, b"has not been seen yet" in body) == (503, True)
                continue
            answer = await served.ask(verb, request)
            if verb == "filter":
                names_mode = request["Nodes"] is None
                offered = request["NodeNames"] if names_mode else [
                    n["metadata"]["name"] for n in request["Nodes"]["items"]]  # fmt: skip
                passed = answer["NodeNames"] if names_mode else [
                    n["metadata"]["name"] for n in answer["Nodes"]["items"]]  # fmt: skip
                assert (answer["Nodes"] is None) is names_mode
                assert (answer["NodeNames"] is not None) is names_mode
                assert sorted([*passed, *answer["FailedAndUnresolvableNodes"]]) == sorted(offered)
            elif verb == "prioritize":
                offered = request["NodeNames"] or [
                    n["metadata"]["name"] for n in request["Nodes"]["items"]
                ]
                hosts = [entry["Host"] for entry in answer]
                assert len(hosts) == len(set(hosts) & set(offered)) < len(offered)
        assert {"filter", "prioritize", "bind"} <= verbs


@pytest.mark.parametrize("mode", MODES)
async def test_whole_nodes_come_back_byte_for_byte(mode):
    """A node that passes is given back as it came, every field of it."""
    call = next(c for c in recorded(mode) if c["verb"] == "filter")
    async with Served() as served:
        await served.ready()
        answer = await served.ask("filter", call["request"])
        if mode == "full-nodes":
            assert answer["Nodes"]["items"] == call["request"]["Nodes"]["items"]
        else:
            assert answer["NodeNames"] == call["request"]["NodeNames"]


async def test_a_member_is_refused_where_preemption_cannot_help(served):
    """Refusals stand in FailedAndUnresolvableNodes; FailedNodes would start a preemption in vain."""
    node = served.stage.reserved_node("g-0")
    body = {"Pod": wire_pod(served.stage, "g-0"), "Nodes": None, "NodeNames": ["n0", "n1"]}
    answer = await served.ask("filter", body)
    assert answer["NodeNames"] == [node]
    assert answer["FailedAndUnresolvableNodes"] == {}, "a pod that has its node needs no reasons"
    assert await served.ask("filter", body) == answer
    (other,) = {"n0", "n1"} - {node}
    answer = await served.ask("filter", body | {"NodeNames": [other]})
    assert (list(answer["FailedAndUnresolvableNodes"]), answer["FailedNodes"]) == ([other], {})


async def test_no_node_is_an_empty_list_not_null(served):
    """kube-scheduler reads null as it reads a lost answer: names mode always has a list."""
    node = served.stage.reserved_node("g-0")
    other = "n1" if node == "n0" else "n0"
    for offered in ([other], []):
        answer = await served.ask(
            "filter", {"Pod": wire_pod(served.stage, "g-0"), "Nodes": None, "NodeNames": offered}
        )
        assert answer["NodeNames"] == []


async def test_scores_of_a_member(served):
    """The planned node has the maximum."""
    node = served.stage.reserved_node("g-1")
    body = {"Pod": wire_pod(served.stage, "g-1"), "Nodes": None, "NodeNames": ["n0", "n1"]}
    scores = {e["Host"]: e["Score"] for e in await served.ask("prioritize", body)}
    assert scores[node] == 10
    assert sum(scores.values()) == 10


META = {"n0": {"Pods": [{"UID": "v1"}, {"UID": "v2"}], "NumPDBViolations": 1}}


def with_victims(served):
    """Let two pods run on n0, and a pod of higher priority wait."""
    running = [
        a_pod(name, node="n0", requests={"cpu": 1}, metadata={"uid": name}, priority=1)
        for name in ("v1", "v2")
    ]
    served.stage.cluster.add(*running, a_pod("vip", requests={"cpu": 1}, priority=10))
    return wire_pod(served.stage, "vip")


async def test_preempt_gives_candidates_back_by_uid(served):
    """For a pod outside all groups the candidates stand, whatever form they came in."""
    pod = with_victims(served)
    body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": META}
    assert (await served.ask("preempt", body))["NodeNameToMetaVictims"] == META
    full = {
        "n0": {
            "Pods": [{"metadata": {"uid": "v1"}}, {"metadata": {"uid": "v2"}}],
            "NumPDBViolations": 1,
        }
    }
    body = {"Pod": pod, "NodeNameToVictims": full, "NodeNameToMetaVictims": None}
    assert (await served.ask("preempt", body))["NodeNameToMetaVictims"] == META


async def test_preempt_for_a_member_names_no_victim(served):
    """Members are never helped pod by pod."""
    with_victims(served)
    body = {"Pod": wire_pod(served.stage, "g-0"), "NodeNameToMetaVictims": META}
    assert (await served.ask("preempt", body))["NodeNameToMetaVictims"] == {}


async def test_preempt_rests_on_nothing_that_we_have_not_seen(served):
    """Victims that our informers do not show (yet) may be part of a gang: no answer names their node."""
    pod = with_victims(served)
    unseen = {"n0": {"Pods": [{"UID": "v1"}, {"UID": "v9"}], "NumPDBViolations": 0}}
    body = {"Pod": pod, "NodeNameToMetaVictims": unseen}
    assert (await served.ask("preempt", body))["NodeNameToMetaVictims"] == {}


@pytest.mark.parametrize("victims", [{"Pods": None, "NumPDBViolations": 0}, {"Pods": []}, {}])
@pytest.mark.parametrize("field", ["NodeNameToVictims", "NodeNameToMetaVictims"])
async def test_preempt_never_answers_null_or_an_empty_victim(served, field, victims):
    """A node without victims makes kube-scheduler panic: it is left out of the answer."""
    body = {"Pod": wire_pod(served.stage, "alien"), field: {"n0": victims}}
    assert (await served.ask("preempt", body))["NodeNameToMetaVictims"] == {}


async def test_preempt_refuses_a_node_without_victims_beside_one_that_has_some(served):
    """Kubernetes 1.38 offers nodes that need no victim; a node that is omitted is refused."""
    body = {"Pod": with_victims(served), "NodeNameToMetaVictims": META | {"n1": {"Pods": []}}}
    assert (await served.ask("preempt", body))["NodeNameToMetaVictims"] == META


def calls_about(served, name):
    """Return a body per verb that carries a pod."""
    pod, offered = wire_pod(served.stage, name), {"NodeNames": ["n0", "n1"]}
    victims = {"n0": {"Pods": [{"UID": "v1"}, {"UID": "v2"}], "NumPDBViolations": 1}}
    return {
        "filter": {"Pod": pod, **offered},
        "prioritize": {"Pod": pod, **offered},
        "preempt": {"Pod": pod, "NodeNameToMetaVictims": victims},
    }


@pytest.mark.parametrize("name", ["g-0", "alien", "vip"])
async def test_a_pod_that_the_informers_know_is_not_converted(served, name):
    """Only its UID is read; the answers are byte for byte those of a call whose pod is converted whole."""
    with_victims(served)
    bodies = calls_about(served, name)
    short = {verb: await served.post(verb, body) for verb, body in bodies.items()}
    assert served.converted == []
    served.stage.extender_service.known_pod = lambda uid: None  # now every pod is converted
    whole = {verb: await served.post(verb, body) for verb, body in bodies.items()}
    assert served.converted == [name] * 3
    assert short == whole
    assert [status for status, _ in short.values()] == [200] * 3


async def test_a_pod_that_the_informers_do_not_know_is_converted_once_per_call(served):
    """Filter judges a pod that came a moment ago by the body of the call; preempt, which would change state, waits."""
    with_victims(served)
    member = {"metadata": {"name": "g-9", "namespace": "default", "uid": "new",
                           "labels": {GROUP_LABEL: "g"}}, "spec": {}}  # fmt: skip
    answer = await served.ask("filter", {"Pod": member, "NodeNames": ["n0", "n1"]})
    assert answer["NodeNames"] == []
    assert set(answer["FailedAndUnresolvableNodes"]) == {"n0", "n1"}
    small = {"metadata": {"name": "new", "namespace": "default", "uid": "new-1"}, "spec": {}}
    answer = await served.ask("filter", {"Pod": small, "NodeNames": ["n0", "n1"]})
    assert answer["NodeNames"] == ["n0", "n1"]
    bodies = calls_about(served, "vip")
    stranger = {**bodies["preempt"]["Pod"], "metadata": {"name": "vip-2", "namespace": "default"}}
    before = served.stage.leader.committed.position
    status, body = await served.post("preempt", {**bodies["preempt"], "Pod": stranger})
    assert (status, body) == (
        503,
        b"cannot answer now: pod default/vip-2 has not been seen yet\n",
    )
    assert served.stage.leader.committed.position == before
    assert served.converted == ["g-9", "new", "vip-2"]


async def test_bind_answers_the_barrier(served):
    """An empty Error means bound; a refusal is a text in a 200."""
    args = [
        {"PodName": p.name, "PodNamespace": p.namespace, "PodUID": p.uid,
         "Node": served.stage.reserved_node(p.name)}
        for p in (served.stage.cluster.pod("g-0"), served.stage.cluster.pod("g-1"))
    ]  # fmt: skip
    wrong = await served.ask("bind", args[0] | {"Node": "nowhere"})
    assert "nothing was bound" in wrong["Error"]
    first = served.stage.start(served.ask("bind", args[0]))
    assert (await served.ask("bind", args[1]))["Error"] == ""
    assert (await first)["Error"] == ""
    assert len(served.stage.cluster.did("bind")) == 2


async def test_a_fault_of_the_api_server_is_an_error_text(served):
    """A fault behind bind is an error text, never a 500."""
    served.stage.cluster.fault = lambda verb, _: (
        RequestRejected("422 of the API server") if verb == "bind" else None
    )
    calls = [
        {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid,
         "Node": served.stage.reserved_node(pod.name)}
        for pod in (served.stage.cluster.pod("g-0"), served.stage.cluster.pod("g-1"))
    ]  # fmt: skip
    answers = await asyncio.gather(*(served.ask("bind", call) for call in calls))
    assert all("422 of the API server" in answer["Error"] for answer in answers), answers


async def test_an_ordinary_pod_is_bound_by_kube_scheduler_alone(served):
    """Whatever the call has: no Binding of a pod that names no group, with what would help (issue 22, C2 b)."""
    alien = served.stage.cluster.pod("alien")
    args = {"PodName": "alien", "PodNamespace": "default", "PodUID": alien.uid, "Node": "n0"}
    answer = await served.ask("bind", args)
    assert answer["Error"].startswith("pod default/alien names no group")
    assert served.stage.cluster.did("bind") == []


async def test_bind_takes_only_the_uid_from_a_call(served):
    """A call with the UID of one pod and the name of another binds the pod of the UID."""
    pods = [served.stage.cluster.pod(name) for name in ("g-0", "g-1")]
    calls = [
        {"PodName": "alien", "PodNamespace": "kube-system", "PodUID": pod.uid,
         "Node": served.stage.reserved_node(pod.name)}
        for pod in pods
    ]  # fmt: skip
    answers = await asyncio.gather(*(served.ask("bind", call) for call in calls))
    assert [answer["Error"] for answer in answers] == ["", ""]
    assert sorted(name for name, _ in served.stage.cluster.did("bind")) == [p.path for p in pods]


BROKEN = {
    "empty": b"", "text": b"hello", "list": b"[]", "null": b"null", "number": b"1", "cut": b'{"Pod":{',
    "no pod": b"{}", "null pod": b'{"Pod":null,"NodeNames":["n0"]}', "pod is text": b'{"Pod":"x"}',
    "names are numbers": b'{"Pod":{"metadata":{"name":"a","namespace":"b","uid":"c"}},"NodeNames":[1]}',
    "nodes without metadata": b'{"Pod":{"metadata":{"name":"a","namespace":"b","uid":"c"}},"Nodes":{"items":[{}]}}',
    "not utf-8": b'{"Pod":"\xff\xfe"}', "deep": b'{"Pod":' + b"[" * 200_000,
    "deep elsewhere": b'{"Other":' + b'{"a":' * 200_000, "3,000 deep": b'{"Pod":' + b"[" * 3_000,
}  # fmt: skip


# fields of filter and prioritize only, or longer than a body of bind
NOT_OF = {
    "bind": ("names are numbers", "nodes without metadata", "deep", "deep elsewhere"),
    "preempt": ("names are numbers", "nodes without metadata"),
}


@pytest.mark.parametrize("verb", SCHEMAS)
async def test_an_undecodable_body_is_a_400(served, verb):
    """For every such body the answer blames the caller, and the service goes on."""
    for name in set(BROKEN) - set(NOT_OF.get(verb, ())):
        async with served.client.post(f"/scheduler/{verb}", data=BROKEN[name]) as reply:
            assert reply.status == 400, (name, await reply.text())
            assert (await reply.text()).startswith(f"{verb}: "), name
        assert (await served.client.get("/livez")).status == 200, name


@examples(60)
@given(st.binary(max_size=60), st.sampled_from(sorted(SCHEMAS)))
def test_no_bytes_break_the_decoders(body, verb):
    """Decoders give a value or a named fault, never anything else."""
    decode = {"bind": wire.decode_binding, "preempt": wire.decode_preemption}.get(
        verb, wire.decode_args
    )
    with contextlib.suppress(wire.msgspec.MsgspecError):
        decode(body)


async def test_each_verb_has_its_own_answer_when_not_ready():
    """Error for filter and bind, no opinion for prioritize, 503 for preempt."""
    short = {"barrier_timeout_s": 0.1, "bind_timeout_s": 0.5, "filter_deadline_ms": 200}
    async with Served(a_node("n0", gpu=4), *a_gang("g", pods=1), **short) as served:
        pod = wire_pod(served.stage, "g-0")
        args = {"Pod": pod, "Nodes": None, "NodeNames": ["n0"]}
        answer = await served.ask("filter", args)
        assert answer["Error"].startswith("cannot answer now: lease: ")
        assert answer["NodeNames"] == []
        assert await served.ask("prioritize", args) == []
        bind = {"PodName": "g-0", "PodNamespace": "default", "PodUID": "u", "Node": "n0"}
        assert (await served.ask("bind", bind))["Error"].startswith("cannot answer now: lease: ")
        status, _ = await served.post("preempt", {"Pod": pod, "NodeNameToMetaVictims": META})
        assert status == 503


async def test_wrong_doors(served):
    """Unknown verb 404, wrong method 405."""
    assert (await served.post("evict", {}))[0] == 404
    for verb in SCHEMAS:
        assert (await served.client.get(f"/scheduler/{verb}")).status == 405
    assert (await served.client.post("/readyz")).status == 405


async def test_a_body_over_the_limit_is_a_413():
    """The limit is a setting; what is over it is not read to its end."""
    async with Served(max_request_body_bytes=1000) as served:
        await served.ready()
        for verb in SCHEMAS:
            async with served.client.post(f"/scheduler/{verb}", data=b" " * 1001) as reply:
                assert reply.status == 413
        async with served.client.post("/scheduler/filter", data=b" " * 1000) as reply:
            assert reply.status == 400


async def test_probes(served):
    """/readyz and /livez: 200 or 503 with ready and checks that name, judge and explain."""
    async with served.client.get("/readyz") as reply:
        assert reply.status == 200
        body = await reply.json()
    assert body["ready"] is True
    assert [c["name"] for c in body["checks"]] == ["lease", "history", "cluster", "reconciled"]
    assert all(set(c) == {"name", "ok", "reason"} and c["ok"] for c in body["checks"])
    served.stage.cluster.doubted = "no news for 40 s"
    async with served.client.get("/readyz") as reply:
        assert reply.status == 503
        body = await reply.json()
    assert body["ready"] is False
    assert {"name": "cluster", "ok": False, "reason": "no news for 40 s"} in body["checks"]
    async with served.client.get("/livez") as reply:
        assert (reply.status, await reply.json()) == (200, {"ready": True, "checks": []})


async def test_metrics_are_what_prometheus_reads(served):
    """The text parses, every name has the prefix, and the calls just made are counted."""
    await served.ask("filter", {"Pod": wire_pod(served.stage, "g-0"), "NodeNames": ["n0", "n1"]})
    async with served.client.get("/metrics") as reply:
        assert reply.status == 200
        families = {f.name: f for f in text_string_to_metric_families(await reply.text())}
    assert families
    assert all(name.startswith("gang_extender_") for name in families)
    calls = [
        s for s in families["gang_extender_extender_requests"].samples if s.name.endswith("_total")
    ]
    samples = {(s.labels["verb"], s.labels["outcome"]): s.value for s in calls}
    assert samples["filter", "redeemed"] >= 1
    (held,) = families["gang_extender_reservations_held"].samples
    assert held.value == 2


async def test_gangs_and_their_history(served):
    """The read API returns what the state and the log hold, with the position of that state."""
    async with served.client.get("/v1/gangs") as reply:
        assert reply.headers["X-Log-Position"] == str(served.stage.leader.committed.position)
        (line,) = await reply.json()
    assert (line["gang"], line["state"], line["reserved"], line["bound"]) == (
        "default/g",
        "admitted",
        2,
        0,
    )
    async with served.client.get("/v1/gangs/default/g") as reply:
        assert [m["pod"] for m in (await reply.json())["members"]] == ["default/g-0", "default/g-1"]
    async with served.client.get("/v1/gangs/default/g/history") as reply:
        events = await reply.json()
    assert [f["type"] for f in events] == ["GangObserved", "GangAdmitted"]
    keys = {
        "position",
        "time",
        "type",
        "stream_version",
        "gang",
        "gang_uid",
        "epoch",
        "actor",
        "cause",
        "summary",
        "data",
    }
    assert all(set(f) == keys for f in events)
    async with served.client.get("/v1/events?type=GangAdmitted&limit=1") as reply:
        assert [f["type"] for f in await reply.json()] == ["GangAdmitted"]
    async with served.client.get("/v1/preemptions?preemptor=default/g") as reply:
        assert await reply.json() == []
    async with served.client.get("/v1/gangs?namespace=elsewhere") as reply:
        assert await reply.json() == []


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/v1/events?limit=x", 400, ["limit", "'x'"]),
        ("/v1/events?limit=1001", 400, ["limit", "1001"]),
        ("/v1/events?after=-1", 400, ["after", "'-1'"]),
        ("/v1/events?after=" + "9" * 5000, 400, ["after"]),
        ("/v1/events?since=yesterday", 400, ["since", "'yesterday'"]),
        ("/v1/events?until=2026-11-21T03:00:00", 400, ["until", "offset"]),
        ("/v1/events?colour=red", 400, ["colour", "not known"]),
        ("/v1/events?gang=a%00b", 400, ["gang", "NUL"]),
        ("/v1/preemptions?since=yesterday", 400, ["since", "'yesterday'"]),
        ("/v1/preemptions?colour=red", 400, ["colour", "preemptor"]),
        ("/v1/gangs/a/b%00/history", 400, ["gang", "NUL"]),
        ("/v1/gangs/a/b%00", 400, ["gang", "NUL"]),
        ("/v1/gangs/default/absent", 404, ["default/absent", "history"]),
        ("/v1/gangs/default/absent/history", 404, ["default/absent"]),
        ("/v1/nothing", 404, ["/v1/nothing"]),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
async def test_errors_of_the_read_api_name_the_field(served, path, status, words):
    """application/problem+json with the object, the field and the value that is wrong."""
    async with served.client.get(path) as reply:
        assert (reply.status, reply.content_type) == (status, "application/problem+json"), (
            await reply.text()
        )
        body = await reply.json()
    assert body["status"] == status
    assert body["title"]
    for word in words:
        assert word in body["detail"]
