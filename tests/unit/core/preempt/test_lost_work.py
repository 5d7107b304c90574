"""Work that an eviction loses: from when it counts, and that it decides between victims of one priority."""

from __future__ import annotations

import msgspec
import pytest

from extender.cluster.manifests.manifest_loader import load
from extender.core.model.pods import CHECKPOINT_ANNOTATION, FILLED_IN_US
from extender.core.planner.codec.request_codec import decode, encode
from extender.core.planner.preempt.victim_search import preempt
from extender.core.preempt.disruption_units import (
    EvictableContext,
    checkpoint_warnings,
    work_since_us,
)
from extender.core.preempt.preemption_planning import decide_preemption
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, a_node, a_pod
from tests.unit.core.preempt.test_disruption_units import RECIPE, Case, gang

HOUR_US = 3_600_000_000
NOW_US = 1_767_225_600_000_000 + 10 * HOUR_US  # 2026-01-01T10:00:00Z
MORNING = "2026-01-01T00:00:00Z"
NOW = EvictableContext(now_us=NOW_US)


def running(name, node, gpus, *, scheduled=MORNING, checkpoint="", **spec):
    """A pod that has run since a time, with its last checkpoint."""
    marks = {CHECKPOINT_ANNOTATION: checkpoint} if checkpoint else {}
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": scheduled}
    return a_pod(
        name,
        node=node,
        requests={GPU: gpus},
        metadata={"creationTimestamp": MORNING, "annotations": marks},
        status={"conditions": [condition]},
        **{"priority": 1, **spec},
    )


def evicted(*pods, gpus=2):
    """The victims of a pod of priority 100 that needs GPUs of the nodes n0 and n1, which are full."""
    nodes = [a_node(f"n{i}", gpu=gpus) for i in range(2)]
    case = Case(*nodes, *pods, *gang("high", 1, 100, requests={GPU: gpus}))
    return [unit.name.removeprefix("Pod/default/") for unit in case.preempt(moment=NOW).victims]


@pytest.mark.parametrize(
    ("scheduled", "checkpoint", "hours", "warned"),
    [
        (MORNING, "", 10, ""),
        ("2026-01-01T04:00:00Z", "", 6, ""),  # it waited for four hours
        (MORNING, "2026-01-01T09:00:00Z", 1, ""),
        (MORNING, "2026-01-01T10:00:00+01:00", 1, ""),
        ("2026-01-01T09:30:00Z", "2026-01-01T09:00:00Z", 0.5, ""),  # of a pod before it
        (MORNING, "2026-01-01T10:00:01Z", 10, "is in the future"),
        (MORNING, "2026-01-01T09:00:00", 10, "is not an RFC 3339 time"),
        (MORNING, "yesterday", 10, "is not an RFC 3339 time"),
    ],
)
def test_work_counts_from_the_start_or_the_last_checkpoint(scheduled, checkpoint, hours, warned):
    pod_object = running("a", "n0", 1, scheduled=scheduled, checkpoint=checkpoint)
    (pod,) = FakeCluster(pod_object).view().pods.values()
    assert (NOW_US - work_since_us(pod, NOW_US)) / HOUR_US == hours
    warnings = list(checkpoint_warnings([pod], NOW_US))
    assert len(warnings) == bool(warned)
    for text in warnings:
        assert text.startswith(f'Pod/default/a: metadata.annotations[{CHECKPOINT_ANNOTATION}] "{checkpoint}" {warned}')  # fmt: skip
        assert "the work of the pod counts from its start" in text


def test_a_pod_of_a_file_without_times_has_no_known_start(tmp_path):
    """A file gives such objects the year 2000, which is no time since which anything is lost."""
    file = tmp_path / "cluster.json"
    file.write_bytes(msgspec.json.encode(a_pod("a", node="n0", requests={GPU: 2})))
    (pod,) = load([str(file)]).world.view.pods.values()
    assert (pod.created_us in FILLED_IN_US, work_since_us(pod, NOW_US)) == (True, NOW_US)


