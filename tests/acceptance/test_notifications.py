"""Notifications of the real service, killed between sending and noting it; the next process goes on."""

from __future__ import annotations

import asyncpg
import pytest
import yaml
from aiohttp import web

from tests.support.service.event_receiver import KEYS, EventReceiver
from tests.support.service.manifest_builders import a_fleet, a_gang
from tests.support.service.replicas import Replica
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


def never_fits(folder, name):
    """Add a gang for which the cluster is too small."""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(a_gang(name, pods=30)))


async def noted(url):
    """Return up to which position the receiver has been notified; None before the first leader."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval("SELECT position FROM gx.notification_cursor")
    finally:
        await connection.close()


@pytest.fixture
def started(database_url, tmp_path):
    """Return a function that starts a replica with notifications to a receiver."""
    manifests, keys = tmp_path / "manifests", tmp_path / "keys"
    manifests.mkdir()
    (manifests / "nodes.yaml").write_text(yaml.safe_dump_all(a_fleet("2 racks x 2 nodes", gpu=4)))
    keys.write_text("\n".join(KEYS))
    replicas = []

    def start(holder, receiver):
        one = Replica(
            tmp_path, database_url, manifests, holder, data="shared", notify_url=receiver.url,
            notify_secret_file=keys, notify_source="east",
        )  # fmt: skip
        replicas.append(one)
        return one

    start.manifests = manifests
    yield start
    for one in replicas:
        one.end()


async def test_a_kill_between_sending_and_noting_leaves_none_out(database_url, started):
    """The receiver has it, the position is not noted: the next leader sends it again with the same id, and goes on."""
    async with EventReceiver() as receiver:
        first = started("r0", receiver)
        await first.until_leads()
        await eventually(lambda: noted(database_url), "the first position", state=first.tail)

        async def kill(event):
            receiver.accepted.append(event)
            first.kill()
            return web.Response(status=500)  # its reader is dead

        accept, receiver.answer = receiver.answer, kill
        never_fits(started.manifests, "large")
        await eventually(lambda: receiver.events, "a notification", state=first.tail)
        receiver.answer = accept
        before = await noted(database_url)
        heir = started("r1", receiver)
        await eventually(lambda: len(receiver.accepted) == 2, "the repetition", state=heir.tail)
        once, again = receiver.accepted
        assert once == again
        assert (once["source"], once["subject"]) == ("east", "PodGroup/default/large")
        never_fits(started.manifests, "larger")
        await eventually(lambda: len(receiver.accepted) == 3, "the next one", state=heir.tail)
        assert receiver.accepted[2]["subject"] == "PodGroup/default/larger"
        position = receiver.accepted[2]["data"]["position"]

        async def is_noted():
            return await noted(database_url) >= position

        await eventually(is_noted, "its position", state=heir.tail)
        assert before < position
        assert len(receiver.events) == 3
        for replica in (first, heir):
            assert "hook/secret" not in replica.log.read_text()
