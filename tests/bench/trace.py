"""Step by step, how one gang after another gets to its nodes: what `make bench NAMES=latency TRACE=1` prints.

The steps before and after the service are seen by a watch of the process that creates the pods; those of the service are
the times in its log lines (milliseconds) and its events. All of them are of one machine and one wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tests.bench.figures import quantile
from tests.bench.race import PodChanges, seconds_after
from tests.controlplane.api import Api
from tests.controlplane.objects import GATE
from tests.e2e.scenarios.service import Service

# Step -> the time of each gang in milliseconds after its first create was sent
Steps = dict[str, list[float]]
QUANTILES = (0.1, 0.5, 0.9)
# In the order in which a member passes them; a side has those that it goes through.
STEPS = (
    "groups created",
    "first create answered",
    "last create answered",
    "last pod seen",
    "GangObserved",
    "GangAdmitted",
    "first nomination seen",
    "last nomination seen",
    "first gate removal seen",
    "last gate removal seen",
    "first filter",
    "last filter answered",
    "first bind",
    "last bind",
    "barrier open",
    "first Binding answered",
    "last Binding answered",
    "first bound seen",
    "last bound seen",
)


class PodWatch(PodChanges):
    """Records when pods of a namespace are first seen: created, nominated, without our gate, bound."""

    def __init__(self, api: Api, namespace: str) -> None:
        super().__init__(api, namespace)
        self.seen: dict[str, dict[str, float]] = {}  # pod -> step -> monotonic time

    def note(self, pod: Mapping[str, Any]) -> None:
        """Record the steps that a pod has passed since it was seen last."""
        steps = self.seen.setdefault(pod["metadata"]["name"], {})
        for step in steps_of(pod):
            steps.setdefault(step, time.monotonic())


def steps_of(pod: Mapping[str, Any]) -> Iterable[str]:
    """Yield the steps that a pod as it is now has passed."""
    yield "pod seen"
    if pod.get("status", {}).get("nominatedNodeName"):
        yield "nomination seen"
    if not any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", ())):
        yield "gate removal seen"
    if pod["spec"].get("nodeName"):
        yield "bound seen"


class Began(msgspec.Struct, frozen=True):
    """When the creates of one gang were sent and answered."""

    prefix: str  # of the names of its groups and pods
    wall_s: float
    monotonic_s: float
    groups_s: float  # monotonic, as the following
    first_s: float
    last_s: float


async def steps_of_gangs(began: Sequence[Began], watch: PodWatch, service: Service | None) -> Steps:
    """Return the steps of gangs that were created and bound one after the other.

    Args:
        began: The gangs, each with a prefix of its own.
        watch: What was seen of their pods.
        service: Ours, which has its own lines and events about them; None on the side of kube-scheduler.
    """
    found: Steps = {}
    inside = await _inside(service, began) if service is not None else {}
    for gang in began:
        steps = {
            "groups created": gang.groups_s - gang.monotonic_s,
            "first create answered": gang.first_s - gang.monotonic_s,
            "last create answered": gang.last_s - gang.monotonic_s,
        }
        of_pods: dict[str, list[float]] = {}
        for pod, seen in watch.seen.items():
            if pod.startswith(gang.prefix):
                for step, at_s in seen.items():
                    of_pods.setdefault(step, []).append(at_s - gang.monotonic_s)
        for step, times in of_pods.items():
            steps |= {f"first {step}": min(times), f"last {step}": max(times)}
        if service is None:  # no pod of kube-scheduler's own gang has a gate of ours
            steps = {step: at_s for step, at_s in steps.items() if "gate" not in step}
        for step, at_s in (steps | inside.get(gang.prefix, {})).items():
            found.setdefault(step, []).append(at_s * 1000)
    return found


async def _inside(service: Service, began: Sequence[Began]) -> dict[str, dict[str, float]]:
    """Return by gang when the service wrote down its steps, in seconds after the first create."""
    times: dict[str, dict[str, list[float]]] = {gang.prefix: {} for gang in began}
    wall_s = {gang.prefix: gang.wall_s for gang in began}

    def note(name: str, step: str, stamp: str, before_ms: float = 0.0) -> None:
        prefix = next((p for p in wall_s if name.rpartition("/")[2].startswith(p)), None)
        if prefix is not None:
            at_s = seconds_after(stamp, wall_s[prefix]) - before_ms / 1000
            times[prefix].setdefault(step, []).append(at_s)

    for event in await service.events("GangObserved", "GangAdmitted"):
        note(event["gang"], event["type"], event["time"])
    for line in service.lines("barrier open"):
        note(line["gang"], "barrier open", line["time"])
    for verb in ("filter", "bind"):
        for line in service.calls(verb):
            note(line["pod"], verb, line["time"], line["total_ms"])
            answered = "Binding answered" if verb == "bind" else "filter answered"
            note(line["pod"], answered, line["time"])
    return {
        prefix: {
            step: at
            for name, of in steps.items()
            for step, at in ((name, min(of)), (f"first {name}", min(of)), (f"last {name}", max(of)))
        }
        for prefix, steps in times.items()
    }


def trace_table(steps: Mapping[str, Steps]) -> str:
    """Lay out the steps of all sides: 10th percentile, median and 90th percentile of each, and the median step.

    Args:
        steps: Side -> its steps.
    """
    lines = []
    for side, of_side in steps.items():
        lines.append(f"{side}, milliseconds after the first create was sent:")
        lines.append(f"  {'step':<26}{'p10':>8}{'p50':>8}{'p90':>8}{'after the one before':>24}")
        before = 0.0
        medians = {step: quantile(of_side[step], 0.5) for step in STEPS if step in of_side}
        for step, median in sorted(medians.items(), key=lambda item: item[1]):
            low, middle, high = (quantile(of_side[step], part) for part in QUANTILES)
            lines.append(
                f"  {step:<26}{low:>8.0f}{middle:>8.0f}{high:>8.0f}{median - before:>24.1f}"
            )
            before = median
    return "\n".join(lines)
