"""A service that is stopped with SIGTERM publishes the end of its log, so that nothing can be deleted after the stop unseen."""

from __future__ import annotations

import asyncio
import json

import pytest
import yaml
from typer.testing import CliRunner

from extender.cli.main import app
from extender.core.log.anchors import decode_anchors
from extender.runtime.log_keys import make_key, parse_keys
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.support.logs.tampering import tamper
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, a_fleet, a_gang
from tests.support.service.replicas import Replica
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


def verified(*words):
    done = CliRunner().invoke(app, ["verify", *map(str, words), "-o", "json"])
    return done.exit_code, json.loads(done.output)


async def test_the_last_event_before_a_clean_stop_cannot_be_deleted_unseen(database_url, tmp_path):
    """kill -TERM right after an admission; then the owner of the database deletes the last event, and `verify` names it."""
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "fleet.yaml").write_text(yaml.safe_dump_all(a_fleet("2 nodes", gpu=8)))
    key = tmp_path / "anchor.key"
    key.write_bytes(make_key()[0])
    service = Replica(
        tmp_path, database_url, manifests, "only", anchor_key_file=key, lease_duration_s=15
    )
    anchors = tmp_path / "only" / "log-end.json"

    async def admitted(name):
        gang = a_gang(name, pods=2, requests={GPU: 1}, schedulingGates=GATED)
        (tmp_path / name).write_text(yaml.safe_dump_all(gang))
        (tmp_path / name).rename(manifests / f"{name}.yaml")
        await service.until_events(f"?type=GangAdmitted&gang=default/{name}")

    def published():
        return decode_anchors(anchors.read_bytes())[-1]

    def is_published(position):
        return anchors.exists() and published().position >= position

    try:
        await service.until("/readyz", 200)
        await admitted("first")
        end = (await service.events("?limit=1000"))[-1]["position"]
        await eventually(lambda: is_published(end), "published")
        await admitted("second")  # the next time would be 5 s after that
        assert await service.stopped() == 0, service.log.read_text()[-2000:]
    finally:
        service.end()
    newest = published()
    async with PostgresEventLog(database_url) as log:
        head = await log.head()
    assert (newest.position, newest.chain) == (head.position, head.chain)
    assert parse_keys(key.read_bytes(), "test").check(newest) == "valid"
    given = ("--database-url", database_url, "--anchors", anchors, "--keys", key)
    assert await _in_thread(*given) == (0, [])
    await tamper(
        database_url,
        f"DELETE FROM gx.event WHERE position = {head.position}",
        f"UPDATE gx.projection SET position = least(position, {head.position - 1})",
        f"DELETE FROM gx.snapshot WHERE position = {head.position}",
    )
    assert await _in_thread(*given) == (1, ["tail-deleted"])


async def _in_thread(*words):
    """Return the exit code of `verify` and the kinds of its findings; it has an event loop of its own."""
    code, report = await asyncio.to_thread(verified, *words)
    return code, [finding["kind"] for finding in report["findings"]]
