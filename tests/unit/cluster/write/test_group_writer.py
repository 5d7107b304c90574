"""Small pure parts of what is written to the cluster."""

from __future__ import annotations

import pytest

from extender.cluster.connection.api_client import ApiResponse
from extender.cluster.write.event_recorder import _Bucket, _cut
from extender.cluster.write.group_writer import differing
from extender.cluster.write.pod_writer import fault_of, rfc3339
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.ports.cluster_ports import Condition

WAITS = Condition(type="T", status="False", reason="R", message="m")


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        ((), 1),
        ((("T", "False", "R", "m"),), 0),
        ((("T", "True", "R", "m"),), 1),
        ((("T", "False", "R", "other"),), 1),
        ((("Other", "False", "R", "m"), ("T", "False", "R", "m")), 0),
    ],
)
def test_only_differing_conditions_are_written(stored, written) -> None:
    """Status, reason and message count; types of others do not."""
    assert len(differing(stored, [WAITS])) == written


def test_instants_are_written_as_the_api_does() -> None:
    """Whole seconds for conditions, microseconds for Events."""
    assert rfc3339(1_700_000_000_123_456) == "2023-11-14T22:13:20Z"
    assert rfc3339(1_700_000_000_123_456, micro=True) == "2023-11-14T22:13:20.123456Z"


@pytest.mark.parametrize(
    ("status", "message", "fault"),
    [
        (404, "pods p not found", RequestRejected),
        (422, "metadata.uid: field is immutable", RequestRejected),
        (409, "Precondition failed: UID in precondition", RequestRejected),
        (409, "the object has been modified", ClusterUnavailable),
        (401, "", ClusterUnavailable),
        (403, "", ClusterUnavailable),
    ],
)
def test_refusals_are_for_good_or_for_now(status: int, message: str, fault: type) -> None:
    """What another try cannot change is refused; rights and races are repaired elsewhere."""
    found = fault_of("it", ApiResponse(status, "R", message))
    assert type(found) is fault
    if isinstance(found, ClusterUnavailable):
        assert found.refused is (status in {401, 403}), "a request without the right had no effect"


def test_tokens_come_back_one_by_one() -> None:
    """A burst, then the rate."""
    bucket = _Bucket(2, 0)
    assert [bucket.take(0, 2, 100) for _ in range(3)] == [True, True, False]
    assert bucket.take(100, 2, 100) is True
    assert bucket.take(100, 2, 100) is False
    assert [bucket.take(100_000, 2, 100) for _ in range(3)] == [True, True, False]


def test_a_long_note_is_cut_between_characters() -> None:
    """1,024 bytes, not characters."""
    assert _cut("short") == "short"
    assert len(_cut("é" * 2000).encode()) <= 1024
    assert _cut("é" * 2000).endswith("é...")
