"""Pods of files with what a service wrote about them."""

from __future__ import annotations

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.served.journal import (
    Evicted,
    JournalOverlay,
    MarkedDisrupted,
    with_writes,
)
from extender.cluster.read.pod_conversion import end_of
from extender.core.model.pods import PodEnd
from tests.support.service.manifest_builders import a_pod


def test_an_evicted_pod_did_not_end_by_itself():
    """Without the mark that a victim of a preemption gets before."""
    pod = msgspec.convert(a_pod("a", node="n0", metadata={"uid": "a"}), api.Pod, strict=False)
    overlay = JournalOverlay()
    at = {"at_us": 1, "namespace": "default", "name": "a", "uid": "a"}
    overlay.apply(Evicted(**at))
    end = end_of(with_writes(pod, overlay))
    assert end == PodEnd("evicted", "EvictionByEvictionAPI", "n0")
    overlay.apply(MarkedDisrupted(message="by a gang", **at))
    assert end_of(with_writes(pod, overlay)).cause == "preempted"
