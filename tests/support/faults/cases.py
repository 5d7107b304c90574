"""What a seed stands for: a small cluster, what arrives in it, and what goes wrong when; all of it can be left out by itself."""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from extender.simulation.arrivals import Arrival, ArrivingGroup

GPU: Final = "nvidia.com/gpu"
RACK: Final = "topology.example.com/rack"
BLOCK: Final = "topology.example.com/block"
# after each burst of faults nothing goes wrong for so long, or until all is settled
QUIET_S: Final = 200.0
BURST_S: Final = (15.0, 40.0)
LONE: Final = "lone"  # jobs whose names begin with it are pods outside of groups
RIVALS: Final = 0.1  # of the cases
ALONE: Final = "alone"  # ... have a rack that no other tree has pods in


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes wrong.

    Attributes:
        at_s: When.
        kind: A method of `Run` without `do_`.
        target: A number of which the method makes a choice among what there is.
        lasts_s: For how long, or by how much.
        after: What it waits for from `at_s` to the end of its burst, one of `MOMENTS`; it strikes what that is about.
            Empty: nothing.
        delay_s: How long after that.
    """

    at_s: float
    kind: str
    target: int
    lasts_s: float
    after: str = ""
    delay_s: float = 0.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Times are seconds of it."""

    seed: int
    racks: int  # of two nodes each, two racks are a block
    gpus: int  # of a node
    replicas: int
    hold_after_s: int
    cycle_s: float  # of a scheduling cycle of kube-scheduler in a burst
    finalizer_s: (
        float  # for so long a pod without a node stays after its deletion; 0: it has no finalizer
    )
    arrivals: tuple[Arrival, ...]
    faults: tuple[Fault, ...]
    bursts: tuple[
        tuple[float, float], ...
    ]  # begin and end; a quiet that ends early brings the next one forward
    until_s: float


KINDS: Final = {
    "watch_late": 3, "watch_breaks": 1, "watch_expires": 2, "watch_loses": 2, "watch_duplicates": 1, "watch_swaps": 1,
    "requests_fail": 4, "requests_slow": 1, "api_server_down": 1,
    "database_down": 2, "database_slow": 2, "database_cut": 3, "answer_lost": 3, "append_lost": 3,
    "process_stops": 3, "process_dies": 4, "leader_dies_blind": 3, "clock_steps": 1, "scheduler_dies": 3, "scheduler_away": 2,
    "pod_deleted": 5, "pod_fails": 2, "group_again": 2, "node_again": 1, "node_lost": 2, "node_cordoned": 1, "job_again": 2,
    "job_deleted": 2, "job_shrinks": 3, "group_lingers": 2, "database_restored": 2,
}  # fmt: skip
# An event of the log before it is appended, a bind call that waits, a write before it is sent.
MOMENTS: Final = {
    "GangAdmitted": 6, "GangUnschedulable": 4, "PreemptionPlanned": 4, "CapacityHeld": 2, "MemberTerminated": 1, "PodBound": 1,
    "ReservationReleased": 1, "LeaseAcquired": 1, "waits at bind": 4, "bind": 3, "ungate": 2, "evict": 3,
}  # fmt: skip
VERBS: Final = ("bind", "bind", "ungate", "evict")
MEANWHILE: Final = (
    "process_stops", "process_stops", "process_dies", "scheduler_dies", "database_cut", "pod_deleted", "node_lost", "group_again",
    "job_deleted", "scheduler_dies", "scheduler_dies",
)  # fmt: skip


def is_cut_off(target: int) -> bool:
    """Return whether a leader whose followers read late is not dead but cut off from the database: what it has decided is bound, what it decides is lost."""
    return target // 2 % 3 == 0


