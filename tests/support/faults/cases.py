"""What a seed stands for: a small cluster, what arrives in it, and what goes wrong when; all of it can be left out by itself."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from extender.simulation.arrivals import Arrival, ArrivingGroup

GPU: Final = "nvidia.com/gpu"
RACK: Final = "topology.example.com/rack"
BLOCK: Final = "topology.example.com/block"
QUIET_S: Final = 170.0  # after each burst of faults nothing goes wrong for so long
BURST_S: Final = (15.0, 45.0)
LONE: Final = "lone"  # jobs whose names begin with it are pods outside of groups


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes wrong.

    Attributes:
        at_s: When.
        kind: A method of `Run` without `do_`.
        target: A number of which the method makes a choice among what there is.
        lasts_s: For how long, or by how much.
    """

    at_s: float
    kind: str
    target: int
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.at_s:7.2f} s  {self.kind} ({self.target}, {self.lasts_s:.1f} s)"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are seconds of it."""

    seed: int
    racks: int  # of two nodes each, two racks are a block
    gpus: int  # of a node
    replicas: int
    hold_after_s: int
    arrivals: tuple[Arrival, ...]
    faults: tuple[Fault, ...]
    bursts: tuple[tuple[float, float], ...]  # begin and end
    until_s: float


KINDS: Final = {
    "watch_late": 3, "watch_breaks": 2, "watch_expires": 2, "watch_loses": 2, "watch_duplicates": 1, "watch_swaps": 1,
    "requests_fail": 3, "requests_slow": 1, "api_server_down": 1,
    "database_down": 2, "database_slow": 2, "answer_lost": 2, "append_lost": 2,
    "process_stops": 2, "process_dies": 4, "clock_steps": 2, "scheduler_dies": 2,
    "pod_deleted": 4, "pod_fails": 1, "group_again": 2, "node_again": 2, "node_lost": 1, "node_cordoned": 1, "job_again": 2,
}  # fmt: skip


def case_of(seed: int) -> Case:
    """Return the case of a seed."""
    chance = Random(f"case {seed}")
    racks, gpus = chance.choice([1, 2, 2, 4]), chance.choice([2, 4, 8])
    at_s, bursts = 0.0, []
    for _ in range(chance.choice([1, 1, 2, 2, 3])):
        begins_s = at_s + chance.uniform(3.0, 12.0)
        at_s = begins_s + chance.uniform(*BURST_S)
        bursts.append((begins_s, at_s))
        at_s += QUIET_S
    arrivals = tuple(_arrival(chance, number, bursts, racks, gpus) for number in range(chance.randint(2, 7)))  # fmt: skip
    faults = []
    for begins_s, ends_s in bursts:
        faults += [
            _fault(chance, begins_s, ends_s) for _ in range(chance.choice([1, 2, 3, 4, 6, 8]))
        ]
    return Case(
        seed=seed, racks=racks, gpus=gpus, replicas=chance.choice([1, 2, 2]),
        hold_after_s=chance.choice([0, 5, 20]), arrivals=arrivals,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)), bursts=tuple(bursts), until_s=at_s,
    )  # fmt: skip


def _arrival(chance: Random, number: int, bursts: list[tuple[float, float]], racks: int, gpus: int) -> Arrival:  # fmt: skip
    begins_s, ends_s = chance.choice(bursts)
    lone = chance.random() < 0.2
    groups = []
    for index in range(1 if lone else chance.choice([1, 1, 1, 2, 3])):
        pods = chance.randint(1, min(5, racks * 2 + 1))
        minimum = pods if lone else chance.choice([pods, pods, chance.randint(1, pods), 0])
        amount = chance.choice([1, 1, gpus // 2, gpus])
        key = "" if lone else chance.choice(["", "", "", RACK, BLOCK])
        groups.append(
            ArrivingGroup(
                name=f"g{index}", pods=pods, minimum=minimum, topology_key=key,
                requests={GPU: max(1, amount), "cpu": 1000},
            )
        )  # fmt: skip
    runs_for_s = chance.choice([float("inf"), float("inf"), chance.uniform(10.0, 120.0)])
    return Arrival(
        at_s=round(chance.uniform(max(0.0, begins_s - 3.0), ends_s + 5.0), 2),
        namespace=f"team-{number % 2}",
        name=f"{LONE if lone else 'j'}{number}",
        groups=tuple(groups),
        runs_for_s=runs_for_s,
        priority=chance.choice([0, 0, 0, 10]),
    )


def _fault(chance: Random, begins_s: float, ends_s: float) -> Fault:
    at_s = chance.uniform(begins_s, ends_s)
    (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
    lasts_s = min(chance.choice([0.5, 3.0, 12.0, 25.0]) * chance.uniform(0.3, 1.0), ends_s - at_s)
    return Fault(at_s=round(at_s, 3), kind=kind, target=chance.randrange(1 << 16), lasts_s=round(lasts_s, 3))  # fmt: skip
