"""The database comes back as an older copy of itself, in the middle of a gang, three ways.

The real service on a PostgreSQL of its own and a cluster of manifests; the demo's player has
kube-scheduler's part. Each story: one gang done before the copy, one half bound after it, one that waits
for a member all the while.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from deploy.demo.kube_scheduler import Player
from extender.store import schema_migration
from tests.acceptance.test_process_kills import (
    ForkedService,
    events,
    play_until,
    recorded,
    until_none_names,
)
from tests.support.logs.postgres import run, running_postgres
from tests.support.logs.postgres_backups import Backup, Standby
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, a_fleet, a_gang
from tests.support.waiting import eventually

# the wheel's server has no pg_basebackup, the distribution's has
PROGRAMS = [path.parent for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_basebackup"))]
pytestmark = pytest.mark.postgres
SIZE, MINIMUM = 6, 3


class World:
    """Service, player and database of one story."""

    def __init__(self, folder, sockets):
        self.service = ForkedService(folder)
        (self.service.manifests / "fleet.yaml").write_text(
            yaml.safe_dump_all(a_fleet("2 racks x 5 nodes", gpu=2))
        )
        # what the URL names can be changed while the service runs, as a DNS name can
        self.address = folder / "db"
        self.point_at(sockets)
        self.service.environ["GANG_EXTENDER_DATABASE_URL"] = (
            f"postgresql://gang_extender@/gang_extender?host={self.address}"
        )
        self.service.environ["GANG_EXTENDER_LEASE_DURATION_S"] = "3"

    def point_at(self, sockets):
        new = self.address.with_suffix(".new")
        new.symlink_to(sockets)
        new.rename(self.address)

    def create(self, name, pods=SIZE, minimum=MINIMUM):
        objects = a_gang(
            name, pods=pods, minimum=minimum, requests={GPU: 1, "cpu": "1"}, schedulingGates=GATED
        )
        hidden = self.service.folder / f"{name}.tmp"
        hidden.write_text(yaml.safe_dump_all(objects))
        hidden.rename(self.service.manifests / f"{name}.yaml")

    def player(self):
        return Player(self.service.url, self.service.manifests, self.service.data / "cluster.jsonl")

    def metric(self, name):
        with urllib.request.urlopen(f"{self.service.url}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))

    def published(self):
        """Return the end of the log as published outside of the database; 0 before the first time."""
        found = self.service.data / "log-end.json"
        return int(json.loads(found.read_text())["position"]) if found.exists() else 0

    def output_of(self, *words):
        done = self.service.run(*words)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout

    async def until_ready(self):
        await eventually(self.service.ready, "ready")


@contextmanager
def a_world(folder, sockets):
    """Yield a world whose database is there already; afterwards nothing of it is left."""
    made = World(folder, sockets)
    try:
        yield made
    finally:
        made.service.stop()
        until_none_names(made.service.data, made.service.log)


@pytest.fixture
def folder():
    """A folder that the account of a server can reach."""
    made = Path(tempfile.mkdtemp(prefix="gx-lost-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def world(request, folder):
    """A world; its server's programs may be named by an indirect parameter."""
    with running_postgres(pg_bin=getattr(request, "param", None)) as server:
        run(schema_migration.upgrade(server.url))
        with a_world(folder, server._started_home().sockets) as made:
            made.server = server
            yield made


async def before_the_copy(world):
    """One gang done; one that waits for its last member."""
    world.service.start()
    player = world.player()
    world.create("kept")
    world.create("waiting", pods=SIZE - 1, minimum=SIZE)
    await eventually(lambda: len(recorded(world.service, "gate-removed", "kept")) == SIZE, "let go")
    player.reload()
    await play_until(player, lambda: count_of(world, "PodBound", "kept") == SIZE, "kept recorded")
    return player


async def after_the_copy(world, player):
    """Half a gang bound, the other half admitted and nominated; all of it will be missing in the copy."""
    world.create("half")
    await eventually(lambda: len(recorded(world.service, "gate-removed", "half")) == SIZE, "let go")
    player.reload()
    mine = [pod for pod in player.pending() if pod.name.startswith("half-")]
    placed = [(pod, await player.place(pod)) for pod in mine[:MINIMUM]]
    await asyncio.gather(*(player.bind(pod, node) for pod, node in placed))
    await eventually(lambda: count_of(world, "PodBound", "half") == MINIMUM, "half is recorded")
    return events(world.service)


def count_of(world, kind, gang):
    return sum(f["type"] == kind and f["gang"] == f"default/{gang}" for f in events(world.service))


