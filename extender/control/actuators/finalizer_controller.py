"""Set our finalizer on groups when they are seen, and remove it from deleted groups that nothing needs any more.

It runs in its own loop, so that a long plan does not delay deletions: while this process may act, a deleted group
that nothing needs is gone within two seconds. The reservations of its members are released in the log first, so
that no Binding is in flight then.
"""

from __future__ import annotations

import logging

from extender.control.actuators.work_queue import retried
from extender.control.actuators.write_priority import PlacementPriority
from extender.control.log.leader import Leader
from extender.core.model.cluster_view import ClusterView, Guard, changed_guards
from extender.core.model.ids import GroupKey
from extender.core.reconcile.finalizer_rules import (
    FinalizerChange,
    decide_protection,
    held_leaves,
    may_change,
    may_remove_finalizer,
)
from extender.ports.cluster_ports import Cluster
from extender.ports.log_ports import Clock
from extender.runtime.periodic import Changes, ObjectFaults, PeriodicTask

log = logging.getLogger(__name__)

SETTLE_S = 0.1  # changes come in bursts, and finalizers are not urgent
TICK_S = 1.0
ROUND_MS = 500  # of writes for new groups; then groups are looked for that were deleted meanwhile


class FinalizerController:
    """Writes our finalizer; no other code does."""

    def __init__(self, cluster: Cluster, leader: Leader, clock: Clock) -> None:
        self._cluster = cluster
        self._leader = leader
        self._clock = clock
        self._placement = PlacementPriority(leader, clock)
        self._faults: ObjectFaults[GroupKey] = ObjectFaults("finalizers", clock.monotonic_ms)
        self._written: dict[GroupKey, Guard] = {}  # what the view showed at the write
        # the guards of the last comparison; the whole view would keep all pods of its time in memory
        self._last_view = ClusterView()
        self._may_change: dict[GroupKey, Guard] = {}  # those of them that get or lose the finalizer
        # on each change of the cluster, and every `TICK_S` for failed writes
        self.run = PeriodicTask(
            name="finalizer_controller",
            work=self.work,
            every_s=TICK_S,
            settle_s=SETTLE_S,
            condition=self._may_write,
            changes=Changes(lambda: cluster.view().revision, cluster.changed),
        ).run

    def _may_write(self) -> bool:
        return self._leader.may_act() and not self._cluster.not_ready_reason()

    async def work(self) -> None:
        """Write the finalizers that differ from what the view needs, one group after the other; deletions first."""
        while await self._work_for_a_round():
            pass

    async def _work_for_a_round(self) -> bool:
        """Write for `ROUND_MS`; return whether there is more to write, after a new comparison with the view."""
        begun_ms, failed = self._clock.monotonic_ms(), False
        view = self._cluster.view()
        self._follow(view)
        for change in decide_protection(view, self._held, self._may_change):
            if self._written.get(change.group) is change.guard:
                continue  # the informer has not seen the write yet
            # a new group can wait: no deletion and no member needs its finalizer now
            if not change.guard.deleting:
                await self._placement.give_way()
            if not self._may_write():
                return False
            if self._faults.waits(change.group):
                continue
            answered = False
            with self._faults.alone(change.group):
                answered = await self._write(change)
            failed |= not answered
            if not change.guard.deleting and self._clock.monotonic_ms() - begun_ms > ROUND_MS:
                return not failed
        return False

    def _follow(self, view: ClusterView) -> None:
        """Update `_may_change` from the guards that have changed since the last call."""
        for key in changed_guards(self._last_view, view):
            guard = view.guards.get(key)
            if self._written.get(key) is not guard:
                self._written.pop(key, None)
            if guard is not None and may_change(guard):
                self._may_change[key] = guard
            else:
                self._may_change.pop(key, None)
        self._last_view = ClusterView(guards=view.guards, guard_log=view.guard_log)

    def _held(self) -> frozenset[GroupKey]:
        """Return the leaves with reservations in the committed or the pending state."""
        return held_leaves(self._leader.committed, self._leader.pending_state)

    async def _write(self, change: FinalizerChange) -> bool:
        """Write the finalizers of one group if the view still needs it; return whether the API server answered."""
        now = self._cluster.view()
        same = now.guards.get(change.group) is change.guard
        if not same or (
            change.guard.deleting and not may_remove_finalizer(now, change.group, self._held())
        ):
            return True  # changed meanwhile: the next run decides again
        # of a rejected one the group was deleted or recreated: the informer will see it
        writing = self._cluster.set_finalizers(change)
        if await retried(writing, log, "finalizer not written") is not None:
            return False
        self._written[change.group] = change.guard
        return True
