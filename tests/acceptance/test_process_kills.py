"""Stories through HTTP with the real service: kill it between any two events, nothing is lost and nothing doubled.

The service runs as in production, on an embedded PostgreSQL and a cluster of manifests; the demo's player has
kube-scheduler's part.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path
from subprocess import PIPE

import pytest
import yaml

from deploy.demo.kube_scheduler import Player
from deploy.demo.play import Service
from tests.support import waiting
from tests.support.failure_report import show_log
from tests.support.service import fork_server
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, a_fleet, a_gang
from tests.support.service.replicas import Replica
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
SIZE = 6
pytestmark = pytest.mark.postgres


class ForkedService(Service):
    """The service of the demo, forked from a process that has imported it, and waited for in the time of the test."""

    def __init__(self, folder):
        super().__init__(folder)
        self.log = folder / "service.log"
        show_log(self.log)

    def start(self):
        words = ["serve", "--cluster", str(self.manifests), *self.listeners]
        with self.log.open("ab") as log:
            self.process = fork_server.run(words, self.environ, log)

        def is_ready():
            assert self.process.poll() is None, f"the service has ended: {self.tail()}"
            return self.ready()

        waiting.until(is_ready, "the service is ready", every_s=0.05, state=self.tail)

    def tail(self):
        """Return the end of its log, which is another one when it has progressed."""
        return self.log.read_text()[-500:]

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as reply:
            return json.load(reply)

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            ended = lambda: self.process.poll() is not None
            waiting.until(ended, "the service has ended", state=self.tail)

    def run(self, *words):
        """Run a command for it, to its end; gives its output and errors as well."""
        command = fork_server.run(words, self.environ, PIPE, errors=PIPE, text=True)
        output, errors = command.communicate()
        return subprocess.CompletedProcess(words, command.returncode, output, errors)


def processes_naming(text):
    """Find processes whose command line, environment or open files name a folder; our own children included."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            files = [str(file.readlink()) for file in (folder / "fd").iterdir()]
        except OSError:
            continue
        if text.encode() in words or any(text in file for file in files):
            found.append((int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ")))
    return found


def until_none_names(*paths):
    """Wait until no process names one of these files and folders."""
    naming = lambda: [process for path in paths for process in processes_naming(str(path))]
    waiting.until(lambda: not naming(), "no process is left", every_s=0.1, state=naming)


@contextlib.contextmanager
def a_service(**environ):
    """Prepare a service in a folder of its own, with variables; stopped and gone afterwards, an embedded database with it."""
    folder = Path(tempfile.mkdtemp(prefix="gx-acceptance-"))
    folder.chmod(0o755)
    made = ForkedService(folder)
    made.environ |= environ
    (made.manifests / "fleet.yaml").write_text(
        yaml.safe_dump_all(a_fleet("2 racks x 4 nodes", gpu=8))
    )
    try:
        yield made
    finally:
        made.stop()
        until_none_names(folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def service():
    """A service with an embedded PostgreSQL, which ends and starts with it."""
    with a_service() as made:
        yield made


def create(service, name):
    """Create a gated gang, by rename, as every writer of manifests should."""
    objects = a_gang(name, pods=SIZE, requests={GPU: 1, "cpu": "1"}, schedulingGates=GATED)
    hidden = service.folder / f"{name}.tmp"
    hidden.write_text(yaml.safe_dump_all(objects))
    hidden.rename(service.manifests / f"{name}.yaml")


def events(service):
    return service.get("/v1/events?limit=1000")


def members_of(service, name):
    return service.get(f"/v1/gangs/default/{name}")["members"]


def recorded(service, kind, gang):
    """Count lines of the cluster's own record about a gang's pods."""
    path = service.data / "cluster.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    entries = [json.loads(line) for line in lines]
    return [e for e in entries if e["type"] == kind and e["name"].startswith(f"{gang}-")]


async def play_until(player, condition, what, state=None):
    """Be kube-scheduler until something holds: it does not give up either when nothing moves for a moment."""
    with waiting.Patience(what, state) as patience:
        while not condition():
            if patience.exhausted():
                raise patience.failure()
            await player.run_until_idle(quiet_s=0.3)


async def at_bind(service, player, name, count):
    """Bring `count` members to bind; return the calls."""
    player.reload()
    await eventually(lambda: len(recorded(service, "gate-removed", name)) == SIZE, f"{name} let go")
    calls = []
    mine = [p for p in player.pending() if p.name.startswith(f"{name}-")]
    assert len(mine) == SIZE
    for pod in mine[:count]:
        node = await player.place(pod)
        calls.append(asyncio.create_task(player.bind(pod, node)))
    for pod in mine[count:]:
        await player.place(pod)  # answered after the calls above have come
    return calls


async def kill_at(service, player, name, point):
    """Kill the service at a point of the life of a gang; return the reservations it must still have."""
    create(service, name)
    calls, held = [], None
    if point == "while nominating":
        await eventually(lambda: recorded(service, "nominated", name), "a nomination")
    elif point == "before the first filter":
        await eventually(lambda: len(recorded(service, "gate-removed", name)) == SIZE, "all let go")
        held = members_of(service, name)
    elif point == "in the barrier":
        calls = await at_bind(service, player, name, SIZE // 2)
        held = members_of(service, name)
        assert recorded(service, "bound", name) == []
        assert not any(call.done() for call in calls)
    elif point != "before the admission":  # there it is killed at once
        calls = await at_bind(service, player, name, SIZE)
        least = 1 if point == "between two binds" else SIZE
        await eventually(lambda: len(recorded(service, "bound", name)) >= least, "a bind")
    service.kill()
    await asyncio.gather(*calls, return_exceptions=True)
    await player.close()
    return held


POINTS = ["before the admission", "while nominating", "before the first filter", "in the barrier",
          "between two binds", "before it is written down"]  # fmt: skip


@pytest.mark.parametrize(
    "points", [POINTS[1::2], pytest.param(POINTS[::2], marks=pytest.mark.full)], ids=" and ".join
)
async def test_a_kill_between_any_two_events_loses_nothing(service, points):
    """SIGKILL at points of the life of a gang: each is completed after the restart, and every event is in the log once."""
    service.start()
    player = Player(service.url, service.manifests, service.data / "cluster.jsonl")
    try:
        for number, point in enumerate(points):
            name = f"gang{number}"
            held = await kill_at(service, player, name, point)
            service.start()
            if held is not None:
                assert members_of(service, name) == held, point
            player.reload()
            await eventually(
                lambda name=name: len(recorded(service, "gate-removed", name)) == SIZE, "let go"
            )
            await play_until(
                player,
                lambda name=name: service.get(f"/v1/gangs/default/{name}")["state"] == "scheduled",
                f"{name} satisfied after a kill {point}",
            )
            assert service.get(f"/v1/gangs/default/{name}")["bound"] == SIZE
    finally:
        await player.close()
    log = events(service)
    assert [f["position"] for f in log] == list(range(1, len(log) + 1))
    bound = Counter(f["data"]["uid"] for f in log if f["type"] == "PodBound")
    assert set(bound.values()) == {1}
    assert len(bound) == SIZE * len(points)
    once = Counter(
        (f["type"], f["gang"])
        for f in log
        if f["type"] in ("GangAdmitted", "GangScheduled", "GangObserved")
    )
    assert once == {
        (kind, f"default/gang{n}"): 1
        for kind in ("GangAdmitted", "GangScheduled", "GangObserved")
        for n in range(len(points))
    }
    assert [f for f in log if f["type"] in ("DriftDetected", "MemberTerminated")] == []
    where = {
        e["uid"]: e["node"]
        for n in range(len(points))
        for e in recorded(service, "bound", f"gang{n}")
    }
    planned = {
        a["uid"]: a["node"]
        for f in log
        if f["type"] == "GangAdmitted"
        for a in f["data"]["assignments"]
    }
    assert where == planned, "every pod runs where its capacity was reserved"
    assert max(Counter(where.values()).values()) <= 8, "no capacity was used twice"
    verified = service.run("verify")
    assert (verified.returncode, verified.stderr) == (0, ""), verified
    assert f"{len(log)} events verified" in verified.stdout


async def test_texts_postgres_cannot_store_are_the_askers_fault(database_url, tmp_path):
    """A NUL in a question is a 4xx or an empty answer, never a 500."""
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "all.yaml").write_text(yaml.safe_dump_all(a_fleet("1 nodes")))
    replica = Replica(tmp_path, database_url, manifests, "only")
    try:
        await replica.until("/readyz", 200)
        for path in (
            "/v1/events?gang=a%00b",
            "/v1/events?namespace=%00",
            "/v1/events?type=%00",
            "/v1/gangs/a/b%00/history",
        ):
            status, _ = await replica.ask(path)
            assert status in (200, 400, 404), path
    finally:
        replica.end()
