"""`history --decisions` on a real database: the number of units that could be evicted, of both kinds of preemption."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import pytest
import yaml

from deploy.demo.ports import free_port
from extender import composition
from extender.core.log.reservation_state import ReservationState
from extender.settings import Settings
from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import GPU, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.control.actuators.test_evictor import lows, preemptor_tree

pytestmark = pytest.mark.postgres
ONE = {GPU: 1}


@contextlib.asynccontextmanager
async def serving(database_url, folder, *objects):
    """Run the whole service on manifests; yield its URL and what returns the committed state."""
    for number, thing in enumerate(objects):
        thing["metadata"].setdefault("uid", f"uid-{number}-{thing['metadata']['name']}")
    manifests = folder / "cluster.yaml"
    manifests.write_text(yaml.safe_dump_all(objects))
    listen = f"127.0.0.1:{free_port()}"
    settings = Settings(
        database_url=database_url, data_dir=str(folder), cluster=(str(manifests),),
        listen=listen, advertise_url=f"http://{listen}", identity="me",
    )  # fmt: skip
    async with composition.store(settings, migrates=False) as opened:
        clock = composition.database_clock(opened)
        writer = composition.leader(settings, opened, clock)
        seen = await composition.cluster(settings, clock, writer.may_act)
        service = composition.Service(settings, opened, seen, writer, clock)
        stopping = asyncio.Event()
        running = asyncio.create_task(service.run(stopping, lambda: None))

        def state() -> ReservationState:
            return writer.committed

        try:
            await eventually(lambda: writer.may_act() and state().gangs, "the first pass")
            yield settings.advertise_url, state
        finally:
            stopping.set()
            await running


def decisions(database_url, gang, event):
    """Return the indented lines below the events of a type in the history of a gang, as they are printed."""
    done = run_command(
        "history", gang, "--decisions", GANG_EXTENDER_DATABASE_URL=database_url, COLUMNS="400"
    )
    assert done.returncode == 0, done.stderr
    found, here = [], False
    for line in done.stdout.splitlines():
        if not line.startswith(" "):
            here = event in line
        elif here:
            found.append(line.strip())
    return found


async def test_of_a_preemption_that_the_control_loop_planned(database_url, tmp_path) -> None:
    """A gang that goes whole and a lone pod could be evicted: two units, three pods; one unit is."""
    objects = [
        *(a_node(f"n{n}", gpu=1) for n in range(3)),
        *lows("n0", "n1"),
        a_pod("lone", node="n2", requests=ONE, priority=5),
        *preemptor_tree(),
    ]
    async with serving(database_url, tmp_path, *objects) as (_, state):
        await eventually(lambda: state().preemptions, "the preemption")
    text = "\n".join(decisions(database_url, "default/hi", "PreemptionPlanned"))
    assert "2 waiting and 0 bound members of 1 group, 3 nodes" in text
    assert "2 units (3 pods) that could be evicted" in text
    assert "0 units" not in text


async def test_of_a_preemption_by_the_preempt_verb(database_url, tmp_path) -> None:
    """On the two offered nodes are a gang that goes whole, of two pods, and a lone pod."""
    low = lows("n0", "n1")
    dear = a_pod("dear", node="n2", requests=ONE, priority=50)
    vip = a_pod("vip", requests=ONE, priority=100)
    nodes = [a_node(f"n{n}", gpu=1) for n in range(3)]
    async with serving(database_url, tmp_path, *nodes, *low, dear, vip) as (url, state):
        offered = {
            node: {"Pods": [{"UID": pod["metadata"]["uid"]}], "NumPDBViolations": 0}
            for node, pod in (("n0", low[1]), ("n2", dear))
        }
        body = {"Pod": vip, "NodeNameToVictims": None, "NodeNameToMetaVictims": offered}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/scheduler/preempt", json=body) as reply,
        ):
            assert reply.status == 200, await reply.text()
            assert list((await reply.json())["NodeNameToMetaVictims"]) == ["n0"]
        await eventually(lambda: state().preemptions, "the preemption")
    text = "\n".join(decisions(database_url, "default/low", "PreemptionPlanned"))
    assert "1 waiting and 0 bound members of 0 groups, 2 nodes" in text
    assert "2 units (3 pods) that could be evicted" in text


async def test_a_decision_about_free_capacity_has_no_units(database_url, tmp_path) -> None:
    """A plan on free capacity does not ask for evictions: no number of units is printed, not even 0."""
    async with serving(database_url, tmp_path, a_node("n0", gpu=2), *preemptor_tree()) as (
        _,
        state,
    ):
        await eventually(lambda: state().claims_on, "the admission")
    text = "\n".join(decisions(database_url, "default/hi", "GangAdmitted"))
    assert "2 waiting and 0 bound members of 1 group, 1 node" in text
    assert "could be evicted" not in text
