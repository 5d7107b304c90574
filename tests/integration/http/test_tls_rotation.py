"""Certificates are replaced while clients call: no call is lost, and what was taken away is not accepted any more."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from tests.support.certificates import certificate_folder, client_context
from tests.support.service.tls_listeners import FILTER, client, listening
from tests.support.waiting import eventually

CALLERS = 6


class Callers:
    """Clients that call all the time, each on a connection that it keeps as long as the service does."""

    def __init__(self, service):
        self.url, self.body = service.url(FILTER), service.filter_body()
        self.failures = []
        self.answered = 0
        self._stopped = False
        self._tasks = []
        self.certificate = None  # context of each new connection

    async def _call(self):
        while not self._stopped:
            context = self.certificate
            # one that notices, as Go does, that its files have changed
            async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context)
            ) as session:
                while not self._stopped and self.certificate is context:
                    try:
                        async with session.post(self.url, json=self.body) as reply:
                            text = await reply.text()
                            if reply.status != 200:
                                self.failures.append(text)
                    except (aiohttp.ClientError, OSError) as error:
                        self.failures.append(repr(error))
                    self.answered += 1

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(self._call()) for _ in range(CALLERS)]
        return self

    async def __aexit__(self, *_):
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def go_on(self):
        """Wait for some more calls of each."""
        target = self.answered + 10 * CALLERS
        await eventually(lambda: self.answered >= target, "calls")


def bundle(path, *folders):
    path.write_bytes(b"".join(made.certificate("ca").read_bytes() for made in folders))


def trusting(path, made, name="client-kube-scheduler"):
    """Return the context of a client with the certificate of a folder that trusts the CAs of a file."""
    context = ssl.create_default_context(cafile=str(path))
    context.load_cert_chain(made.certificate(name), made.key(name))
    return context


@pytest.fixture
def old(tmp_path):
    return certificate_folder(tmp_path / "old")


@pytest.fixture
def new(tmp_path):
    return certificate_folder(tmp_path / "new")


async def test_a_renewed_server_certificate_loses_no_call(old):
    """`gang-extender certs --renew` under load: the next handshakes have it, and the metric of the end moves."""
    async with listening(old) as service, client(old) as other:
        callers = Callers(service)
        callers.certificate = client_context(old)
        async with callers:
            await callers.go_on()
            before = await presented(service)
            old.renew(datetime.now(UTC), timedelta(days=40))
            service.reload()
            await callers.go_on()
            assert await presented(service) != before
            assert (await other.get(service.url("/livez"))).status == 200
        assert callers.failures == []


async def presented(service):
    """Return the certificate that the server presents to a new connection that sends no name (DER)."""
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", service.ports[1]))


async def test_a_new_ca_by_way_of_both_loses_no_call(old, new, tmp_path):
    """Under load: trust both, present the new one, trust the new one only. Then the old one is of no use, also on open connections."""
    path = tmp_path / "client-ca.crt"
    server = tmp_path / "server"
    server.mkdir()
    for name in ("server.crt", "server.key"):
        shutil.copy(old.folder / name, server / name)
    bundle(path, old)
    files = {"tls_cert_file": str(server / "server.crt"), "tls_private_key_file": str(server / "server.key")}  # fmt: skip
    async with listening(old, client_ca_file=str(path), **files) as service:
        callers = Callers(service)
        both = tmp_path / "both.crt"
        bundle(both, old, new)
        callers.certificate = trusting(both, old)
        async with client(old, context=trusting(both, old)) as left_behind:
            assert await status(left_behind, service) == 200
            async with callers:
                await callers.go_on()
                bundle(path, old, new)
                service.reload()
                await callers.go_on()
                for name in ("server.crt", "server.key"):
                    shutil.copy(new.folder / name, server / name)
                service.reload()
                await callers.go_on()
                callers.certificate = trusting(both, new)
                await callers.go_on()
                # on a connection of before, with the certificate of the CA that is taken away now
                assert await status(left_behind, service) == 200
                bundle(path, new)
                service.reload()
                await callers.go_on()
            assert callers.failures == []
            assert await status(left_behind, service) in (403, None)
            assert await status(left_behind, service) is None, "no handshake either"


async def status(session, service):
    """Return the status of a call, or None when there is no connection."""
    try:
        async with session.post(service.url(FILTER), json=service.filter_body()) as reply:
            return reply.status
    except aiohttp.ClientError:
        return None


async def test_an_open_connection_of_a_removed_ca_is_refused_at_its_next_call(old, new, tmp_path):
    """No further call, although its handshake was right."""
    path = tmp_path / "client-ca.crt"
    bundle(path, old)
    async with listening(old, client_ca_file=str(path)) as service, client(old) as session:
        assert await status(session, service) == 200
        bundle(path, new)
        service.reload()
        async with session.post(service.url(FILTER), json=service.filter_body()) as reply:
            assert reply.status == 403
            assert "is not in --client-ca-file any more" in await reply.text()
            assert reply.headers["Connection"] == "close"
        assert await status(session, service) is None


async def test_a_connection_is_closed_after_its_answer_when_files_have_changed(old):
    """So that a client that never closes it presents its renewed certificate."""
    async with listening(old) as service, client(old) as session:
        for changed, expected in ((False, "kept"), (True, "close"), (False, "kept")):
            if changed:
                old.renew(datetime.now(UTC), timedelta(days=40))
                service.reload()
            async with session.post(service.url(FILTER), json=service.filter_body()) as reply:
                assert reply.status == 200
                assert reply.headers.get("Connection", "kept") == expected


async def test_files_that_do_not_fit_keep_the_service_running(old, new):
    """A key of another certificate: the old pair goes on, also for new handshakes."""
    async with listening(old) as service:
        before = await presented(service)
        shutil.copy(new.key("server"), old.key("server"))
        service.reload()
        assert await presented(service) == before
        async with client(old) as session:
            assert await status(session, service) == 200


async def test_a_session_of_tls_1_2_is_not_resumed_past_a_removed_ca(old, new, tmp_path):
    """A resumed session would skip the verification of the client."""
    path = tmp_path / "client-ca.crt"
    bundle(path, old)
    context = client_context(old)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening(old, client_ca_file=str(path)) as service:

        def call(session=None):
            with (
                socket.create_connection(("127.0.0.1", service.ports[0]), 10) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1", session=session) as secured,
            ):
                secured.sendall(
                    b"POST /scheduler/bind HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
                return secured.recv(1000).split(b" ")[1], secured.session

        code, session = await asyncio.to_thread(call)
        assert code == b"400"
        bundle(path, new)
        service.reload()
        try:
            code, _ = await asyncio.to_thread(call, session)
        except (OSError, IndexError):
            return  # no handshake: the session was not resumed
        assert code == b"403"
