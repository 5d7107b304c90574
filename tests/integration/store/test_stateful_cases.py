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


def running(name="p", pods=4, minimum=4, **metadata):
    return [
        a_group(name, gang=minimum, metadata=metadata),
        *(
            a_pod(
                f"{name}{n}",
                name,
                node=f"n{n}",
                requests={"cpu": "3"},
                metadata={"uid": f"uid-{name}{n}"},
            )
            for n in range(pods)
        ),
    ]


def composite(children=2, minimum=2, **metadata):
    """Make a composite whose children run with two pods each."""
    objects = [a_group("p", composite=True, gang=minimum, metadata=metadata)]
    for child in range(children):
        objects.append(a_group(f"p-{child}", gang=2, parent="p"))
        objects += [
            a_pod(
                f"p{n}",
                f"p-{child}",
                node=f"n{n}",
                requests={"cpu": "3"},
                metadata={"uid": f"uid-p{n}"},
            )
            for n in (2 * child, 2 * child + 1)
        ]
    return objects


def only(objects, *names):
    """Return groups, and of the pods those of these names."""
    return [o for o in objects if o["kind"] != "Pod" or o["metadata"]["name"] in names]


@pytest.mark.parametrize(
    ("objects", "down"),
    [
        pytest.param(running, False, id="flat-seen"),
        pytest.param(running, True, id="flat-while down", marks=pytest.mark.full),
        pytest.param(composite, False, id="composite-seen", marks=pytest.mark.full),
        pytest.param(composite, True, id="composite-while down"),
    ],
)
async def test_the_minimum_of_a_gang_older_than_the_log_is_that_of_its_groups(place, objects, down):
    """Case bound-before-the-log: 4 of 4, then degraded with 1 of 4; also when the members went while we were down."""
    place.write("nodes", *racks())
    place.write("p", *objects())
    await place.start()
    await place.until_gang("default/p", state="scheduled", minimum_present=4, minimum_needed=4)
    assert "4/4" in place.command("gangs")
    if down:
        place.kill()
    place.write("p", *only(objects(), "p0"))
    if down:
        await place.start()
    gang = await place.until_gang(
        "default/p", state="degraded", minimum_present=1, minimum_needed=4
    )
    assert gang["reasons"][0].startswith("1 of 4 pods of the minimum are there")
    assert "1/4" in place.command("gangs")
    assert "1 of 4 pods of the minimum are there" in place.command("explain", "default/p")


async def test_a_minimum_that_is_lowered_and_raised_is_the_one_that_counts(place):
    """Degraded with 4 needed, scheduled with 1, degraded with 2."""
    place.write("nodes", *racks())
    place.write("p", *running())
    await place.start()
    await place.until_gang("default/p", state="scheduled", minimum_needed=4)
    place.write("p", *only(running(), "p0"))
    await place.until_gang("default/p", state="degraded", minimum_present=1, minimum_needed=4)
    place.write("p", *only(running(minimum=1), "p0"))
    await place.until_gang("default/p", state="scheduled", minimum_present=1, minimum_needed=1)
    place.write("p", *only(running(minimum=2), "p0"))
    await place.until_gang("default/p", state="degraded", minimum_present=1, minimum_needed=2)


@pytest.mark.parametrize(
    "down",
    [
        pytest.param(False, id="seen", marks=pytest.mark.full),
        pytest.param(True, id="while down"),
    ],
)
async def test_a_group_that_is_created_again_with_running_members_has_its_minimum(place, down):
    """The new one has 4 of 4 and is degraded when three are gone; no member of the old one has terminated."""
    place.write("nodes", *racks())
    place.write("p", *running(uid="first"))
    await place.start()
    await place.until_gang("default/p", state="scheduled", minimum_needed=4)
    if down:
        place.kill()
    place.write("p", *running(uid="second"))
    if down:
        await place.start()
    await place.service.until_events("?type=GangRemoved&gang=default/p")
    await place.until_gang(
        "default/p", uid="second", state="scheduled", minimum_present=4, minimum_needed=4
    )
    assert await place.service.events("?type=MemberTerminated&gang=default/p") == []
    place.write("p", *only(running(uid="second"), "p0"))
    await place.until_gang("default/p", state="degraded", minimum_present=1, minimum_needed=4)


