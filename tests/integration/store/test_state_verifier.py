"""Memory that has left the log, in the whole service on a real PostgreSQL: event, metric, line, and put right."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import yaml
from immutables import Map

from extender import composition
from extender.control.monitors import state_verifier
from extender.core.log.events import DriftDetected
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.settings import Settings
from extender.telemetry import METRICS
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, a_gang, a_node
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres


def planted(state, how):
    """Return a memory that differs from the log in one way."""
    (root,) = state.gangs.values()
    replace = msgspec.structs.replace
    if how == "a reservation is forgotten":
        return replace(state, gangs=state.gangs.set(root.uid, replace(root, reservations=Map())))
    if how == "capacity of a node is forgotten":
        return replace(state, claims_on=Map())
    if how == "a phase is wrong":
        return replace(state, gangs=state.gangs.set(root.uid, replace(root, phase="scheduled")))
    return replace(state, gangs=Map(), claims_on=Map(), gang_of=Map())


async def everything(log):
    """Read all events; some are appended for other reasons, as for the clock of the machine."""
    return [event async for page in log.read() for event in page]


@pytest.mark.parametrize(
    "how",
    [
        "a reservation is forgotten",
        "capacity of a node is forgotten",
        "a phase is wrong",
        "everything is forgotten",
    ],
)
async def test_memory_leaves_the_log(database_url, tmp_path, monkeypatch, caplog, how):
    """The look of every minute, made to come at once: the service finds it by itself."""
    monkeypatch.setattr(state_verifier, "EVERY_S", 0.2)
    manifests = tmp_path / "cluster.yaml"
    things = [a_node("n0", gpu=8), *a_gang("g", pods=2, requests={GPU: 1}, schedulingGates=GATED)]
    manifests.write_text(yaml.safe_dump_all(things))
    settings = Settings(
        database_url=database_url, data_dir=str(tmp_path), cluster=(str(manifests),),
        listen="127.0.0.1:0", advertise_url="http://127.0.0.1:0", identity="me",
    )  # fmt: skip
    counted = METRICS.drift_detected.labels("memory")
    before = counted._value.get()
    async with composition.store(settings, migrates=False) as opened:
        clock = composition.database_clock(opened)
        writer = composition.leader(settings, opened, clock)
        seen = await composition.cluster(settings, clock, writer.may_act)
        looks, look = [], state_verifier.StateVerifier.look
        right = asyncio.Event()

        async def counting(verifier):
            began_right = right.is_set()
            result = await look(verifier)
            if began_right:
                looks.append(result)

        monkeypatch.setattr(state_verifier.StateVerifier, "look", counting)
        service = composition.Service(settings, opened, seen, writer, clock)
        stopping = asyncio.Event()
        running = asyncio.create_task(service.run(stopping, lambda: None))
        try:
            await eventually(
                lambda: writer.committed.claims_on and not writer.appends.in_flight, "admitted"
            )
            await eventually(lambda: service.parts.exchange.published.result.number, "ready")
            # no pass may run on the false memory: it would decide on it
            seen.not_ready_reason = lambda: "the test looks at memory alone"
            await eventually(lambda: not writer.appends.in_flight, "no append")
            writer.appends.load(planted(writer.committed, how))
            await eventually(lambda: counted._value.get() > before, "found")

            async def is_put_right():
                log = await everything(opened.log)
                return writer.committed == writer.pending_state == fold(EMPTY, log)

            await eventually(is_put_right, "memory that is that of the log")
            right.set()
            await eventually(lambda: len(looks) >= 2, "two more looks")
            assert not any(looks)
            assert counted._value.get() == before + 1
            events = await everything(opened.log)
            drifts = [event.data for event in events if isinstance(event.data, DriftDetected)]
            assert [drift.kind for drift in drifts] == ["memory"]
        finally:
            stopping.set()
            await running
    (line,) = [r for r in caplog.records if r.message == "drift"]
    assert (line.levelname, line.kind, line.detail) == ("ERROR", "memory", drifts[0].message)
