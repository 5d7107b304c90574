"""Cases in steps, with the real service on a real PostgreSQL: what it answers when the cluster has changed, also while it was down."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import asyncpg
import pytest
import yaml

from deploy.demo.kube_scheduler import Player
from extender.store.connections import plain_url
from tests.support.service.command_line import run_command
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import a_gang, a_group, a_node, a_pod
from tests.support.service.replicas import Replica
from tests.support.waiting import Patience, eventually

pytestmark = pytest.mark.postgres

RACK = "net/rack"
BLOCKED = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'gx.event'::regclass"


class Place:
    """A service on manifests that the test replaces; a second one goes on with its journal and its log."""

    def __init__(self, folder, database_url):
        self.folder, self.database_url = folder, database_url
        self.manifests = folder / "manifests"
        self.manifests.mkdir()
        self.service: Replica | None = None
        self.player: Player | None = None

    def write(self, name, *objects):
        """Replace a file by rename, as every writer of manifests should; without objects it is removed."""
        if not objects:
            (self.manifests / f"{name}.yaml").unlink()
            return
        (self.folder / name).write_text(yaml.safe_dump_all(objects))
        (self.folder / name).rename(self.manifests / f"{name}.yaml")

    async def start(self, holder="only"):
        self.service = Replica(
            self.folder, self.database_url, self.manifests, holder, data="data", lease_duration_s=15
        )
        await self.service.until_leads()

    def kill(self):
        """SIGKILL; its lease is ended, so that the next one need not wait for its end."""
        assert self.service is not None
        self.service.kill()

    async def schedule_until(self, condition, what):
        """Be kube-scheduler until something holds."""
        assert self.service is not None
        record = self.folder / "data" / "cluster.jsonl"
        player = self.player = Player(self.service.url, self.manifests, record)
        try:
            with Patience(what, self.service.tail) as patience:
                while not await condition():
                    if patience.exhausted():
                        raise patience.failure()
                    await player.run_until_idle(quiet_s=0.2)
        finally:
            await player.close()

    def journal(self, kind):
        path = self.folder / "data" / "cluster.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [one for one in map(json.loads, lines) if one["type"] == kind]

    def command(self, *words):
        """Return what a command prints that asks the service."""
        assert self.service is not None
        done = run_command(*words, "--server", self.service.url)
        assert done.returncode in (0, 1), done
        return done.stdout

    async def gang(self, name):
        assert self.service is not None
        return (await self.service.ask(f"/v1/gangs/{name}"))[1]

    async def until_gang(self, name, **fields: Any):
        """Wait until the fields of a gang are these; return it."""

        async def answer():
            gang = await self.gang(name)
            return gang if gang and {k: gang.get(k) for k in fields} == fields else None

        assert self.service is not None
        return await eventually(answer, f"{name} is {fields}", every_s=0.2, state=self.service.tail)


@pytest.fixture
def place(tmp_path, database_url):
    made = Place(tmp_path, database_url)
    try:
        yield made
    finally:
        if made.service is not None:
            made.service.end()


# --- bound, and gone before it was recorded


@contextlib.asynccontextmanager
async def nothing_is_appended(url):
    """Keep the database from taking events; the appends that wait at the end are never made."""
    connection = await asyncpg.connect(plain_url(url))
    other = await asyncpg.connect(plain_url(url))
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("LOCK TABLE gx.event IN EXCLUSIVE MODE")
        yield
        for row in await other.fetch(BLOCKED):
            await other.execute("SELECT pg_terminate_backend($1)", row["pid"])

        async def none_waits():
            return not await other.fetch(BLOCKED)

        await eventually(none_waits, "no append waits", every_s=0.05)
        await transaction.rollback()
    finally:
        await connection.close()
        await other.close()


async def bound_without_a_record(place):
    """Let the service bind a gang of three, and kill it before the log has it."""
    place.write("nodes", *(a_node(f"n{n}", cpu=4) for n in range(3)))
    gang = a_gang("g", pods=3, requests={"cpu": "3"}, schedulingGates=GATED)
    place.write("g", *gang)
    await place.start()
    await place.service.until_events("?type=GangAdmitted&gang=default/g")
    async with nothing_is_appended(place.database_url):

        async def all_bound():
            return len(place.journal("bound")) == 3

        await place.schedule_until(all_bound, "three bindings")
        place.kill()
    return gang


@pytest.mark.parametrize(
    "root_stays",
    [
        pytest.param(False, id="root deleted"),
        pytest.param(True, id="root stays", marks=pytest.mark.full),
    ],
)
async def test_members_that_were_bound_and_deleted_while_we_were_down(place, root_stays):
    """They were bound and have terminated, in log, history and reports; no reservation was left unused."""
    group, *_ = await bound_without_a_record(place)
    place.write("g", *([group] if root_stays else ()))
    await place.start()
    ended = await place.service.until_events("?type=MemberTerminated&gang=default/g", 3)
    if not root_stays:
        await place.service.until_events("?type=GangRemoved&gang=default/g")
    events = await place.service.events("?gang=default/g&limit=1000")
    kinds = [event["type"] for event in events]
    assert (kinds.count("PodBound"), kinds.count("ReservationReleased")) == (3, 0)
    assert sorted(e["data"]["node"] for e in ended) == ["n0", "n1", "n2"]
    assert {e["data"]["cause"] for e in ended} == {"deleted"}
    history = place.command("history", "default/g")
    assert "released" not in history.lower(), history
    rows = json.loads(place.command("report", "terminations", "-o", "json"))["rows"]
    assert sorted(row["pod"] for row in rows) == ["default/g-0", "default/g-1", "default/g-2"]


async def test_members_that_succeeded_while_we_were_down_make_the_gang_complete(place):
    """Their pods are still there, ended: the gang is completed, not one that was never placed."""
    group, *pods = await bound_without_a_record(place)
    place.write("g", group, *({**pod, "status": {"phase": "Succeeded"}} for pod in pods))
    await place.start()
    await place.until_gang("default/g", state="completed")
    kinds = [e["type"] for e in await place.service.events("?gang=default/g&limit=1000")]
    assert (kinds.count("PodBound"), kinds.count("GangScheduled")) == (3, 1)
    assert "ReservationReleased" not in kinds


async def test_what_was_never_bound_is_released_as_deleted(place):
    """Nothing was bound and the journal has no Binding: whether it was bound is not known, and this is in the log."""
    place.write("nodes", *(a_node(f"n{n}", cpu=4) for n in range(3)))
    place.write("g", *a_gang("g", pods=3, requests={"cpu": "3"}, schedulingGates=GATED))
    await place.start()
    await place.service.until_events("?type=GangAdmitted&gang=default/g")
    place.kill()
    place.write("g")
    await place.start()
    (released,) = await place.service.until_events("?type=ReservationReleased&gang=default/g")
    assert released["data"]["reason"] == "deleted"
    assert "whether it was bound is not known" in released["data"]["message"]
    await place.service.until_events("?type=GangRemoved&gang=default/g")
    assert await place.service.events("?type=PodBound&gang=default/g") == []


async def test_members_of_the_log_that_went_with_their_root_while_we_were_down(place):
    """They were bound in the log: each ends before the gang does."""
    await bound_gang(place)
    place.kill()
    place.write("g")
    await place.start()
    await place.service.until_events("?type=GangRemoved&gang=default/g")
    events = await place.service.events("?gang=default/g&limit=1000")
    kinds = [e["type"] for e in sorted(events, key=lambda e: e["position"])]
    assert kinds[-3:] == ["MemberTerminated", "MemberTerminated", "GangRemoved"]
    rows = json.loads(place.command("report", "terminations", "-o", "json"))["rows"]
    assert sorted(row["pod"] for row in rows) == ["default/g-0", "default/g-1"]


# --- pinned-domain-full


def racks(*without):
    return [
        a_node(f"n{n}", {RACK: f"r{n // 2}"}, cpu=4) for n in range(4) if f"n{n}" not in without
    ]


async def bound_gang(place):
    """Let the service place and bind a gang of two in one rack of two."""
    place.write("nodes", *racks())
    gang = a_gang("g", pods=2, requests={"cpu": "3"}, topo=RACK, schedulingGates=GATED)
    place.write("g", *gang)
    await place.start()
    await place.service.until_events("?type=GangAdmitted&gang=default/g")

    async def is_scheduled():
        return (await place.gang("default/g"))["state"] == "scheduled"

    await place.schedule_until(is_scheduled, "the gang is bound")
    return gang


async def test_a_pinned_gang_learns_where_all_of_it_would_fit(place):
    """Case pinned-domain-full: one member lost its node, its rack is full, and the other rack is free."""
    group, *pods = await bound_gang(place)
    nodes = {m["pod"]: m["node"] for m in (await place.gang("default/g"))["members"]}
    assert {int(node[1]) // 2 for node in nodes.values()} in ({0}, {1})
    own = int(nodes["default/g-0"][1]) // 2
    pods[1]["metadata"] |= {"uid": "uid-g1-again"}
    place.write("nodes", *racks(nodes["default/g-1"]))
    place.write("g", group, *pods)

    async def names_the_other():
        text = place.command("explain", "default/g")
        return text if f"r{1 - own}" in text else None

    text = await eventually(names_the_other, "the free rack is named", every_s=0.3)
    assert "pin" in text
    assert f"r{own}" in text
    assert (await place.gang("default/g"))["state"] == "degraded"


# --- bound-before-the-log


def running():
    """Make a gang of four pods that run."""
    pods = (
        a_pod(
            f"p{n}", "p", node=f"n{n}", requests={"cpu": "3"}, metadata={"uid": f"uid-p{n}"},
        )
        for n in range(4)
    )  # fmt: skip
    return [a_group("p", gang=4), *pods]


def only(objects, *names):
    """Return groups, and of the pods those of these names."""
    return [o for o in objects if o["kind"] != "Pod" or o["metadata"]["name"] in names]


async def test_the_minimum_of_a_gang_older_than_the_log_is_that_of_its_groups(place):
    """Case bound-before-the-log: 4 of 4, then degraded with 1 of 4, also on the command line."""
    place.write("nodes", *racks())
    place.write("p", *running())
    await place.start()
    await place.until_gang("default/p", state="scheduled", minimum_present=4, minimum_needed=4)
    assert "4/4" in place.command("gangs")
    place.write("p", *only(running(), "p0"))
    gang = await place.until_gang(
        "default/p", state="degraded", minimum_present=1, minimum_needed=4
    )
    assert gang["reasons"][0].startswith("1 of 4 pods of the minimum are there")
    assert "1/4" in place.command("gangs")
    assert "1 of 4 pods of the minimum are there" in place.command("explain", "default/p")
