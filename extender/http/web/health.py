"""/livez, /readyz and /metrics."""

from __future__ import annotations

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from extender.control.log.leader import Leader
from extender.control.verbs.extender_service import ExtenderService, ReadinessCheck
from extender.telemetry import METRICS


class Health(msgspec.Struct):
    """The answer of both probes."""

    ready: bool
    checks: list[ReadinessCheck]


class Probes:
    """Handlers of the probes."""

    def __init__(self, scheduling: ExtenderService, leader: Leader) -> None:
        self._scheduling = scheduling
        self._leader = leader

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/readyz", self.ready),
            web.get("/livez", self.live),
            web.get("/metrics", self.metrics),
        ]

    async def ready(self, _: web.Request) -> web.Response:
        """Return whether this replica can answer kube-scheduler."""
        checks = self._scheduling.checks()
        return _health(all(check.ok for check in checks), checks)

    async def live(self, _: web.Request) -> web.Response:
        """Return ready while the process serves; an outage of Postgres or the API server does not count."""
        return _health(True, ())  # noqa: FBT003 -- the field is named in the answer

    async def send_away(self, _: web.Request, response: web.StreamResponse) -> None:
        """Close a connection after its response while this replica is not ready, or is stopping.

        A Service balances new connections only: a caller would keep its connection to a replica that cannot answer,
        although another one can.
        """
        if self._leader.draining or not all(check.ok for check in self._scheduling.checks()):
            response.force_close()
            # aiohttp has made the headers by now; without this one the caller would use the closed connection again
            response.headers["Connection"] = "close"

    async def metrics(self, _: web.Request) -> web.Response:
        """Return all metrics in the Prometheus text format."""
        state = self._leader.committed
        METRICS.leader.set(int(self._leader.may_record()))
        METRICS.log_head_position.set(state.position)
        METRICS.reservations_held.set(sum(len(held) for held in state.reservations_on.values()))
        waiting = sum(root.last_decision is not None for root in state.gangs.values())
        METRICS.pending_entities.labels("podgroup").set(waiting)
        body = generate_latest(METRICS.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _health(ready: bool, checks: tuple[ReadinessCheck, ...]) -> web.Response:  # noqa: FBT001
    body = msgspec.json.encode(Health(ready=ready, checks=list(checks)))
    return web.Response(status=200 if ready else 503, body=body, content_type="application/json")
