"""The largest free capacity is recorded when it has changed, by the leader alone."""

from __future__ import annotations

import pytest

from extender.control.monitors.capacity_sampler import CapacitySampler
from extender.core.log.events import CapacityMeasured
from extender.core.model.ids import NIL_GANG
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, RACK, a_fleet, a_gang


@pytest.fixture
async def stage():
    made = Stage(*a_fleet("2 racks x 2 nodes"), topology_keys=(RACK,))
    async with made:
        await made.lead()
        yield made


def watch(stage):
    return CapacitySampler(stage.cluster, stage.leader, stage.settings)


def recorded(stage):
    return [e for e in stage.events() if isinstance(e.data, CapacityMeasured)]


def rack_of(event):
    return next(r for r in event.largest_free if (r.resource, r.key) == (GPU, RACK))


async def test_what_did_not_change_is_recorded_once(stage):
    """The second look writes nothing; an admission in between is seen by the third."""
    looking = watch(stage)
    assert await looking.look()
    assert not await looking.look()
    stage.cluster.add(*a_gang("g", pods=2, requests={GPU: 8}, topo=RACK))
    await stage.one_pass()
    assert await looking.look()
    before, after = recorded(stage)
    assert (rack_of(before.data).domain, rack_of(before.data).free) == ("r0", 16)
    assert (rack_of(after.data).domain, rack_of(after.data).free, rack_of(after.data).total) == (
        "r1",
        16,
        16,
    )
    assert {before.gang_uid, after.gang_uid} == {NIL_GANG}
    assert stage.leader.committed == stage.leader.pending_state


async def test_a_view_in_doubt_is_not_measured(stage):
    """Before the informers are in step nothing is recorded about the cluster."""
    stage.cluster.doubted = "not synced"
    assert not await watch(stage).look()
    assert recorded(stage) == []


async def test_who_does_not_lead_measures_nothing():
    """A standby writes nothing, and does not fail."""
    async with Stage(*a_fleet("1 racks x 1 nodes")) as standby:
        assert not await watch(standby).look()
