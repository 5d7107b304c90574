"""Placement algorithms after the descriptions of peers, each a function of free capacity and one arrival.

- `after_kube_scheduler`: the cycle of pod groups of Kubernetes 1.38.0-beta.0, KEP-4671, KEP-5732 and KEP-6012.
- `after_kueue`: Topology Aware Scheduling of Kueue, KEP-2724, profile Mixed (default since v0.15).
- `after_fragmentation`: Fragmentation Gradient Descent, Weng et al., USENIX ATC 2023, for whole GPUs.

They have what decides about places, and none of the code. Ties are broken by name, where a peer draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from extender.simulation.arrivals import Arrival, ArrivingGroup
from tests.bench.arena.virtual_cluster import Free, Place, Seat

Requests = Mapping[str, int]
Choose = Callable[[Free, Sequence[int], Requests], "int | None"]  # a host of some, for a pod


# --- kube-scheduler


def after_kube_scheduler(
    free: Free, arrival: Arrival, choose: Choose | None = None
) -> tuple[Seat, ...] | None:
    """Place group by group in their fixed order, and revert all when one misses its minimum.

    Of a group with a topology key each domain is tried, and the best score wins; that is never changed for the sake of a later
    group. All pods of a group are tried, those beyond its minimum before the next group.

    Args:
        free: Not changed.
        arrival: A root whose minimum is all its groups.
        choose: Of a pod; None: the default score of nodes, the least allocated.
    """
    trial, seats = free.copy(), []
    for number, group in enumerate(arrival.groups):
        best: tuple[tuple[int, float], list[int]] | None = None
        for hosts in trial.domains(group.topology_key).values():
            chosen = _greedy(trial, hosts, group, choose or least_allocated)
            if len(chosen) >= group.minimum:
                # the tightest domain, and in it as many pods as possible, with equal weights
                score = (len(chosen), _allocated(trial, hosts, group.requests))
                if best is None or score > best[0]:
                    best = score, chosen
        if best is None:
            return None
        for host in best[1]:
            trial.take(host, group.requests)
            seats.append((number, host))
    return tuple(seats)


def _greedy(free: Free, hosts: Sequence[int], group: ArrivingGroup, choose: Choose) -> list[int]:
    """Return a host for one pod after the other, until none fits; `free` is as before."""
    chosen: list[int] = []
    while len(chosen) < group.pods:
        host = choose(free, hosts, group.requests)
        if host is None:
            break
        free.take(host, group.requests)
        chosen.append(host)
    for host in chosen:
        free.take(host, group.requests, -1)
    return chosen


def least_allocated(free: Free, hosts: Sequence[int], requests: Requests) -> int | None:
    """Return the host with the largest share of what is requested free, which spreads pods."""
    return _best(free, hosts, requests, lambda host: _share(free, host, requests))


def most_allocated(free: Free, hosts: Sequence[int], requests: Requests) -> int | None:
    """Return the host with the smallest share of what is requested free, which packs pods."""
    return _best(free, hosts, requests, lambda host: -_share(free, host, requests))


def _best(
    free: Free, hosts: Iterable[int], requests: Requests, score: Callable[[int], float]
) -> int | None:
    fitting = [host for host in hosts if free.slots(host, requests)]
    return max(fitting, key=lambda host: (score(host), -host), default=None)


def _share(free: Free, host: int, requests: Requests) -> float:
    capacity, amounts = free.hosts[host].capacity, free.amounts[host]
    shares = [amounts.get(name, 0) / capacity[name] for name in requests if capacity.get(name)]
    return sum(shares) / len(shares) if shares else 0.0


def _allocated(free: Free, hosts: Sequence[int], requests: Requests) -> float:
    return -sum(_share(free, host, requests) for host in hosts) / len(hosts)


# --- Kueue


def after_kueue(free: Free, arrival: Arrival) -> tuple[Seat, ...] | None:
    """Place pod set by pod set, each whole: with a required level best fit in one domain, else hosts with the least free capacity.

    Pod sets are whole: partial admission is not on by default. The quota is the capacity of the cluster.
    """
    trial, seats = free.copy(), []
    for number, group in enumerate(arrival.groups):
        counts = best_fit(trial, group) if group.topology_key else least_free(trial, group)
        if counts is None:
            return None
        for host, count in counts.items():
            for _ in range(count):
                trial.take(host, group.requests)
                seats.append((number, host))
    return tuple(seats)


def best_fit(free: Free, group: ArrivingGroup) -> dict[int, int] | None:
    """Return pods for each host of the domain that just accommodates all; None: no domain does."""
    domains = free.domains(group.topology_key)
    slots = {
        name: sum(free.slots(host, group.requests) for host in hosts)
        for name, hosts in domains.items()
    }
    fitting = [name for name in domains if slots[name] >= group.pods]
    if not fitting:
        return None
    hosts = domains[min(fitting, key=lambda name: (slots[name], name))]
    return _from_most(free, hosts, group)


def _from_most(free: Free, hosts: Sequence[int], group: ArrivingGroup) -> dict[int, int]:
    """Take hosts from the one with most slots on; the last one is the smallest that accommodates the rest."""
    slots = {host: free.slots(host, group.requests) for host in hosts}
    left, counts = group.pods, {}
    for host in sorted(hosts, key=lambda h: (-slots[h], h)):
        if slots[host] >= left:
            last = min((h for h in hosts if h not in counts and slots[h] >= left), key=lambda h: (slots[h], h))  # fmt: skip
            counts[last] = left
            return counts
        counts[host] = slots[host]
        left -= slots[host]
    raise AssertionError("the domain accommodates all")


def least_free(free: Free, group: ArrivingGroup) -> dict[int, int] | None:
    """Return pods for each host, from the one with the fewest slots on; None: there are not enough."""
    slots = {host: free.slots(host, group.requests) for host in range(len(free.hosts))}
    left, counts = group.pods, {}
    for host in sorted(slots, key=lambda h: (slots[h], h)):
        if left and slots[host]:
            counts[host] = min(left, slots[host])
            left -= counts[host]
    return None if left else counts


# --- Fragmentation Gradient Descent


def fragmentation_of(workload: Sequence[tuple[float, int]], gpus: int) -> float:
    """Return the expected GPUs of a host that a pod of the workload cannot use.

    Args:
        workload: Share of all pods, and the whole GPUs that they request.
        gpus: Free on the host.
    """
    return sum(share * gpus for share, request in workload if not request or request > gpus)


def workload_of(arrivals: Sequence[Arrival], resource: str) -> tuple[tuple[float, int], ...]:
    """Return the target workload of a trace: the share of pods for each request of a resource."""
    pods: Counter[int] = Counter()
    for arrival in arrivals:
        for group in arrival.groups:
            pods[group.requests.get(resource, 0)] += group.pods
    total = sum(pods.values())
    return tuple((count / total, request) for request, count in sorted(pods.items()))


def after_fragmentation(workload: Sequence[tuple[float, int]], resource: str) -> Place:
    """Return the algorithm: each pod goes where the fragmentation grows least; a gang is placed whole or not at all.

    The paper places single pods; groups, their order and domains are as in `after_kube_scheduler`.
    """

    @lru_cache(maxsize=4096)
    def growth(gpus: int, request: int) -> float:
        return fragmentation_of(workload, gpus - request) - fragmentation_of(workload, gpus)

    def choose(free: Free, hosts: Sequence[int], requests: Requests) -> int | None:
        request = requests.get(resource, 0)
        return _best(free, hosts, requests, lambda h: -growth(free.amounts[h].get(resource, 0), request))  # fmt: skip

    def place(free: Free, arrival: Arrival) -> tuple[Seat, ...] | None:
        return after_kube_scheduler(free, arrival, choose)

    return place
