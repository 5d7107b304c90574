"""A running service with some history, for tests that only ask it."""

from __future__ import annotations

import contextlib

import pytest
import yaml

from tests.support.logs.postgres import fresh_database, run
from tests.support.service import fork_server
from tests.support.service.browser import chromium
from tests.support.service.manifest_builders import GPU, RACK, a_fleet, a_gang, a_pod
from tests.support.service.replicas import Replica
from tests.support.waiting import eventually


@contextlib.contextmanager
def running_service(kind, folder, url):
    """Run the service with an admission, a refusal, a tree that breaks a rule and one that is waiting.

    Args:
        kind: The class of it, `Replica` or one that is made from it.
        folder: For its files.
        url: Its database.
    """
    manifests = folder / "manifests"
    manifests.mkdir()
    objects = [
        *a_fleet("2 racks x 2 nodes", gpu=4),
        *a_gang("fits", pods=4, topo=RACK),
        *a_gang("large", pods=50),
        *a_gang("waits", pods=1, minimum=3),
        a_pod("alone", requests={GPU: 1}),
    ]
    (manifests / "all.yaml").write_text(yaml.safe_dump_all(objects))
    replica = kind(folder, url, manifests, "contract")
    try:
        run(replica.until("/readyz", 200))
        run(until_answered(replica))
        yield replica
    finally:
        replica.end()


@pytest.fixture(scope="session", autouse=True)
def _log_is_verified_late():
    with fork_server.shortened(fork_server.VERIFIES_LATE):
        yield


@pytest.fixture(scope="module")
def service(postgres_url, template_database, tmp_path_factory):
    """The service with some history."""
    folder = tmp_path_factory.mktemp("contract")
    with (
        fresh_database(postgres_url, template=template_database) as url,
        running_service(Replica, folder, url) as replica,
    ):
        yield replica


@pytest.fixture(scope="session")
def opened_browser():
    """A browser for all tests of this process."""
    with chromium() as opened:
        yield opened


@pytest.fixture
def browser(opened_browser):
    """The browser, with an empty page of the size of a desktop; afterwards nothing asks the service any more."""
    yield opened_browser
    opened_browser.reset()


async def until_answered(replica):
    """Wait until two gangs have been decided on."""

    async def decided():
        found = await replica.events("?type=GangUnschedulable&type=GangAdmitted")
        return len({event["gang"] for event in found}) >= 2

    await eventually(decided, "two gangs that have been decided on", state=replica.tail)