def test_two_pods_go_that_lose_less_than_one():
    """Lost work comes before the number of pods."""
    saved = "2026-01-01T09:59:00Z"
    small = [running(f"small-{i}", "n0", 1, checkpoint=saved) for i in range(2)]
    assert evicted(*small, running("large", "n1", 2)) == ["small-0", "small-1"]
    assert evicted(*(running(f"small-{i}", "n0", 1) for i in range(2)), running("large", "n1", 2)) == ["large"]  # fmt: skip


def test_priority_and_gangs_come_before_lost_work():
    saved = "2026-01-01T10:00:00Z"
    assert evicted(running("a", "n0", 2, priority=2, checkpoint=saved), running("b", "n1", 2)) == ["b"]  # fmt: skip
    case = Case(
        *(a_node(f"n{i}", gpu=2) for i in range(3)),
        gang("pair", 2, 1)[0],
        *(_member(f"pair-{i}", f"n{i}", saved) for i in range(2)),
        running("alone", "n2", 2),
        *gang("high", 1, 100, requests={GPU: 2}),
    )
    assert [u.name for u in case.preempt(moment=NOW).victims] == ["Pod/default/alone"]


def _member(name, node, checkpoint):
    pod = running(name, node, 2, checkpoint=checkpoint)
    pod["metadata"]["labels"] = {"gang-extender.dev/pod-group": name.partition("-")[0]}
    return pod


def _asked(now_us):
    case = Case(
        *(a_node(f"n{i}", gpu=2) for i in range(2)),
        running("a", "n0", 2, checkpoint="2026-01-01T07:00:00Z"),
        running("b", "n1", 2),
        *gang("high", 1, 100, requests={GPU: 2}),
    )
    return case, case.asking(moment=EvictableContext(now_us=now_us))


def test_a_decision_does_not_change_within_a_minute():
    """The inputs of two passes of one minute have the same bytes; of a later one only the head differs."""
    first, same, later = (encode(_asked(NOW_US + s * 1_000_000)[1]) for s in (0, 59, 60))
    assert first == same
    assert first.head != later.head
    assert first.parts == later.parts


def test_the_event_has_what_is_lost_and_its_input_gives_it_again():
    case, request = _asked(NOW_US)
    planned = preempt(request)
    encoded = encode(request)
    again = preempt(decode(encoded.head, encoded.parts))
    assert msgspec.json.encode(again) == msgspec.json.encode(planned)
    view = case.view
    drafts = decide_preemption(
        view, case.state, forest_of(view), case.tree(), request, planned, RECIPE
    )
    (unit,) = drafts[-1].data.victims
    assert (unit.path, unit.cost["lost_min"]) == ("default/a", 2 * 3 * 60)
    assert drafts[-1].data.cost["lost_min"] == 2 * 3 * 60


def test_an_older_input_is_decided_without_lost_work():
    """It has no time: the fewest pods go, as when it was recorded."""
    _, request = _asked(NOW_US)
    head = encode(request).head
    older = msgspec.json.decode(head)
    del older["evictable"]["now_min"]
    again = decode(msgspec.json.encode(older, order="deterministic"), encode(request).parts)
    assert not preempt(again).cost.lost_min
    assert preempt(request).cost.lost_min


def test_an_extended_resource_in_bytes_is_no_work_without_end():
    """What a hundred such pods lose fits into the numbers of the solver."""
    memory = "example.com/gpu-memory"
    case = Case(
        *(a_node(f"n{i}", **{memory: "8Ti"}, gpu=0) for i in range(2)),
        *(
            a_pod(
                f"v{i}-{j}", node=f"n{i}", requests={memory: "4Ti"}, priority=i ^ j,
                metadata={"creationTimestamp": "1990-01-01T00:00:00Z"},
            )
            for i in range(2)
            for j in range(2)
        ),
        *gang("high", 2, 100, requests={memory: "3Ti"}),
    )  # fmt: skip
    made = case.preempt(moment=NOW)
    assert len(made.victims) == 2
    assert 0 < made.cost.lost_min * 500_000 < 2**62
