"""A service on its real listeners with TLS, and clients that call it over sockets."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager

import aiohttp

from extender.http.web.server import listen
from tests.integration.http.test_scheduler_verbs import Served, wire_pod
from tests.support.certificates import client_context, tls_settings
from tests.support.service.manifest_builders import a_gang, a_node

FILTER, BIND = "/scheduler/filter", "/scheduler/bind"


class Listening:
    """What `listening` yields."""

    def __init__(self, served, ports, runners=()):
        self.served = served
        self.runners = runners
        self.ports = ports  # of the verbs, of the API

    @property
    def tls(self):
        return self.served.tls

    def reload(self):
        """Look at the files twice, as the service does: new ones are used when they have come to rest."""
        self.tls.look()
        self.tls.look()

    def url(self, path, *, scheme="https"):
        port = self.ports[0] if path.startswith("/scheduler/") else self.ports[-1]
        return f"{scheme}://127.0.0.1:{port}{path}"

    def filter_body(self):
        return {"Pod": wire_pod(self.served.stage, "g-0"), "Nodes": None, "NodeNames": ["n0"]}


@asynccontextmanager
async def listening(made, **settings):
    """Serve with the certificates of a folder, on two ports of loopback."""
    files = tls_settings(made) if made is not None else {}
    addresses = {"listen": "127.0.0.1:0"} | ({"api_listen": "127.0.0.1:0"} if files else {})
    served = Served(a_node("n0", gpu=4), *a_gang("g", pods=2), **addresses | files | settings)
    await served.ready()
    runners = [await listen(app, served.stage.settings) for app in served.apps]
    try:
        yield Listening(served, [runner.addresses[0][1] for runner in runners], runners)
    finally:
        for runner in runners:
            await runner.cleanup()
        await served.client.close()
        await served.forwarder.close()
        await served.stage.__aexit__()


@asynccontextmanager
async def client(made, name="client-kube-scheduler", context=None):
    """Open a session of a caller that presents a certificate of a folder; None: of no one."""
    found = context if context is not None else client_context(made, name)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=found)) as session:
        yield session


def old_protocol(made, version=ssl.TLSVersion.TLSv1_1):
    """Return the context of a client that speaks no newer TLS than this."""
    context = client_context(made)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = version
    return context
