"""A web page that is open beside a listener without TLS reaches no handler: C2 of the review, as a browser would send it.

Each attack is sent in four ways: with the Host of another server (DNS rebinding), with an Origin, with a Content-Type
that needs no preflight, and with none.
"""

from __future__ import annotations

import json

import pytest

from extender.telemetry import METRICS
from tests.integration.http.test_request_limits import listening
from tests.integration.http.test_scheduler_verbs import wire_pod

JSON = {"Content-Type": "application/json"}
REBOUND = JSON | {"Host": "attacker.example"}
FOREIGN = JSON | {"Origin": "http://evil.example"}
SIMPLE = {"Content-Type": "text/plain"}
DISGUISES = {
    "rebound": (REBOUND, 403, "Host 'attacker.example' is not this service"),
    "rebound, with a port": (REBOUND | {"Host": "attacker.example:8888"}, 403, "is not this"),
    "foreign page": (FOREIGN, 403, "Origin 'http://evil.example': pages of other servers"),
    "page of a file": (JSON | {"Origin": "null"}, 403, "Origin 'null'"),
    "page on another port": (JSON | {"Origin": "http://localhost:1"}, 403, "Origin"),
    "simple": (SIMPLE, 415, "Content-Type 'text/plain': the body of a request must be"),
    "form": ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "Content-Type"),
    "without a type": ({}, 415, "Content-Type 'application/octet-stream'"),
}


def attacks(stage):
    """Return what the review sent: a rejected node, a binding of any pod, a preemption for a pod that does not exist."""
    member = wire_pod(stage, "g-0")
    invented = {**member, "metadata": {**member["metadata"], "uid": "invented", "name": "x"}}
    invented["spec"] = {**invented["spec"], "priority": 2**31 - 1}
    ref = stage.ref("g-0")
    return {
        "filter": {"Pod": member, "Nodes": None, "NodeNames": []},
        "bind": {"PodName": ref.name, "PodNamespace": ref.namespace, "PodUID": ref.uid, "Node": "n0"},
        "preempt": {"Pod": invented, "NodeNameToVictims": None,
                    "NodeNameToMetaVictims": {"n0": {"Pods": [{"UID": ref.uid}]}}},
    }  # fmt: skip


async def send(peer, method, path, headers, body=b""):
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in ({"Host": "localhost:8888"} | headers).items()]
    await peer.send("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    return await peer.answer()


@pytest.mark.parametrize("name", DISGUISES)
async def test_the_attacks_of_a_web_page_change_nothing(name):
    """No event is recorded, nothing is bound, and the refusal names the header."""
    headers, status, text = DISGUISES[name]
    async with listening() as (served, connect):
        events, bindings = len(served.stage.events()), list(served.stage.cluster.bindings)
        for verb, body in attacks(served.stage).items():
            peer = await connect()
            found, _, answer = await send(
                peer, "POST", f"/scheduler/{verb}", headers, json.dumps(body).encode()
            )
            assert found == status, verb
            assert text in answer
            assert await peer.rest() == b"", "the connection is closed"
        assert len(served.stage.events()) == events
        assert served.stage.cluster.bindings == bindings


@pytest.mark.parametrize("path", ["/v1/gangs", "/v1/events", "/ui/", "/metrics", "/readyz", "/", "/v1/x"])  # fmt: skip
async def test_a_rebound_or_foreign_page_reads_nothing(path):
    async with listening() as (_, connect):
        for headers in ({"Host": "attacker.example"}, {"Origin": "http://evil.example"}):
            status, _, answer = await send(await connect(), "GET", path, headers)
            assert status == 403
            assert "Forbidden" in answer


async def test_targets_that_name_another_server_are_refused():
    """An absolute URL and CONNECT were routed by their path (L2)."""
    async with listening() as (_, connect):
        status, _, _ = await send(await connect(), "GET", "http://evil.example/livez", {})
        assert status == 403
        status, _, _ = await send(await connect(), "CONNECT", "evil.example:443", {})
        assert status in (400, 403)


@pytest.mark.parametrize(
    ("settings", "hosts"),
    [
        ({}, ("localhost", "127.0.0.1:8888", "LOCALHOST:1", "[::1]:8888", "127.0.0.1")),
        ({"allowed_hosts": ("extender.example",)}, ("extender.example", "extender.example:80")),
        ({"advertise_url": "http://10.0.0.7:1"}, ("10.0.0.7", "10.0.0.7:8888")),
        ({"listen": "0.0.0.0:0", "insecure_plain_http": True}, ("127.0.0.1:8888", "localhost")),
    ],
    ids=["loopback", "allowed", "advertised", "any address"],
)
async def test_names_of_the_service_are_accepted_with_any_port(settings, hosts):
    async with listening(**settings) as (_, connect):
        for host in hosts:
            status, _, _ = await send(await connect(), "GET", "/v1/gangs", {"Host": host})
            assert status == 200, host
        for host in ("", "10.0.0.8", "localhost.evil.example", "[::2]", "0.0.0.0"):
            status, _, _ = await send(await connect(), "GET", "/v1/gangs", {"Host": host})
            assert status == 403, host


async def test_the_page_itself_may_send():
    """A request of the own page has an Origin, which is the server that it was loaded from."""
    async with listening() as (_, connect):
        own = JSON | {"Origin": "http://localhost:8888"}
        status, _, answer = await send(await connect(), "POST", "/scheduler/filter", own, b"[]")
        assert (status, answer.startswith("filter: ")) == (400, True)
        typed = {"Content-Type": "application/json; charset=utf-8"}
        status, _, _ = await send(await connect(), "POST", "/scheduler/filter", typed, b"[]")
        assert status == 400


async def test_refusals_are_counted_and_queries_get_a_problem():
    """By reason; a verb gets text, the API application/problem+json."""
    reasons = ("host", "origin", "content-type")
    counters = [METRICS.http_requests_refused.labels(reason)._value for reason in reasons]
    before = [counter.get() for counter in counters]
    async with listening() as (_, connect):
        for headers in (REBOUND, FOREIGN, SIMPLE):
            _, answered, answer = await send(await connect(), "POST", "/v1/plan", headers, b"{}")
            assert answered["Content-Type"] == "application/problem+json"
            assert json.loads(answer)["status"] in (403, 415)
    assert [counter.get() for counter in counters] == [value + 1 for value in before]


async def test_beyond_loopback_the_probes_give_no_reasons():
    """The log and /v1/readiness have them."""
    async with listening(listen="0.0.0.0:0", insecure_plain_http=True) as (served, connect):
        served.stage.cluster.doubted = "no news for 40 s"
        status, _, answer = await send(await connect(), "GET", "/readyz", {})
        assert (status, json.loads(answer)) == (503, {"ready": False, "checks": []})
        status, _, answer = await send(await connect(), "GET", "/v1/readiness", {})
        assert status == 200
        assert {"name": "cluster", "ok": False, "reason": "no news for 40 s"} in json.loads(answer)["checks"]  # fmt: skip