async def all_ends_well(world, player, lost, evidence):
    """The loss is recorded, what ran is in the log again, every pod gets capacity once."""
    await eventually(
        lambda: any(f["type"] == "HistoryTruncated" for f in events(world.service)),
        "the truncation recorded",
    )
    await world.until_ready()
    (truncation,) = [f for f in events(world.service) if f["type"] == "HistoryTruncated"]
    assert truncation["data"]["evidence"] == evidence
    assert truncation["data"]["known_position"] <= lost[-1]["position"]
    assert truncation["data"]["found_position"] < truncation["data"]["known_position"]
    assert truncation["epoch"] > max(f["epoch"] for f in lost)
    assert world.metric("gang_extender_history_truncated_total") == 1
    lines = [
        json.loads(line)
        for line in (world.service.folder / "service.log").read_text().splitlines()
        if line.startswith("{")
    ]
    (line,) = [one for one in lines if one["message"] == "history lost"]
    assert (line["level"], line["position"]) == ("ERROR", truncation["position"])

    world.create("waiting", minimum=SIZE)  # its last member comes
    await eventually(
        lambda: len(recorded(world.service, "gate-removed", "waiting")) == SIZE, "let go"
    )
    player.reload()
    for name in ("kept", "half", "waiting"):
        await play_until(
            player, lambda name=name: count_of(world, "PodBound", name) == SIZE, f"{name} bound"
        )

    log = events(world.service)
    assert [f["position"] for f in log] == list(range(1, len(log) + 1))
    assert (
        log[: truncation["data"]["found_position"]] == lost[: truncation["data"]["found_position"]]
    )
    bound = {f["data"]["uid"]: f for f in log if f["type"] == "PodBound"}
    assert len(bound) == sum(f["type"] == "PodBound" for f in log) == 3 * SIZE
    done = [
        e for name in ("kept", "half", "waiting") for e in recorded(world.service, "bound", name)
    ]
    assert len(done) == 3 * SIZE, "every pod is bound once"
    assert {e["uid"]: e["node"] for e in done} == {u: f["data"]["node"] for u, f in bound.items()}
    assert max(Counter(e["node"] for e in done).values()) <= 2, "no capacity was used twice"
    found = [f for f in log if f["type"] == "DriftDetected"]
    ran = {
        f["data"]["pod"] for f in lost if f["type"] == "PodBound" and f["gang"] == "default/half"
    }
    assert {f["data"]["object"] for f in found} == {f"Pod/{pod}" for pod in ran}
    for f in log[truncation["position"] :]:
        if f["type"] == "GangAdmitted":
            assert f["position"] > max(d["position"] for d in found), "compared, then promised"

    return truncation


async def test_a_backup_is_restored_while_the_service_lives(world):
    """The copy has the lease of this very process: nothing is fenced, and it is noticed all the same."""
    player = await before_the_copy(world)
    try:
        backup = Backup(world.server)
        await backup.take()
        lost = await after_the_copy(world, player)
        await backup.restore()
        truncation = await all_ends_well(world, player, lost, "memory")
        assert (
            f"position {truncation['position']}, {truncation['time']}: history lost"
            in world.output_of("verify")
        )
        history = json.loads(world.output_of("history", "kept", "-o", "json"))
        assert [f["type"] for f in history].count("HistoryTruncated") == 1
    finally:
        await player.close()


@pytest.mark.full
async def test_a_backup_is_restored_and_the_service_restarted(world):
    """The new process knows only what was published outside of the database."""
    player = await before_the_copy(world)
    try:
        backup = Backup(world.server)
        await backup.take()
        lost = await after_the_copy(world, player)
        await eventually(lambda: world.published() == len(lost), "published")
        world.service.kill()
        await backup.restore()
        world.service.start()
        await all_ends_well(world, player, lost, "published")
    finally:
        await player.close()


@pytest.mark.full
@pytest.mark.parametrize("world", PROGRAMS, ids=lambda path: path.parent.name, indirect=True)
async def test_a_lagging_standby_is_promoted(world):
    """An asynchronous standby without the last events takes over, on a timeline of its own."""
    place = Path(tempfile.mkdtemp(prefix="gxs-"))
    place.chmod(0o755)
    standby = Standby(world.server, place)
    player = await before_the_copy(world)
    try:
        await standby.start()
        await standby.lag_from_now()
        lost = await after_the_copy(world, player)
        world.server._server.send_signal(signal.SIGQUIT)
        await standby.promote()
        world.point_at(standby.sockets)
        truncation = await all_ends_well(world, player, lost, "memory")
        assert truncation["data"]["timeline"] == "00000002"
    finally:
        await player.close()
        world.service.stop()
        standby.stop()
        shutil.rmtree(place, ignore_errors=True)
