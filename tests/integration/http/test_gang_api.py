"""Gangs as they are now, over HTTP and on the command line: the same form as in GET /v1/state."""

from __future__ import annotations

import asyncio

import msgspec

from extender.cli.commands import explain_command, gang_commands
from extender.cli.output.printing import Output
from extender.core.log.events import GangRemoved, NewEvent, TreeCompiled
from extender.core.model.ids import NIL_GANG
from extender.core.workloads.tree_compiler import GroupSpec
from extender.queries.explain.explanation import Explanation
from extender.queries.state.state_dto import Scope
from extender.queries.state.state_report import build_state_report
from tests.integration.http.test_decision_api import asking, got
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import RACK, a_gang, a_group, a_node, a_pod
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


async def test_the_command_line_shows_the_state_and_the_domains(monkeypatch, capsys):
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
        await asyncio.to_thread(gang_commands.gangs, "", url, Output.table)
        table = capsys.readouterr().out
        assert table.splitlines()[0].split()[3] == "STATE"
        (line,) = [line for line in table.splitlines() if "default/hi" in line]
        assert line.split()[3] == "preempting"
        await asyncio.to_thread(
            explain_command.explain, "g", "default", False, "", url, Output.table
        )
        text = capsys.readouterr().out
        assert text.startswith(
            "PodGroup default/g has its capacity reserved: 0 bound, 1 reserved; "
        )
        assert "PodGroup default/g: admitted, 0/1 of the minimum, 0 bound, 1 reserved\n" in text
        assert f"  g in {RACK}=r9\n" in text
        await asyncio.to_thread(
            explain_command.explain, "g", "default", False, "", url, Output.json
        )
        found = msgspec.json.decode(capsys.readouterr().out, type=Explanation)
        assert found.gang is not None
        assert [m.pod for m in found.gang.members] == ["default/g-0"]


def a_tree_of(workload, uid, name, parent=""):
    """Return the record of a workload with a root of a name, and a leaf `low` below it."""
    root = GroupSpec(kind="PodGroup", name=name, parent=parent)
    leaf = GroupSpec(kind="PodGroup", name="low", parent=name)
    return TreeCompiled(
        kind="JobSet", workload=workload, uid=uid, generation=1, table_version=1, profile="default",
        owner="", owner_uid=uid, groups=(root, leaf), basic=False, reason="", message="", notices=(),
        input_digest="",
    )  # fmt: skip


async def test_a_gang_names_the_workload_that_it_was_made_for(capsys):
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
        await asyncio.to_thread(gang_commands.gangs, "default", url, Output.table)
        table = capsys.readouterr().out
        assert "JobSet default/train" in next(s for s in table.splitlines() if "default/hi" in s)
        await asyncio.to_thread(
            explain_command.explain, "hi", "default", False, "", url, Output.table
        )
        assert capsys.readouterr().out.splitlines()[1] == "  workload: JobSet default/train"
        await asyncio.to_thread(
            explain_command.explain, "low", "default", False, "", url, Output.table
        )
        assert "workload:" not in capsys.readouterr().out


async def test_of_two_gangs_of_one_name_the_youngest_is_given_and_the_uid_chooses(capsys):
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
