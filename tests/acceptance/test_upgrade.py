"""The release before is upgraded, rolled back and upgraded again under load, on one PostgreSQL that is migrated once.

Both are real: the release before is the newest tag of this branch (the commit, before there is one), and the version after is
this checkout with one more migration that adds, so that a schema that the release before does not know is always part of the story.
Two replicas are replaced one after the other, as the Deployment does; the demo's player has kube-scheduler's part.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import asyncpg
import pytest
import yaml

from deploy.demo.kube_scheduler import Player
from extender.store import schema_migration
from tests.acceptance.test_process_kills import create, recorded
from tests.support.service.manifest_builders import a_fleet
from tests.support.service.replicas import ROOT, Replica, RoundRobin
from tests.support.waiting import eventually, patient

pytestmark = pytest.mark.postgres
PARTS = ("extender", "migrations", "deploy/kubernetes", "deploy/postgres")  # what runs
SIZE = 6  # members of a gang
OPEN = 3  # gangs that are created before those before are bound
PAUSE_S = 1.0  # between two gangs: the fleet has capacity for 170
SCHEDULED = 3  # gangs that must be scheduled after each step, by the version that runs then
MIGRATION = """
from alembic import op

revision = "next"
down_revision = "{newest}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE gx.event ADD COLUMN added_by_next text")
    op.execute("CREATE TABLE gx.added_by_next (position bigint PRIMARY KEY REFERENCES gx.event)")
