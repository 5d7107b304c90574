"""Gangs as they are now, over HTTP and on the command line: the same form as in GET /v1/state."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from extender.core.log.events import GangRemoved, NewEvent, TreeCompiled
from extender.core.model.ids import NIL_GANG
from extender.core.workloads.tree_compiler import GroupSpec
from extender.core.workloads.workload_object import TREE_LABEL
from extender.queries.explain.explanation import Explanation
from extender.queries.state.state_dto import Scope
from extender.queries.state.state_report import build_state_report
from tests.integration.http.test_decision_api import asking, got
from tests.support.service.command_line import run_command
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import RACK, a_gang, a_group, a_node, a_pod
from tests.support.service.workload_builders import a_jobset
from tests.unit.control.actuators.test_evictor import ONE, lows, preemptor_tree

NODES = [a_node(f"n{n}", {RACK: f"r{n}"}, gpu=1) for n in range(2)]


def as_state(stage):
    """Return the gangs as GET /v1/state does, by name."""
    found = build_state_report(stage.leader.committed, Scope())
    return {g.gang: msgspec.json.decode(msgspec.json.encode(g)) for g in found.gangs}


async def test_a_gang_has_one_form():
    """A gang that preempts and the one it takes the capacity of: state, times and members as in GET /v1/state."""
    async with (
        Stage(*NODES, *lows("n0", "n1"), *preemptor_tree()) as stage,
        asking(stage) as client,
    ):
        await stage.lead()
        await stage.settled()
        wanted = as_state(stage)
        assert [wanted[f"default/{name}"]["state"] for name in ("hi", "low")] == [
            "preempting",
            "scheduled",
        ]
        for name, gang in wanted.items():
            assert await got(client, f"/v1/gangs/{name}") == gang
            assert (await got(client, f"/v1/gangs/{name}/explain"))["gang"] == gang
        listed = await got(client, "/v1/gangs")
        assert listed == [wanted[name] | {"members": []} for name in sorted(wanted)]
        assert "T" in wanted["default/hi"]["observed"]


async def test_the_command_line_shows_the_state_and_the_domains():
    """`gangs` has a column `state`, with *preempting*; `explain` has the state and the domains of groups."""
    gang = a_gang("g", pods=1, topo=RACK, namespace="default")
    free = a_node("n9", {RACK: "r9"}, gpu=1)
    async with (
        Stage(*NODES, *lows("n0", "n1"), *preemptor_tree(), free, *gang) as stage,
        asking(stage) as client,
    ):
        await stage.lead()
        await stage.settled()
        url = str(client.make_url("")).rstrip("/")
        table = (await asyncio.to_thread(run_command, "gangs", "--server", url)).stdout
        assert table.splitlines()[0].split()[3] == "STATE"
        (line,) = [line for line in table.splitlines() if "default/hi" in line]
        assert line.split()[3] == "preempting"
        text = await printed("explain", "g", url)
        assert text.startswith(
            "PodGroup default/g has its capacity reserved: 0 bound, 1 reserved; "
        )
        assert "PodGroup default/g: admitted, 0/1 of the minimum, 0 bound, 1 reserved\n" in text
        assert f"  g in {RACK}=r9\n" in text
        text = await printed("explain", "g", url, "-o", "json")
        found = msgspec.json.decode(text, type=Explanation)
        assert found.gang is not None
        assert [m.pod for m in found.gang.members] == ["default/g-0"]


async def printed(command, name, url, *words):
    """Return what a command prints about a gang of the service at a URL."""
    done = await asyncio.to_thread(run_command, command, name, "--server", url, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def a_tree_of(workload, uid, name, parent=""):
    """Return the record of a workload with a root of a name, and a leaf `low` below it."""
    root = GroupSpec(kind="PodGroup", name=name, parent=parent)
    leaf = GroupSpec(kind="PodGroup", name="low", parent=name)
    return TreeCompiled(
        kind="JobSet", workload=workload, uid=uid, generation=1, table_version=1, profile="default",
        owner="", owner_uid=uid, groups=(root, leaf), basic=False, reason="", message="", notices=(),
        input_digest="",
    )  # fmt: skip


async def test_a_gang_names_the_workload_that_it_was_made_for():
    """By the record, not by names: a root of a user above the trees of workloads, and a leaf of them, have none."""
    async with (
        Stage(*NODES, *lows("n0", "n1"), *preemptor_tree()) as stage,
        asking(stage) as client,
    ):
        await stage.lead()
        await stage.settled()
        drafts = [
            NewEvent(gang_uid=NIL_GANG, gang="", data=data, actor="me")
            for data in (a_tree_of("default/train", "w-1", "hi"), a_tree_of("default/other", "w-2", "trial", parent="low"))
        ]  # fmt: skip
        await stage.leader.append_nowait(drafts, None)
        wanted = {"default/hi": "JobSet/default/train", "default/low": ""}
        assert {name: one["workload"] for name, one in as_state(stage).items()} == wanted
        listed = await got(client, "/v1/gangs")
        assert {one["gang"]: one["workload"] for one in listed} == wanted
        for name, workload in wanted.items():
            assert (await got(client, f"/v1/gangs/{name}"))["workload"] == workload
            assert (await got(client, f"/v1/gangs/{name}/explain"))["gang"]["workload"] == workload
        url = str(client.make_url("")).rstrip("/")
        table = (
            await asyncio.to_thread(run_command, "gangs", "-n", "default", "--server", url)
        ).stdout
        assert "JobSet default/train" in next(s for s in table.splitlines() if "default/hi" in s)
        text = await printed("explain", "hi", url)
        assert text.splitlines()[1] == "  workload: JobSet default/train"
        text = await printed("explain", "low", url)
        assert "workload:" not in text


async def test_a_suspended_workload_without_a_pod_is_listed_until_it_has_one():
    """Kueue suspends it before its first pod: the log has no gang, and the list has one row for it."""
    async with (
        Stage(*NODES, *lows("n0", "n1"), *preemptor_tree()) as stage,
        asking(stage) as client,
    ):
        await stage.lead()
        await stage.settled()
        before = {one["gang"] for one in await got(client, "/v1/gangs")}
        queued = msgspec.structs.replace(
            a_tree_of("default/queued", "w-3", "queued"), suspended=True
        )
        for data in (queued, msgspec.structs.replace(queued, suspended=False)):
            drafts = [NewEvent(gang_uid=NIL_GANG, gang="", data=data, actor="me")]
            await stage.leader.append_nowait(drafts, None)
            suspended = await got(client, "/v1/gangs?state=suspended")
            rows = [(one["gang"], one["uid"], one["workload"], one["reasons"]) for one in suspended]
            listed = {one["gang"] for one in await got(client, "/v1/gangs")}
            if data.suspended:
                text = "JobSet default/queued is suspended"
                assert rows == [("default/queued", "", "JobSet/default/queued", [text])]
                assert listed == before | {"default/queued"}
            else:
                assert (rows, listed) == ([], before)


async def test_of_two_gangs_of_one_name_the_youngest_is_given_and_the_uid_chooses():
    """A PodGroup and a CompositePodGroup may have one name: the one observed last is given, `uid` asks for one."""
    first = a_group("twin", gang=1)
    async with (
        Stage(*NODES, first, a_pod("p", "twin", requests=ONE)) as stage,
        asking(stage) as client,
    ):
        await stage.lead()
        await stage.settled()
        old = await got(client, "/v1/gangs/default/twin")
        stage.clock.advance(1)
        stage.cluster.add(
            a_group("twin", gang=1, composite=True),
            a_group("leaf", gang=1, parent="twin"),
            a_pod("q", "leaf", requests=ONE),
        )
        await stage.settled()
        new = await got(client, "/v1/gangs/default/twin")
        assert (old["kind"], new["kind"]) == ("PodGroup", "CompositePodGroup")
        assert [g["uid"] for g in await got(client, "/v1/gangs")] == sorted(
            [old["uid"], new["uid"]]
        )
        for gang in (old, new):
            path = f"/v1/gangs/default/twin?uid={gang['uid']}"
            assert (await got(client, path))["kind"] == gang["kind"]
            path = f"/v1/gangs/default/twin/explain?uid={gang['uid']}"
            assert (await got(client, path))["event"]["gang_uid"] == gang["uid"]
        async with client.get("/v1/gangs/default/twin?uid=none") as reply:
            problem = await reply.json()
            assert reply.status == 404
            assert old["uid"] in problem["detail"]
            assert new["uid"] in problem["detail"]


async def test_a_gang_that_ended_is_found_no_more():
    """What is found by name follows the log: the end of a gang, and a new one of its name."""
    async with Stage(*NODES, *a_gang("g", pods=1)) as stage, asking(stage) as client:
        await stage.lead()
        await stage.settled()
        first = await got(client, "/v1/gangs/default/g")
        stage.cluster.delete_pod("g-0")
        stage.cluster.delete_group("g")
        await stage.settled()
        assert stage.event_data(GangRemoved)
        async with client.get("/v1/gangs/default/g") as reply:
            assert reply.status == 404
        group, pod = a_gang("g", pods=1)
        group["metadata"]["uid"] = "made-again"
        stage.cluster.add(group, pod)
        await stage.settled()
        second = await got(client, "/v1/gangs/default/g")
        assert first["uid"] != second["uid"]


def labelled(name, **labels):
    """Return a gang of one pod whose PodGroup has labels."""
    return a_group(name, gang=1, metadata={"labels": labels}), a_pod(
        f"{name}-0", name, requests=ONE
    )


@pytest.mark.parametrize(
    ("query", "gangs"),
    [
        ("", ["default/big", "default/hi", "default/low", "default/web"]),
        ("?state=unschedulable", ["default/big", "default/web"]),
        ("?state=scheduled&state=preempting", ["default/hi", "default/low"]),
        ("?state=completed", []),
        ("?labelSelector=team=a", ["default/big"]),
        ("?labelSelector=team", ["default/big", "default/web"]),
        ("?labelSelector=team!=a,team", ["default/web"]),
        ("?labelSelector=!team", ["default/hi", "default/low"]),
        ("?labelSelector=team in (a,b),tier notin (gold)", ["default/web"]),
        ("?labelSelector=tier=gold", ["default/big"]),
        ("?labelSelector=stage=silver", ["default/hi"]),
        ("?namespace=default&state=preempting&labelSelector=tier=silver", []),
        ("?namespace=other", []),
    ],
)  # fmt: skip
async def test_a_list_has_the_gangs_of_a_state_and_of_labels(query, gangs):
    """Labels are those of the root group, and of its workload where the root group has not the key."""
    jobset = a_jobset(
        name="train", labels={TREE_LABEL: "default", "stage": "silver"}, metadata={"uid": "w-1"}
    )
    extra = (*labelled("big", team="a", tier="gold"), *labelled("web", team="b"))
    async with (
        Stage(*NODES, *lows("n0", "n1"), *preemptor_tree(), *extra) as stage,
        asking(stage, jobset) as client,
    ):
        await stage.lead()
        await stage.settled()
        data = a_tree_of("default/train", "w-1", "hi")
        await stage.leader.append_nowait(
            [NewEvent(gang_uid=NIL_GANG, gang="", data=data, actor="me")], None
        )
        await stage.settled()
        found = await got(client, f"/v1/gangs{query}")
        assert [one["gang"] for one in found] == gangs
