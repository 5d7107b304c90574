"""What every `PublishedLogHead` promises; the one on a real API server is held to it in tests/e2e/test_cluster_adapter.py."""

from __future__ import annotations

import pytest

from extender.cluster.manifests.served.manifest_cluster import LOG_HEAD_FILE, ManifestCluster
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.ids import Epoch, Position
from extender.ports.log_ports import LogMark
from extender.runtime.system_clock import SystemClock
from tests.support.service.fakes import FakeCluster


@pytest.fixture(params=["fake", "files"])
def again(request, tmp_path):
    """Makes the adapter anew, as a restart does."""
    if request.param == "fake":
        cluster = FakeCluster()
        return lambda: cluster
    return lambda: ManifestCluster([], tmp_path, clock=SystemClock())


async def test_what_was_published_last_is_read_back(again):
    """Nothing before the first time; then the newest, also by the next process, also when it is lower."""
    assert await again().published() is None
    for position in (7, 12, 3):
        mark = LogMark(position=Position(position), epoch=Epoch(2), chain=bytes([position]) * 32)
        await again().publish(mark)
        assert await again().published() == mark


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"position": "x"}', b'{"position":"1","epoch":"1","hash":"xyz"}']
)
async def test_an_unreadable_file_counts_as_nothing_published(tmp_path, caplog, body):
    """The service starts all the same; an error in its log names the file."""
    (tmp_path / LOG_HEAD_FILE).write_bytes(body)
    assert await ManifestCluster([], tmp_path, clock=SystemClock()).published() is None
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert LOG_HEAD_FILE in record.where


async def test_a_file_that_cannot_be_had_is_not_known(tmp_path):
    """A folder in its place: neither published nor not published."""
    (tmp_path / LOG_HEAD_FILE).mkdir()
    cluster = ManifestCluster([], tmp_path, clock=SystemClock())
    with pytest.raises(ClusterUnavailable, match=LOG_HEAD_FILE):
        await cluster.published()
    with pytest.raises(ClusterUnavailable, match=LOG_HEAD_FILE):
        await cluster.publish(LogMark(position=Position(1), epoch=Epoch(1), chain=bytes(32)))