"""
BREAKING = MIGRATION.replace("depends_on = None", "depends_on = None\nbreaks_older = True")


@dataclass(frozen=True)
class Version:
    """A version of the program, in a folder of its own."""

    name: str
    folder: Path
    database_url: str

    def run(self, *words, code=0):
        """Run a command of it to its end; return what it printed."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("GANG_EXTENDER_")}
        environ["GANG_EXTENDER_DATABASE_URL"] = self.database_url
        done = subprocess.run(
            [sys.executable, "-m", "extender", *words],
            cwd=self.folder, env=environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, (self.name, words, done.stdout, done.stderr)
        return done.stdout + done.stderr


def git(*words):
    """Run git in this checkout; return what it wrote."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


@pytest.fixture
def before(tmp_path, empty_database_url):
    """The release before."""
    folder = tmp_path / "before"
    tags = (
        git("tag", "--list", "v*", "--merged", "HEAD", "--sort=-version:refname").decode().split()
    )
    revision = next(iter(tags), "HEAD")
    print(f"\nbefore: {revision}")
    folder.mkdir()
    subprocess.run(
        ["tar", "-x", "-C", folder], input=git("archive", revision, *PARTS), check=True
    )  # tarfile has no filters before Python 3.11.4
    return Version("before", folder, empty_database_url)


def version_after(folder, database_url, migration=MIGRATION):
    """This checkout with one more migration."""
    for name in PARTS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    text = migration.format(newest=schema_migration.newest_revision())
    (folder / "migrations" / "versions" / "next_only_adds.py").write_text(text)
    return Version("after", folder, database_url)


@pytest.fixture
def after(tmp_path, empty_database_url):
    """This version, with a schema that the release before does not know."""
    return version_after(tmp_path / "after", empty_database_url)


class Deployment:
    """Two replicas with a Service in front of them, and the gangs that are created all the time."""

    def __init__(self, folder, version):
        self.folder = folder
        self.manifests, self.data = folder / "manifests", folder / "shared"
        self.manifests.mkdir()
        (self.manifests / "fleet.yaml").write_text(
            yaml.safe_dump_all(a_fleet("16 racks x 8 nodes", gpu=8))
        )
        self.created = 0
        self.replicas = []
        for number in range(2):
            made = type("VersionedReplica", (Replica,), {"program": version.folder})
            self.replicas.append(
                made(
                    folder, version.database_url, self.manifests, f"r{number}",
                    data="shared", lease_duration_s=5,
                )
            )  # fmt: skip

    async def until_ready(self):
        for replica in self.replicas:
            await replica.until("/readyz", 200)

    async def replace(self, front, version):
        """Replace the replicas one after the other: a new one is started when the old one has ended."""
        for replica in self.replicas:
            front.terminating.add(replica)
            assert await replica.stopped() == 0, replica.log.read_text()[-3000:]
            replica.program = version.folder
            replica.start()
            await replica.until("/readyz", 200)
            front.terminating.discard(replica)
            await eventually(lambda r=replica: r in front.ready, "in the Service")


class Scheduler:
    """kube-scheduler: one scheduling cycle after the other, bind calls beside them, and again what was refused."""

    def __init__(self, deployment, url):
        self.deployment = deployment
        self.player = Player(url, deployment.manifests, deployment.data / "cluster.jsonl")
        self.bound = Counter()  # successful answers of bind, by uid
        self.refused = []
        self._binding = {}
        self._created_s = 0.0

    def scheduled(self):
        """How many gangs are bound wholly, by the record of the cluster."""
        self.player.watch()
        names = {p.uid: p.name.rpartition("-")[0] for p in self.player.view.pods.values()}
        counts = Counter(names[uid] for uid in self.player.bound if uid in names)
        return sum(count == SIZE for count in counts.values())

    async def run(self, *, creating):
        """Schedule, until cancelled or, without new gangs, until all are bound."""
        while creating or self.scheduled() < self.deployment.created:
            now_s = asyncio.get_running_loop().time()
            due = now_s >= self._created_s + PAUSE_S
            if creating and due and self.deployment.created < self.scheduled() + OPEN:
                self._created_s = now_s
                create(self.deployment, f"gang{self.deployment.created}")
                self.deployment.created += 1
            self.player.reload()
            for pod in self.player.pending():
                if pod.uid in self._binding:
                    continue
                try:
                    node = await self.player.place(pod)
                except (aiohttp.ClientError, OSError) as fault:
                    self.refused.append(repr(fault))
                    continue
                if node is not None:
                    self._binding[pod.uid] = asyncio.create_task(self._bind(pod, node))
            await asyncio.sleep(0.05)
        await asyncio.gather(*self._binding.values())
        await self.player.close()

    async def _bind(self, pod, node):
        try:
            if error := await self.player.bind(pod, node):
                self.refused.append(error)
            else:
                self.bound[pod.uid] += 1
        except (aiohttp.ClientError, OSError) as fault:
            self.refused.append(repr(fault))
        finally:
            del self._binding[pod.uid]


async def until_all_scheduled(url, gangs):
    """Wait until the log has that each gang is scheduled: the leader records it after the last of its pods is seen bound."""

    async def recorded():
        return gangs <= {gang for _, kind, gang, *_ in await log_of(url) if kind == "GangScheduled"}

    await eventually(recorded, "all gangs scheduled, by the log", every_s=0.2)


async def log_of(url):
    """Return position, type, content and hash of every event."""
    connection = await asyncpg.connect(url)
    try:
        return [
            tuple(row)
            for row in await connection.fetch(
                "SELECT position, type, gang, payload::text, hash FROM gx.event ORDER BY position"
            )
        ]
    finally:
        await connection.close()


@pytest.mark.full
async def test_upgrade_rollback_and_upgrade_again_lose_nothing(tmp_path, before, after):
    """Every gang is bound, each Binding is made once, every event stays, and the log is verified by both versions."""
    before.run("db", "migrate")
    service = Deployment(tmp_path, before)
    logs = [[]]
    try:
        await service.until_ready()
        async with RoundRobin(service.replicas) as front:
            await eventually(lambda: len(front.ready) == 2, "both ready")
            scheduler = Scheduler(service, front.url)
            working = asyncio.create_task(scheduler.run(creating=True))

            async def some_are_scheduled():
                least = scheduler.scheduled() + SCHEDULED
                await eventually(
                    lambda: working.done() or scheduler.scheduled() >= least,
                    f"{least} of {service.created} scheduled; refused: {scheduler.refused[-5:]}",
                )
                assert not working.done(), working.exception()
                logs.append(await log_of(before.database_url))
                assert logs[-1][: len(logs[-2])] == logs[-2]

            await some_are_scheduled()
            for version in (after, before, after):
                assert "has schema" in await asyncio.to_thread(version.run, "db", "migrate")
                await some_are_scheduled()  # by the version that is still there
                await service.replace(front, version)
                print(f"\n{version.name} runs, {scheduler.scheduled()} scheduled", flush=True)
                await some_are_scheduled()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            async with patient("all gangs bound"):
                await scheduler.run(creating=False)
            gangs = [f"default/gang{number}" for number in range(service.created)]
            await until_all_scheduled(before.database_url, set(gangs))
    finally:
        for replica in service.replicas:
            replica.end()
    found = await log_of(before.database_url)
    assert found[: len(logs[-1])] == logs[-1]
    assert [position for position, *_ in found] == list(range(1, len(found) + 1))
    kinds = Counter((kind, gang) for _, kind, gang, *_ in found)
    assert len(gangs) >= 7 * SCHEDULED
    for gang in gangs:
        assert [kinds[kind, gang] for kind in ("GangAdmitted", "GangScheduled")] == [1, 1], gang
        assert kinds["PodBound", gang] == SIZE
    bindings = Counter(
        entry["uid"]
        for number in range(service.created)
        for entry in recorded(service, "bound", f"gang{number}")
    )
    assert set(bindings.values()) == {1}
    assert len(bindings) == SIZE * len(gangs)
    assert set(scheduler.bound.values()) == {1}, "an answer that a pod is bound is given once"
    assert [kind for kind, _ in kinds if kind in ("DriftDetected", "MemberTerminated")] == []
    print(f"\n{len(gangs)} gangs, {len(found)} events, {len(scheduler.refused)} calls refused")
    for version in (before, after):
        version.run("verify")


@pytest.mark.full
async def test_a_schema_that_breaks_the_release_before_keeps_it_from_starting(tmp_path, before):
    """The init container of a rollback ends with the reason; a replica that was started all the same does not serve."""
    after = version_after(tmp_path / "after", before.database_url, BREAKING)
    before.run("db", "migrate")
    after.run("db", "migrate")
    for words in (["db", "migrate"], ["serve", "--cluster", str(ROOT / "deploy/examples")]):
        printed = before.run(*words, code=2)
        assert "the database has schema next and runs with versions that know next" in printed
        assert "run the version that migrated it" in printed
