"""What every `PublishedAnchors` promises; the one on a real API server is held to it in tests/e2e/test_cluster_adapter.py."""

from __future__ import annotations

import json

import pytest

from extender.cluster.manifests.served.manifest_cluster import LOG_HEAD_FILE, ManifestCluster
from extender.core.log.anchors import Anchor
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.ids import Epoch, Position
from extender.runtime.system_clock import SystemClock
from tests.support.service.fakes import FakeCluster


@pytest.fixture(params=["fake", "files"])
def again(request, tmp_path):
    """Makes the adapter anew, as a restart does."""
    if request.param == "fake":
        cluster = FakeCluster()
        return lambda: cluster
    return lambda: ManifestCluster([], tmp_path, clock=SystemClock())


def anchor(position, **changes):
    chain = bytes([position]) * 32
    return Anchor(position=Position(position), epoch=Epoch(2), chain=chain, **changes)


async def test_what_was_published_last_is_read_back(again):
    """Nothing before the first time; then all in their order, also by the next process, also when the last one is lower."""
    assert await again().published() == ()
    anchors = ()
    for position in (7, 12, 3):
        anchors += (anchor(position, first=b"1" * 32),)
        await again().publish(anchors)
        assert await again().published() == anchors


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"position": "x"}',
        b'{"position":"1","epoch":"1","hash":"xyz"}',
        b'{"position":"1","epoch":"1","hash":"00","anchors":"[{}]"}',
    ],
)
async def test_an_unreadable_file_counts_as_nothing_published(tmp_path, caplog, body):
    """The service starts all the same; an error in its log names the file."""
    (tmp_path / LOG_HEAD_FILE).write_bytes(body)
    assert await ManifestCluster([], tmp_path, clock=SystemClock()).published() == ()
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
        await cluster.publish([anchor(1)])


async def test_a_version_without_the_list_publishes_a_further_anchor(tmp_path):
    """It replaces the single fields only, as a merge patch does: they are the newest anchor, after those of the list."""
    cluster = ManifestCluster([], tmp_path, clock=SystemClock())
    await cluster.publish([anchor(7)])
    path = tmp_path / LOG_HEAD_FILE
    data = json.loads(path.read_bytes())
    path.write_text(json.dumps(data | {"position": "9", "hash": (bytes([9]) * 32).hex()}))
    assert await cluster.published() == (anchor(7), anchor(9))
    path.write_text(json.dumps({"position": "9", "epoch": "2", "hash": (bytes([9]) * 32).hex()}))
    assert await cluster.published() == (anchor(9),)
