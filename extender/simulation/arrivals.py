"""What arrives in a simulated cluster: gangs with their time of arrival and their run time."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from extender.core.model.errors import BadInput

PODS_MAX: Final = 1_000_000  # pods of one group: more than any cluster has is a mistake of the file


class ArrivingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A leaf group of an arrival: pods of one shape.

    Attributes:
        name: Unique within the arrival.
        pods: Number of pods, at least 1.
        minimum: So many start together or none; 0: the group is not a gang.
        requests: Of one pod, in the units of `PodShape.requests`: CPU in millicores, everything else in whole units.
        topology_key: Node label of which all pods of the group need one value; empty: none.
    """

    name: str
    pods: int
    minimum: int
    requests: dict[str, int]
    topology_key: str = ""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that arrives: a tree with one leaf for each of its groups, all of which it needs.

    Attributes:
        at_s: Seconds from the beginning of the trace.
        namespace: Namespace of its objects.
        name: Unique within the namespace.
        groups: At least one; with several, each is a role of the workload.
        runs_for_s: Seconds from the time when all its minima run to its end; infinite: it does not end by itself.
        priority: As of a PriorityClass; higher goes first.
    """

    at_s: float
    namespace: str
    name: str
    groups: tuple[ArrivingGroup, ...]
    runs_for_s: float
    priority: int = 0


class NodeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A node is unreachable from a time on for some seconds."""

    node: str
    at_s: float
    for_s: float


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds.

    Attributes:
        arrivals: In the order of their times, then by namespace and name.
        malformed: What is wrong with each line that is no arrival: `file:line: field value ...`, in the order of the lines.
        left_out: Why lines that are well formed are no arrival -> how many; for example jobs that never ran.
    """

    arrivals: tuple[Arrival, ...]
    malformed: tuple[str, ...] = ()
    left_out: dict[str, int] = {}


def wrong_value(place: str, field: str, value: object, problem: str) -> str:
    """Return the text of an error about a value in a file.

    >>> wrong_value("philly.csv:7", "num_gpus", "x", "is not a whole number")
    'philly.csv:7: num_gpus "x" is not a whole number'

    Args:
        place: File and line, or file and object.
        field: Column or key.
        value: As it stands there.
        problem: What is wrong, and where it is not plain, what would help.
    """
    return f'{place}: {field} "{value}" {problem}'


def check(arrival: Arrival, place: str) -> Arrival:
    """Return an arrival that can arrive.

    Args:
        place: Where from: file and line.

    Raises:
        BadInput: A time is negative or not a number, a count is out of range, a minimum exceeds its pods, or two groups
            have one name. The message begins with `place` and names field and value.
    """
    seconds = "is not a number of seconds from 0"
    names = [group.name for group in arrival.groups]
    faults: list[tuple[bool, str, object, str]] = [
        (not (math.isfinite(arrival.at_s) and arrival.at_s >= 0), "at_s", arrival.at_s, seconds),
        (not arrival.runs_for_s >= 0, "runs_for_s", arrival.runs_for_s, seconds),
        (not names, "groups", "", "is empty: a workload has at least one"),
    ]
    for group in arrival.groups:
        pods, minimum, name = group.pods, group.minimum, group.name
        within = f"is not between 0 and its pods, {pods}"
        faults += [
            (names.count(name) > 1, "name", name, "is the name of two groups"),
            (not 1 <= pods <= PODS_MAX, f"{name}.pods", pods, f"is not between 1 and {PODS_MAX:,}"),
            (not 0 <= minimum <= pods, f"{name}.minimum", minimum, within),
        ]
        for resource, amount in group.requests.items():
            faults.append((amount < 0, f"{name}.requests.{resource}", amount, "is negative"))
    for is_fault, field, value, problem in faults:
        if is_fault:
            raise BadInput(wrong_value(place, field, value, problem))
    return arrival


def in_order(
    arrivals: list[Arrival], malformed: list[str], left_out: dict[str, int] | None = None
) -> Arrivals:
    """Return arrivals in the order of their times, then by namespace and name."""
    return Arrivals(
        arrivals=tuple(sorted(arrivals, key=lambda a: (a.at_s, a.namespace, a.name))),
        malformed=tuple(malformed),
        left_out=left_out or {},
    )
