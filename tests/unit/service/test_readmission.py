"""A tree that is admitted keeps its reservations for as long as nothing changes, and a defect there is bounded."""

from __future__ import annotations

import pytest

from extender.core.events import GangAdmitted, ReservationReleased
from tests.builders import a_gang, a_node
from tests.fakes import Stage
from tests.unit.core.decisions.test_fitness import pinned


@pytest.mark.parametrize("pods", [1, 2, 4])
async def test_a_gang_pinned_to_one_node_by_name_is_admitted_once(pods):
    """Members that select their node by its name (matchFields) are admitted once and never released."""
    gang = a_gang("g", pods=pods, affinity=pinned("n0"))
    async with Stage(a_node("n0", gpu=4), a_node("n1", gpu=4), *gang) as stage:
        await stage.lead()
        await stage.settled()
        stage.later(1)
        stage.cluster.add(a_node("n2", gpu=4))
        await stage.settled()
        assert len(stage.facts(GangAdmitted)) == 1
        assert stage.facts(ReservationReleased) == []
        assert stage.where("g") == {f"g-{n}": "n0" for n in range(pods)}
