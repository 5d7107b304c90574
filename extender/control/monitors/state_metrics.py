"""Metrics of waiting gangs, capacity and the database: how long gangs wait, who waits, and what capacity is used for.

Histograms count events that this process appended, once they are durable. Gauges are set when metrics are scraped, from the
committed state and the last measurement of the capacity; only what has changed since the last scrape is counted again. They
are those of the leader: a replica that does not lead has no series of them.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, get_args

from extender.control.log.leader import Leader
from extender.control.monitors.capacity_sampler import CapacitySampler
from extender.control.published.pass_result import PublishedPass
from extender.core.log.events import RecordedEvent
from extender.core.log.gang_phase import (
    NOT_WAITING,
    WaitingGang,
    WaitingGangs,
    resumed_us,
    stages_reached,
)
from extender.core.log.reservation_state import EffectivePhase, GangState, ReservationState
from extender.core.model.errors import StoreUnavailable
from extender.core.model.ids import GangUid, GroupKey
from extender.core.model.object_identity import IdentityMemo
from extender.core.model.pod_groups import Forest, Tree, composite_key, leaf_key
from extender.core.model.visibility import namespace_of
from extender.ports.cluster_ports import Cluster
from extender.ports.log_ports import Clock
from extender.runtime.periodic import PeriodicTask
from extender.telemetry import METRICS, OTHERS

NAMESPACES_MAX: Final = 100  # with series of their own: those with the most waiting gangs
SIZE_EVERY_S: Final = 300.0
_STATES: Final = tuple(
    state
    for phase in get_args(EffectivePhase)
    for state in (get_args(phase) or (phase,))
    if state not in NOT_WAITING
)


class WaitingLabels(NamedTuple):
    """The labels of the gauges of waiting gangs."""

    namespace: str
    state: str


class WaitingSummary(NamedTuple):
    """The numbers of waiting gangs as the gauges have them."""

    gangs: Mapping[WaitingLabels, int]
    requests: Mapping[tuple[WaitingLabels, str], int]  # by resource; CPU in millicores
    since_us: Mapping[str, int]  # of the gang that waits longest, by state


class StateMetrics:
    """Counts what was appended, and sets the gauges."""

    def __init__(
        self,
        cluster: Cluster,
        leader: Leader,
        published: PublishedPass,
        sampler: CapacitySampler,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._leader = leader
        self._published = published
        self._sampler = sampler
        sampler.counts_uses = True
        self._clock = clock
        self._waiting = WaitingGangs()
        self._summary: IdentityMemo[WaitingSummary] = IdentityMemo()
        self._requests: dict[GangUid, tuple[Tree, Counter[str]]] = {}
        leader.add_append_listener(self.count_stages)

    def count_stages(self, events: Sequence[RecordedEvent], before: ReservationState) -> None:
        """Count how long gangs took to the stages that they reached with the events of an append."""
        for reached in stages_reached(before, events):
            candidates = map(self._cluster.view().groups.get, _keys_of(reached.event.gang))
            root = next((g for g in candidates if g and g.uid == reached.event.gang_uid), None)
            # a group that is not in the view any more was created before the log had it
            created_us = (root.created_us if root is not None else 0) or reached.observed_us
            since_us = max(created_us, resumed_us(before.trees, root) if root is not None else 0)
            name = root.priority_class if root is not None else ""
            METRICS.gang_waited(reached.stage, name, (reached.reached_us - since_us) / 1e6)

    def set_gauges(self) -> None:
        """Set the gauges of this moment; without the right to append they have no series."""
        gauges = (
            METRICS.oldest_waiting_gang_seconds, METRICS.gangs_waiting, METRICS.gangs_waiting_requests, METRICS.capacity,
        )  # fmt: skip
        for gauge in gauges:
            gauge.clear()
        if not self._leader.may_record():
            return
        capacity, state = self._sampler.capacity, self._leader.committed
        for (resource, use), amount in capacity.items():
            METRICS.capacity.labels(resource, use).set(_base_units(resource, amount))
        waiting, forest = self._waiting.of(state), self._published.observation.forest
        summary = self._summary.get(
            lambda: self._summed(waiting, forest, {resource for resource, _ in capacity}),
            same=(waiting, forest, capacity),
        )
        now_us = self._clock.now_us()
        for name in _STATES:
            age_us = max(now_us - summary.since_us.get(name, now_us), 0)
            METRICS.oldest_waiting_gang_seconds.labels(name).set(age_us / 1e6)
        for labels, gangs in summary.gangs.items():
            METRICS.gangs_waiting.labels(*labels).set(gangs)
        for (labels, resource), amount in summary.requests.items():
            METRICS.gangs_waiting_requests.labels(*labels, resource).set(
                _base_units(resource, amount)
            )

    def _summed(
        self, waiting: Sequence[WaitingGang], forest: Forest, resources: Collection[str]
    ) -> WaitingSummary:
        named = Counter(namespace_of(gang.root.gang) for gang in waiting)
        own = {namespace for namespace, _ in named.most_common(NAMESPACES_MAX)}
        gangs: Counter[WaitingLabels] = Counter()
        requests: Counter[tuple[WaitingLabels, str]] = Counter()
        since_us: dict[str, int] = {}
        before, self._requests = self._requests, {}
        for gang in waiting:
            namespace = namespace_of(gang.root.gang)
            labels = WaitingLabels(namespace if namespace in own else OTHERS, gang.state)
            gangs[labels] += 1
            since_us[gang.state] = min(since_us.get(gang.state, gang.since_us), gang.since_us)
            for resource, amount in self._requested(gang.root, forest, before).items():
                if resource in resources:
                    requests[labels, resource] += amount
        return WaitingSummary(gangs, requests, since_us)

    def _requested(
        self, root: GangState, forest: Forest, before: Mapping[GangUid, tuple[Tree, Counter[str]]]
    ) -> Mapping[str, int]:
        """Return what the pods of a gang request that have no node."""
        trees = map(forest.populated.get, _keys_of(root.gang))
        tree = next((t for t in trees if t is not None and t.root.uid == root.uid), None)
        if tree is None:
            return {}
        entry = before.get(root.uid)
        if entry is None or entry[0] is not tree:
            amounts: Counter[str] = Counter()
            for pod in tree.pods:
                if pod.node is None:
                    amounts.update(dict(pod.shape.requests))
            entry = tree, amounts
        self._requests[root.uid] = entry
        return entry[1]


def _keys_of(gang: str) -> Iterable[GroupKey]:
    """Return the keys that a root group of a name may have."""
    namespace, _, name = gang.partition("/")
    return composite_key(namespace, name), leaf_key(namespace, name)


def _base_units(resource: str, amount: int) -> float:
    return amount / 1000 if resource == "cpu" else amount


class DatabaseSize:
    """Measures the size of the database, and the free part of its disk where that is one of this machine."""

    def __init__(self, database_bytes: Callable[[], Awaitable[int]], folder: str) -> None:
        """Prepare.

        Args:
            database_bytes: Returns the size of the database; raises StoreUnavailable.
            folder: Of the embedded database; empty: the database is another one's.
        """
        self._database_bytes = database_bytes
        self._folder = folder
        self.run = PeriodicTask(
            name="database_size",
            work=self.look,
            every_s=SIZE_EVERY_S,
            expected=(StoreUnavailable, OSError),
            failure="the size of the database, or the free part of its disk, is not known",
        ).run

    async def look(self) -> None:
        """Measure once.

        Raises:
            OSError: The folder cannot be read.
        """
        if self._folder:
            usage = await asyncio.to_thread(shutil.disk_usage, self._folder)
            METRICS.database_disk_free_bytes.labels(self._folder).set(usage.free)
        METRICS.database_size_bytes.set(await self._database_bytes())
