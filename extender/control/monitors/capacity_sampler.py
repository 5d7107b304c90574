"""Record the largest free domains once a minute (`CapacityMeasured`), if they have changed.

A sample, not a decision: what admissions use between two samples follows from their own events. Gangs run much
longer than a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from extender.control.log.leader import Leader
from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.capacity.largest_free_domain import (
    CapacityUse,
    FreeDomains,
    capacity_by_use,
    levels_of,
    measure_capacity,
)
from extender.core.log.events import CapacityMeasured, FreeDomainRecord
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import NotLeading, StoreUnavailable
from extender.core.model.ids import Epoch
from extender.core.model.object_identity import same_objects
from extender.ports.cluster_ports import Cluster
from extender.runtime.periodic import PeriodicTask
from extender.settings import Settings


class CapacitySampler:
    """Measures, and appends what differs from the last append of this epoch."""

    def __init__(self, cluster: Cluster, leader: Leader, settings: Settings) -> None:
        self._cluster = cluster
        self._leader = leader
        self._settings = settings
        self._rows, self._domains = NodeRowCache(), FreeDomains()
        self._inputs: tuple[object, ...] = (None,) * 5  # of the last measurement
        self._epoch: Epoch | None = None  # of the last append
        self._largest_free: tuple[FreeDomainRecord, ...] = ()
        # set by what reads `capacity`: it costs three times the measurement
        self.counts_uses = False
        # of the last measurement, see `capacity_by_use`
        self.capacity: Mapping[tuple[str, CapacityUse], int] = {}
        self.run = PeriodicTask(
            name="capacity_sampler",
            work=self.look,
            every_s=settings.capacity_sample_interval_s,
            condition=self._may_measure,
            expected=(NotLeading, StoreUnavailable),
            failure="free capacity not recorded",
        ).run

    def _may_measure(self) -> bool:
        return self._leader.may_measure() and not self._cluster.not_ready_reason()

    async def look(self) -> bool:
        """Measure once; return whether the result was appended.

        It runs in a thread, because it takes some 40 ms on 5,000 nodes. View and state are immutable, and events
        appended meanwhile come after the position that the event names.
        """
        if not self._may_measure():
            return False
        leader = self._leader
        view, state, epoch = self._cluster.view(), leader.committed, leader.epoch
        inputs = (view.nodes, view.pods, view.groups, state.claims_on, state.preemptions)
        if epoch == self._epoch and same_objects(inputs, self._inputs):
            return False
        keys = levels_of(view, self._settings.topology_keys)
        measured, self.capacity = await asyncio.to_thread(self._measure, view, state, keys)
        changed = epoch != self._epoch or measured.largest_free != self._largest_free
        if changed:
            await leader.append_own(measured)
        self._inputs, self._epoch, self._largest_free = inputs, epoch, measured.largest_free
        return changed

    def _measure(
        self, view: ClusterView, state: ReservationState, keys: Sequence[str]
    ) -> tuple[CapacityMeasured, Mapping[tuple[str, CapacityUse], int]]:
        largest = measure_capacity(self._rows, self._domains, view, state, keys)
        uses = capacity_by_use(self._rows, view, state) if self.counts_uses else {}
        return largest, uses
