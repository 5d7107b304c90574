"""The loop that indexes what events name: everything, and nothing again."""

from __future__ import annotations

import pytest

from extender.control.monitors import read_model_projector as reference_indexer
from extender.control.monitors.read_model_projector import ReferenceIndexer
from extender.core.model.errors import StoreUnavailable
from tests.support.service.fakes import Stage
from tests.unit.control.monitors.test_read_model_projector import record


class Index:
    """Indexes a log up to its end; another replica that works at the moment makes it return 0."""

    def __init__(self, leader):
        self._leader = leader
        self.position = 0
        self.looked_at = []
        self.busy_elsewhere = self.unavailable = False

    async def note(self, most):
        if self.unavailable:
            raise StoreUnavailable("no answer")
        found = min(self._leader.committed.position - self.position, most)
        found = 0 if self.busy_elsewhere else found
        self.position += found
        self.looked_at.append(found)
        return found


@pytest.fixture
async def stage(monkeypatch):
    monkeypatch.setattr(reference_indexer, "AT_ONCE", 4)
    async with Stage() as made:
        yield await made.lead()


@pytest.fixture
def index(stage):
    return Index(stage.leader)


async def test_all_events_in_batches_and_none_twice(stage, index):
    indexer = ReferenceIndexer(stage.leader, index.note)
    await record(stage, 10)  # after the lease
    for _ in range(3):
        await indexer.catch_up()
    assert index.looked_at == [4, 4, 3], "nothing new, nothing asked"
    await record(stage, 1)
    await indexer.catch_up()
    assert index.looked_at == [4, 4, 3, 1]


async def test_batches_that_are_all_full_end_with_an_empty_one(stage, index):
    indexer = ReferenceIndexer(stage.leader, index.note)
    await record(stage, 7)
    for _ in range(3):
        await indexer.catch_up()
    assert index.looked_at == [4, 4, 0]


async def test_what_another_replica_works_on_is_asked_for_again(stage, index):
    """It may be killed before its commit."""
    indexer = ReferenceIndexer(stage.leader, index.note)
    await record(stage, 2)
    index.busy_elsewhere = True
    await indexer.catch_up()
    index.busy_elsewhere = False
    await indexer.catch_up()
    assert index.looked_at == [0, 3]


async def test_a_failure_loses_nothing(stage, index):
    indexer = ReferenceIndexer(stage.leader, index.note)
    await record(stage, 2)
    index.unavailable = True
    with pytest.raises(StoreUnavailable):
        await indexer.catch_up()
    index.unavailable = False
    await indexer.catch_up()
    assert index.looked_at == [3]
