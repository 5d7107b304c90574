"""A cluster in virtual time for placement algorithms alone: arrivals, run times, a queue; no process and no clock.

An algorithm is a pure function of the free capacity and one arrival. Whatever it answers is checked here: no host over its
capacity, each group with its minimum, all pods of a group with a topology key in one domain.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import msgspec

from extender.simulation.arrivals import Arrival, ArrivingGroup

Seat = tuple[int, int]  # number of a group, number of a host
Place = Callable[["Free", Arrival], "tuple[Seat, ...] | None"]


class Host(msgspec.Struct, frozen=True):
    """A node; its capacity in the units of `ArrivingGroup.requests`."""

    name: str
    labels: dict[str, str]
    capacity: dict[str, int]


class Free:
    """Free capacity of each host, which `take` and `give` change."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = tuple(hosts)
        self.amounts = [dict(host.capacity) for host in hosts]

    def copy(self) -> Free:
        """Return one that an algorithm may change."""
        free = Free(())
        free.hosts, free.amounts = self.hosts, [dict(amounts) for amounts in self.amounts]
        return free

    def slots(self, host: int, requests: Mapping[str, int]) -> int:
        """Return how many pods fit on a host."""
        amounts = self.amounts[host]
        return min((amounts.get(name, 0) // amount for name, amount in requests.items() if amount), default=1 << 30)  # fmt: skip

    def take(self, host: int, requests: Mapping[str, int], sign: int = 1) -> None:
        """Take the requests of a pod from a host; -1 gives them back."""
        amounts = self.amounts[host]
        for name, amount in requests.items():
            amounts[name] = amounts.get(name, 0) - sign * amount

    def domains(self, key: str) -> dict[str, list[int]]:
        """Return the hosts of each domain of a label key, by value; without a key all hosts are one domain."""
        domains: dict[str, list[int]] = {}
        for number, host in enumerate(self.hosts):
            if not key or key in host.labels:
                domains.setdefault(host.labels.get(key, ""), []).append(number)
        return dict(sorted(domains.items()))


class Arm(msgspec.Struct, frozen=True):
    """An algorithm, and how its queue goes on behind an arrival that does not fit."""

    name: str
    place: Place
    strict: bool = False  # True: first in, first out; nothing passes the first one


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace came to with one algorithm. Times in seconds."""

    arm: str
    waits: dict[str, float]  # namespace/name -> from its arrival to its placement
    never: tuple[str, ...]  # that were not placed until nothing happened any more
    pods: dict[str, int]  # that were placed, of each arrival
    utilisation: float  # share of the resource that was used until the last arrival


class WrongAnswer(Exception):
    """An algorithm placed what does not fit."""


def name_of(arrival: Arrival) -> str:
    """Return `namespace/name`."""
    return f"{arrival.namespace}/{arrival.name}"


def checked(free: Free, arrival: Arrival, seats: Sequence[Seat]) -> None:
    """Take the seats of an arrival.

    Raises:
        WrongAnswer: They break a rule; the message names it.
    """
    for number, group in enumerate(arrival.groups):
        hosts = [host for of, host in seats if of == number]
        if not group.minimum <= len(hosts) <= group.pods:
            raise WrongAnswer(f"{name_of(arrival)}: {len(hosts)} pods of {group.name}")
        if group.topology_key and len({free.hosts[host].labels.get(group.topology_key) for host in hosts}) > 1:  # fmt: skip
            raise WrongAnswer(f"{name_of(arrival)}: {group.name} is in several domains")
        for host in hosts:
            free.take(host, group.requests)
    short = [free.hosts[h].name for h in {h for _, h in seats} if min(free.amounts[h].values(), default=0) < 0]  # fmt: skip
    if short:
        raise WrongAnswer(f"{name_of(arrival)}: {short} are over their capacity")


def simulate(
    hosts: Sequence[Host], arrivals: Sequence[Arrival], arm: Arm, resource: str
) -> Outcome:
    """Return what becomes of a trace.

    Args:
        hosts: The cluster.
        arrivals: In the order of their times.
        arm: The algorithm. At each moment it is asked about what waits, in the order of priority and arrival.
        resource: Whose utilisation is counted.
    """
    free = Free(hosts)
    ends: list[tuple[float, int, tuple[Seat, ...]]] = []
    waiting: list[int] = []
    waits: dict[str, float] = {}
    pods: dict[str, int] = {}
    used = used_time = 0.0
    last = arrivals[-1].at_s if arrivals else 0.0
    following, now = 0, 0.0
    while following < len(arrivals) or ends:
        moment = min(
            arrivals[following].at_s if following < len(arrivals) else float("inf"),
            ends[0][0] if ends else float("inf"),
        )
        used_time += used * (min(moment, last) - min(now, last))
        now = moment
        freed = bool(ends) and ends[0][0] == now
        while ends and ends[0][0] == now:
            _, number, seats = heapq.heappop(ends)
            for of, host in seats:
                group = arrivals[number].groups[of]
                free.take(host, group.requests, -1)
                used -= group.requests.get(resource, 0)
        new = []
        while following < len(arrivals) and arrivals[following].at_s == now:
            new.append(following)
            following += 1
        waiting = sorted(
            [*waiting, *new], key=lambda n: (-arrivals[n].priority, arrivals[n].at_s, n)
        )
        asked = waiting if freed or arm.strict else new
        for number, seats in _placed(free, arrivals, asked, arm):
            arrival = arrivals[number]
            waiting.remove(number)
            waits[name_of(arrival)] = now - arrival.at_s
            pods[name_of(arrival)] = len(seats)
            used += sum(arrival.groups[of].requests.get(resource, 0) for of, _ in seats)
            if arrival.runs_for_s != float("inf"):
                heapq.heappush(ends, (now + arrival.runs_for_s, number, seats))
    total = sum(host.capacity.get(resource, 0) for host in hosts)
    return Outcome(
        arm=arm.name, waits=waits, never=tuple(name_of(arrivals[n]) for n in waiting), pods=pods,
        utilisation=used_time / (total * last) if total and last else 0.0,
    )  # fmt: skip


def _placed(
    free: Free, arrivals: Sequence[Arrival], asked: Sequence[int], arm: Arm
) -> list[tuple[int, tuple[Seat, ...]]]:
    """Place what fits, one after the other; an arrival like one that was refused on the same capacity is refused, too."""
    placed: list[tuple[int, tuple[Seat, ...]]] = []
    refused: set[tuple[ArrivingShape, ...]] = set()
    for number in asked:
        arrival = arrivals[number]
        shape = tuple(_shape(group) for group in arrival.groups)
        seats = None if shape in refused else arm.place(free, arrival)
        if seats is None:
            refused.add(shape)
            if arm.strict:
                break
            continue
        checked(free, arrival, seats)
        refused.clear()
        placed.append((number, seats))
    return placed


ArrivingShape = tuple[int, int, tuple[tuple[str, int], ...], str]


def _shape(group: ArrivingGroup) -> ArrivingShape:
    return group.pods, group.minimum, tuple(sorted(group.requests.items())), group.topology_key
