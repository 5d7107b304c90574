"""Keep groups until nothing needs them: our finalizer is set when a group is seen, lifted when it may go.

A loop of its own, so that no long plan keeps a deleted object: while this process may act at all, what
nothing needs goes within a second or two. Reservations of its members are given back first, and that is
in the log, so that no Binding is on its way when the group goes. Nothing is remembered but what was just
written; everything else is decided from the view and the state again.
"""

from __future__ import annotations

import asyncio
import logging

from extender.control.log.leader import Leader
from extender.core.decisions.reconcile.finalizer_rules import (
    FinalizerChange,
    decide_protection,
    held_leaves,
    may_go,
)
from extender.core.model.cluster_view import Guard
from extender.core.model.errors import ClusterUnavailable, RequestRejected
from extender.core.model.ids import GroupKey
from extender.ports.protocols import Cluster

log = logging.getLogger(__name__)

SETTLE_S = 0.1  # changes come in bursts, and nobody waits for a finalizer by the millisecond
TICK_S = 1.0


class FinalizerController:
    """The only writer of our finalizer."""

    def __init__(self, cluster: Cluster, leader: Leader) -> None:
        self._cluster = cluster
        self._leader = leader
        self._written: dict[GroupKey, Guard] = {}  # seen like this when it was written

    async def run(self) -> None:
        """Work for ever: on changes of the cluster, and once per tick for what failed."""
        while True:
            revision = self._cluster.view().revision
            if self._leader.may_act() and not self._cluster.doubt():
                await self.work()
            try:
                async with asyncio.timeout(TICK_S):
                    await self._cluster.changed(revision)
            except TimeoutError:
                pass
            await asyncio.sleep(SETTLE_S)

    async def work(self) -> None:
        """Write what the view of now asks for, one group after the other."""
        guards = self._cluster.view().guards
        self._written = {k: g for k, g in self._written.items() if guards.get(k) is g}
        for wanted in decide_protection(self._cluster.view(), self._held()):
            if self._written.get(wanted.group) is wanted.guard:
                continue  # the cluster has not shown us yet what we wrote
            if not self._leader.may_act() or self._cluster.doubt():
                return
            await self._write(wanted)

    def _held(self) -> frozenset[GroupKey]:
        """Give the leaves with reservations: given back durably, and none on its way to the log."""
        return held_leaves(self._leader.acknowledged, self._leader.speculative)

    async def _write(self, wanted: FinalizerChange) -> None:
        now = self._cluster.view()
        same = now.guards.get(wanted.group) is wanted.guard
        if not same or (wanted.guard.deleting and not may_go(now, wanted.group, self._held())):
            return  # changed while others were written: the next look decides anew
        try:
            await self._cluster.set_finalizers(wanted)
        except RequestRejected as error:  # gone or made again: the informer tells
            log.info("finalizer not written", extra={"error": str(error)})
        except ClusterUnavailable as error:
            log.warning("finalizer not written yet", extra={"error": str(error)})
            return
        self._written[wanted.group] = wanted.guard
