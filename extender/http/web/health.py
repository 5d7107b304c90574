"""/livez, /readyz, /v1/readiness and /metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from extender.control.log.leader import Leader
from extender.control.verbs.extender_service import ExtenderService, ReadinessCheck
from extender.core.log.reservation_state import claims_of_kind
from extender.http.listener.connection_limits import close_after
from extender.http.v1.openapi import Operation
from extender.http.v1.query_parameters import Query, routes_of
from extender.runtime.cooperative_yield import Yielder
from extender.telemetry import METRICS

log = logging.getLogger(__name__)


class Health(msgspec.Struct):
    """The answer of both probes, and of /v1/readiness."""

    ready: bool
    checks: list[ReadinessCheck]


READINESS = Operation(
    path="/v1/readiness",
    about="Whether this replica can answer kube-scheduler, and why",
    answer=Health,
    problems=(400,),
    positioned=False,
)


class Probes:
    """Handlers of the probes."""

    def __init__(
        self,
        scheduling: ExtenderService,
        leader: Leader,
        set_gauges: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep what the answers are made from.

        Args:
            set_gauges: Sets metrics that are computed for each scrape; called before it is answered.
        """
        self._scheduling = scheduling
        self._leader = leader
        self._set_gauges = set_gauges
        self._logged = ""

    def routes(self, *, with_reasons: bool = False) -> list[web.RouteDef]:
        """Return the routes of the probes.

        Args:
            with_reasons: Whether every caller may see the checks, else only whether all are passed; /v1/readiness and the log
                have them.
        """
        ready = self.ready_with_reasons if with_reasons else self.ready
        return [web.get("/readyz", ready), web.get("/livez", self.live)]

    def api_routes(self) -> list[web.RouteDef]:
        """Return the routes for callers who may read the state of the service."""
        return [web.get("/metrics", self.metrics), *routes_of(self)]

    async def ready(self, _: web.Request) -> web.Response:
        """Return whether this replica can answer kube-scheduler, without reasons."""
        return _health(self._checks(), shows=False)

    async def ready_with_reasons(self, _: web.Request) -> web.Response:
        """Return whether this replica can answer kube-scheduler, and why."""
        return _health(self._checks())

    @READINESS.handler
    async def readiness(self, _request: web.Request, _: Query) -> web.Response:
        """Return the same, as an answer that is 200 in both cases."""
        return _health(self._checks(), status=200)

    def _checks(self) -> tuple[ReadinessCheck, ...]:
        """Return the checks, and log the reasons when they have changed since the last call."""
        checks = self._scheduling.checks()
        reasons = "; ".join(f"{check.name}: {check.reason}" for check in checks if not check.ok)
        if reasons != self._logged:
            self._logged = reasons
            log.info("ready" if not reasons else "not ready", extra={"reasons": reasons})
        return checks

    async def live(self, _: web.Request) -> web.Response:
        """Return ready while the process serves; an outage of Postgres or the API server does not count."""
        return _health(())

    async def send_away(self, _: web.Request, response: web.StreamResponse) -> None:
        """Close a connection after its response while this replica is not ready, or is stopping.

        A Service balances new connections only: a caller would keep its connection to a replica that cannot answer,
        although another one can.
        """
        if self.sends_away():
            close_after(response)

    def sends_away(self) -> bool:
        """Return whether connections are closed after their responses: this replica is not ready, or is stopping."""
        if self._leader.draining:
            return True
        return not (
            self._scheduling.ready() or all(check.ok for check in self._scheduling.checks())
        )

    async def metrics(self, _: web.Request) -> web.Response:
        """Return all metrics in the Prometheus text format."""
        state = self._leader.committed
        METRICS.leader.set(int(self._leader.may_record()))
        METRICS.log_head_position.set(state.position)
        METRICS.reservations_held.set(sum(1 for _ in claims_of_kind(state, "reservation")))
        waiting = sum(root.last_decision is not None for root in state.gangs.values())
        METRICS.pending_entities.labels("podgroup").set(waiting)
        self._set_gauges()
        body = await exposition(METRICS.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


class _Family(Collector):
    """One family of a registry, for `generate_latest`."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


async def exposition(registry: CollectorRegistry) -> bytes:
    """Return all metrics of a registry in the Prometheus text format; other callers are answered between its families."""
    parts, pace = [], Yielder()
    for family in registry.collect():
        parts.append(generate_latest(_Family(family)))
        await pace.yield_if_due()
    return b"".join(parts)


def _health(
    checks: tuple[ReadinessCheck, ...], *, shows: bool = True, status: int = 0
) -> web.Response:
    """Return the answer; `shows`: with the checks; `status` 0: 200 if all are passed, else 503."""
    ready = all(check.ok for check in checks)
    body = msgspec.json.encode(Health(ready=ready, checks=list(checks) if shows else []))
    status = status or (200 if ready else 503)
    return web.Response(status=status, body=body, content_type="application/json")
