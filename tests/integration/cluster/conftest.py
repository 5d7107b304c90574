"""A misbehaving API server and the adapter on it."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator

import pytest

from extender.cluster.api_server import informers, kubernetes_cluster
from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.cluster.connection.api_client import ApiServer
from extender.runtime.system_clock import SystemClock
from extender.telemetry import METRICS
from tests.integration.cluster.fake_api import FakeApi


@pytest.fixture(autouse=True)
def _from_zero() -> None:
    """The counters of the adapter are those of the process: each test counts from zero."""
    for counter in (METRICS.informer_lists, METRICS.objects_unreadable):
        counter.clear()
    for counter in (METRICS.k8s_events_failed, METRICS.k8s_events_dropped):
        counter.reset()


@pytest.fixture(autouse=True)
def _no_public_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of an API server without TLS loads those of the machine, each time 0.04 s of CPU."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, os.devnull)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again soon."""
    monkeypatch.setattr(informers, "PAUSE_FIRST_S", 0.02)
    monkeypatch.setattr(informers, "REDISCOVER_S", 0.05)
    monkeypatch.setattr(kubernetes_cluster, "PAUSE_S", 0.1)


@pytest.fixture
async def fake() -> AsyncIterator[FakeApi]:
    async with FakeApi() as server:
        yield server


@pytest.fixture
def leading() -> list[bool]:
    """The lease: replace its only element to lose it."""
    return [True]


@pytest.fixture
async def cluster(fake: FakeApi, leading: list[bool]) -> AsyncIterator[KubernetesCluster]:
    """The adapter, prepared and not started; stopped afterwards."""
    chance = random.Random(7)
    server = ApiServer(fake.configuration(), fence=lambda: leading[0], chance=chance)
    prepared = KubernetesCluster(server, clock=SystemClock(), chance=chance, instance="test")
    yield prepared
    await prepared.stop()
