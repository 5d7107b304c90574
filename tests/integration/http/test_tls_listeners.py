"""Who may call a service with TLS: over real sockets, with certificates as `gang-extender certs` makes them."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from types import SimpleNamespace

import aiohttp
import pytest

from extender.cli.certificates.certificate_folder import SERVER_NAME
from extender.http.scheduler.leader_proxy import FORWARDED
from extender.listener_settings import HTTP1_SERVER_NAME
from extender.telemetry import METRICS
from tests.support.certificates import certificate_folder, client_context
from tests.support.service.tls_listeners import BIND, FILTER, client, listening, old_protocol

API_PATHS = ("/", "/ui/", "/metrics", "/v1/gangs", "/v1/readiness", "/v1/openapi.json")


@pytest.fixture
def made(tmp_path):
    return certificate_folder(tmp_path / "certs", clients=("stranger",))


@pytest.fixture
async def service(made):
    async with listening(made) as found:
        yield found


async def test_kube_scheduler_calls_with_its_certificate(service, made):
    """Each verb is answered, on one connection that stays open; the listener serves nothing else but the probes."""
    async with client(made) as session:
        for verb in ("filter", "prioritize"):
            url = service.url(f"/scheduler/{verb}")
            async with session.post(url, json=service.filter_body()) as reply:
                assert reply.status == 200, await reply.text()
        for path in API_PATHS:
            async with session.get(service.url(FILTER).replace(FILTER, path)) as reply:
                assert reply.status == 404, path
        for path in ("/scheduler/moves/apply", "/scheduler/moves/control"):
            async with session.post(service.url(path), json={"drain": ["n0"]}) as reply:
                assert reply.status == 403, path


@pytest.mark.parametrize("server_name", [SERVER_NAME, HTTP1_SERVER_NAME])
@pytest.mark.parametrize("kind", ["none", "of another CA", "of a server", "that has ended"])
async def test_a_certificate_that_is_not_right_gets_no_connection(
    service, made, tmp_path, kind, server_name
):
    """The handshake fails, so no handler is reached and nothing is answered."""
    other = certificate_folder(tmp_path / "other")
    if kind == "none":
        context = client_context(made, None)
    elif kind == "of a server":
        context = client_context(made, None)
        context.load_cert_chain(other.certificate("server"), other.key("server"))
    elif kind == "of another CA":
        context = client_context(made, None)
        context.load_cert_chain(
            other.certificate("client-kube-scheduler"), other.key("client-kube-scheduler")
        )
    else:
        service = None
        ended = certificate_folder(tmp_path / "ended", days=1, issued_days_ago=3)
        context = client_context(made, None)
        context.load_cert_chain(
            ended.certificate("client-kube-scheduler"), ended.key("client-kube-scheduler")
        )
        async with (
            listening(made, client_ca_file=str(ended.certificate("ca"))) as trusting,
            client(made, context=context) as session,
        ):
            with pytest.raises(aiohttp.ClientError):
                await session.post(
                    trusting.url(FILTER), json=trusting.filter_body(), server_hostname=server_name
                )
        return
    async with client(made, context=context) as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(
                service.url(FILTER), json=service.filter_body(), server_hostname=server_name
            )


@pytest.mark.parametrize("server_name", [SERVER_NAME, HTTP1_SERVER_NAME])
async def test_a_name_that_is_not_allowed_is_a_403_with_name_and_setting(
    service, made, server_name
):
    """Signed by the right CA; on every verb, and nothing is changed."""
    before = METRICS.http_requests_refused.labels("client-name")._value.get()
    async with client(made, "client-stranger") as session:
        for path in (FILTER, BIND, "/scheduler/preempt", "/scheduler/prioritize"):
            async with session.post(
                service.url(path), json=service.filter_body(), server_hostname=server_name
            ) as reply:
                assert reply.status == 403
                assert await reply.text() == (
                    "the client certificate is of 'stranger', and --allowed-client-names has "
                    "gang-extender, system:kube-scheduler\n"
                )
        async with session.get(service.url(FILTER).replace(FILTER, "/readyz")) as reply:
            assert (reply.status, await reply.json()) == (200, {"ready": True, "checks": []})
    assert METRICS.http_requests_refused.labels("client-name")._value.get() == before + 4


async def test_names_are_a_setting(made):
    async with (
        listening(made, allowed_client_names=("stranger",)) as service,
        client(made, "client-stranger") as stranger,
        client(made) as scheduler,
    ):
        body = service.filter_body()
        assert (await stranger.post(service.url(FILTER), json=body)).status == 200
        assert (await scheduler.post(service.url(FILTER), json=body)).status == 403


async def test_the_api_asks_for_no_certificate_and_has_no_verbs(service, made):
    """The probes are open and give no reasons; /v1/readiness has them."""
    async with client(made, None) as session:
        for path in (*API_PATHS, "/livez", "/readyz"):
            async with session.get(service.url(path)) as reply:
                assert reply.status == 200, path
                if path in ("/livez", "/readyz"):
                    assert await reply.json() == {"ready": True, "checks": []}
                if path == "/v1/readiness":
                    names = [check["name"] for check in (await reply.json())["checks"]]
                    assert names == ["lease", "history", "cluster", "reconciled"]
        async with session.post(service.url("/livez").replace("/livez", FILTER), json={}) as reply:
            assert reply.status == 404


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_tls_is_refused(service, made, version):
    async with client(made, context=old_protocol(made, version)) as session:
        for path in (FILTER, "/livez"):
            with pytest.raises(aiohttp.ClientError):
                await session.get(service.url(path))
    async with client(made, context=old_protocol(made, ssl.TLSVersion.TLSv1_2)) as session:
        assert (await session.get(service.url("/livez"))).status == 200


async def test_plain_http_on_the_tls_port_is_closed_at_once(service):
    """Without an answer that a client could take for one of ours; the next client is served."""
    for port in service.ports:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert not (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_handshake_that_does_not_go_on_is_closed(made):
    """A connection that sends nothing, or half of a ClientHello, is closed after the time for headers."""
    async with listening(made, header_timeout_s=0.2) as service:
        for data in (b"", b"\x16\x03\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", service.ports[0])
            writer.write(data)
            assert await reader.read() == b""
            writer.close()


async def test_a_certificate_that_ends_on_an_open_connection_is_refused(tmp_path):
    """Its handshake was right; afterwards every call counts by the clock, and the last ones close their connection."""
    made = certificate_folder(tmp_path / "certs", days=100)
    async with listening(made) as service, client(made) as session:

        async def call(days):
            service.served.tls._clock = SimpleNamespace(
                now_us=lambda: int((time.time() + days * 86400) * 1e6)
            )
            async with session.post(service.url(FILTER), json=service.filter_body()) as reply:
                return reply.status, reply.headers.get("Connection", "kept"), await reply.text()

        assert (await call(99.9))[:2] == (200, "kept")
        assert (await call(99.999))[:2] == (200, "close")
        status, connection, text = await call(100.1)
        assert (status, connection) == (403, "close")
        assert text == "the certificate of 'system:kube-scheduler' has ended; renew it\n"


async def test_a_forwarded_header_counts_only_from_a_replica(made):
    """From kube-scheduler's certificate it is ignored: an age of 1,000 s would refuse a bind call as too old."""
    async with listening(made, filter_deadline_ms=200) as service:
        await service.served.stage.leader.release_lease()
        await calls_are_misdirected(service, made)


async def calls_are_misdirected(service, made):
    headers = {FORWARDED: "7"}
    for name, misdirected in (("client-kube-scheduler", False), ("client-gang-extender", True)):
        async with (
            client(made, name) as session,
            session.post(service.url(FILTER), json=service.filter_body(), headers=headers) as reply,
        ):
            assert ("Gang-Extender-Not-Leading" in reply.headers) == misdirected, name
            assert json.loads(await reply.read())["Error"].startswith("cannot answer now")