def case_of(seed: int) -> Case:
    """Return the case of a seed: a cluster so small that its jobs contend."""
    chance = Random(f"case {seed}")
    racks, gpus = chance.choice([1, 1, 2]), chance.choice([2, 4, 4])
    at_s, bursts = 0.0, list[tuple[float, float]]()
    for _ in range(chance.choice([1, 1, 2])):
        begins_s = at_s + chance.uniform(3.0, 12.0)
        at_s = begins_s + chance.uniform(*BURST_S)
        bursts.append((begins_s, at_s))
        at_s += QUIET_S
    arrivals = tuple(_arrival(chance, number, bursts, racks, gpus) for number in range(chance.randint(3, 8)))  # fmt: skip
    arrivals += _rivals(Random(f"rivals {seed}"), racks, gpus)
    faults = []
    for begins_s, ends_s in bursts:
        faults += [_fault(chance, begins_s, ends_s) for _ in range(chance.choice([1, 2, 3, 4, 6]))]
        if (
            chance.random() < 0.4
        ):  # a write fails, and while it is tried again something else happens
            verb = chance.choice(VERBS)
            fails = _fault(chance, begins_s, ends_s, "requests_fail", verb)
            faults.append(msgspec.structs.replace(fails, target=2, delay_s=0.0))
            meanwhile = chance.choice(MEANWHILE)
            faults.append(_fault(chance, begins_s, ends_s, meanwhile, f"{verb} fails"))
    return Case(
        seed=seed, racks=racks, gpus=gpus, replicas=chance.choice([1, 2, 2]),
        hold_after_s=chance.choice([0, 5, 5]), cycle_s=chance.choice([0.001, 0.001, 0.2, 0.6]),
        finalizer_s=chance.choice([0.0, 0.0, 3.0, 40.0]), arrivals=arrivals,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)), bursts=tuple(bursts), until_s=at_s,
    )  # fmt: skip


def _arrival(chance: Random, number: int, bursts: list[tuple[float, float]], racks: int, gpus: int) -> Arrival:  # fmt: skip
    begins_s, ends_s = chance.choice(bursts)
    lone, alone = chance.random() < 0.25, chance.random() < 0.15
    groups = []
    for index in range(1 if lone or alone else chance.choice([1, 1, 1, 2, 3])):
        pods = chance.randint(1, 2 if lone else racks * 2 + 1)
        minimum = pods if lone else chance.choice([pods, pods, chance.randint(1, pods), 0])
        amount = chance.choice([1, 1, gpus // 2, gpus])
        key = "" if lone else RACK if alone else chance.choice(["", "", "", RACK, BLOCK])
        groups.append(
            ArrivingGroup(
                name=f"g{index}", pods=pods, minimum=minimum, topology_key=key,
                requests={GPU: max(1, amount), "cpu": 1000},
            )
        )  # fmt: skip
    runs_for_s = chance.choice([float("inf"), float("inf"), chance.uniform(5.0, 60.0)])
    return Arrival(
        at_s=round(chance.uniform(max(0.0, begins_s - 3.0), ends_s + 5.0), 2),
        namespace=f"team-{number % 2}",
        name=f"{LONE if lone else ALONE if alone else 'j'}{number}",
        groups=tuple(groups),
        runs_for_s=runs_for_s,
        priority=chance.choice([0, 0, 5, 5, 10]),
    )


def _rivals(chance: Random, racks: int, gpus: int) -> tuple[Arrival, ...]:
    """Return, in a tenth of the cases, a job for which only one of equal priority could make room: one of lower priority is too small."""
    if chance.random() >= RIVALS:
        return ()
    pods = {"small": 1, "large": racks * 2 * gpus - 1, "rival": gpus}
    priorities = {"small": 0, "large": 5, "rival": 5}
    return tuple(
        Arrival(
            at_s=0.5 * number, namespace="team-0", name=name, runs_for_s=float("inf"), priority=priorities[name],
            groups=(ArrivingGroup(name="g0", pods=count, minimum=count, requests={GPU: 1, "cpu": 1000}),),
        )
        for number, (name, count) in enumerate(pods.items())
    )  # fmt: skip


def _fault(chance: Random, begins_s: float, ends_s: float, kind: str = "", after: str = "") -> Fault:  # fmt: skip
    at_s, delay_s = chance.uniform(begins_s, ends_s), 0.0
    kind = kind or chance.choices(list(KINDS), list(KINDS.values()))[0]
    if after or chance.random() < 0.6:  # from about the beginning, since it waits for its moment
        at_s = begins_s + (at_s - begins_s) * 0.3
        after = after or chance.choices(list(MOMENTS), list(MOMENTS.values()))[0]
        delay_s = chance.choice([0.0, 0.0, 0.005, 0.05, 1.0])
    if kind == "scheduler_away":  # when something waits for it
        after, delay_s = "GangAdmitted", 0.0
    lasts_s = min(chance.choice([0.5, 3.0, 12.0, 25.0]) * chance.uniform(0.5, 1.0), ends_s - at_s)
    target = chance.randrange(1 << 16)
    if kind == "leader_dies_blind" and is_cut_off(
        target
    ):  # when it decides: the next leader decides it again
        after, delay_s = "GangAdmitted", 0.0
    return Fault(
        at_s=round(at_s, 3), kind=kind, target=target, lasts_s=round(lasts_s, 3),
        after=after, delay_s=delay_s,
    )  # fmt: skip