# --- preemption-refused-stale


LOWER = {"g9a-0", "g9b-0", "g9c-0", "g10-0"}


def full_nodes(*without):
    """Make three nodes, full of pods of priority 0; o4 terminates."""
    cpus = {"n0": "4", "n1": "3", "n2": "4"}
    pods = (
        ("o1", "n0", 1), ("o2", "n0", 2), ("o3", "n0", 1), ("o4", "n1", 2), ("o5", "n1", 1),
        ("o6", "n2", 1), ("o7", "n2", 2), ("o8", "n2", 1),
    )  # fmt: skip
    terminates = {"deletionTimestamp": "2026-01-02T00:05:00Z", "deletionGracePeriodSeconds": 30}
    return [
        *(a_node(name, {RACK: f"r{int(name == 'n2')}"}, cpu=cpu) for name, cpu in cpus.items()),
        *(
            a_pod(
                name, node=node, namespace="hold", requests={"cpu": cpu}, priority=0,
                metadata={"uid": f"uid-{name}", **(terminates if name == "o4" else {})},
            )
            for name, node, cpu in pods
            if name not in without
        ),
    ]  # fmt: skip


def a_tree(name, priority, minimum, leaves, *, whole=True):
    """Make a composite: by leaf the CPUs of its pods, their minimum, and its topology."""
    common = {"namespace": "hold", "priority": priority, "whole": whole}
    objects = [a_group(name, composite=True, gang=minimum, **common)]
    for leaf, (cpus, least, topo) in leaves.items():
        objects.append(a_group(name + leaf, gang=least, parent=name, topo=topo, **common))
        objects += _pods(name + leaf, cpus, priority)
    return objects


def _pods(leaf, cpus, priority):
    return [
        a_pod(
            f"{leaf}-{n}", leaf, namespace="hold", requests={"cpu": cpu}, priority=priority,
            schedulingGates=GATED,
        )
        for n, cpu in enumerate(cpus)
    ]  # fmt: skip


async def test_a_preemption_that_becomes_possible_is_looked_for(place):
    """Case preemption-refused-stale: refused while o4 terminates; when it is gone, evicting what runs is enough."""
    place.write("nodes", *full_nodes())
    await place.start()
    one = ((1,), 1, "")
    place.write(
        "trees",
        *a_tree("g9", 5, 1, {"a": one, "b": one, "c": one}),
        a_group("g10", gang=1, namespace="hold", priority=5, whole=True),
        *_pods("g10", (2,), 5),
        *a_tree(
            "g11", 7, 3,
            {"a": ((1, 2, 2), 3, ""), "b": ((1, 1), 2, RACK), "c": ((1, 1, 2), 3, "")},
            whole=False,
        ),
    )  # fmt: skip
    await place.service.until_events("?type=GangUnschedulable&gang=hold/g11")

    async def lower_ones_run():
        return {one["name"] for one in place.journal("bound")} == LOWER

    await place.schedule_until(lower_ones_run, "g9 and g10 run")
    assert await place.service.events("?type=PreemptionPlanned&gang=hold/g11") == []
    evicted_before = {one["name"] for one in place.journal("evicted")}
    place.write("nodes", *full_nodes("o4"))
    (planned,) = await place.service.until_events("?type=PreemptionPlanned&gang=hold/g11")
    victims = {pod["pod"] for unit in planned["data"]["victims"] for pod in unit["pods"]}
    rest = {f"o{n}" for n in (1, 2, 3, 5, 6, 7, 8)} - evicted_before
    assert victims == {f"hold/{name}" for name in LOWER | rest}  # g11 needs every CPU
    refused = await place.service.events("?type=GangUnschedulable&gang=hold/g11&limit=1000")
    since = [e for e in refused if e["position"] > planned["position"]]
    assert since == []
