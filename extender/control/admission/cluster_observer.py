"""The moment that a step of the control loop decides on: a view, the trees of that view, and the state of the log.

A pass takes one moment and hands it on; so does a search, before it waits for the planner process and after that.
Nothing below may ask for the newest view, trees or state itself: after an await they would not belong together
(`tests/unit/control/loop/test_one_moment.py` checks this).
"""

from __future__ import annotations

import msgspec

from extender.control.log.leader import Leader
from extender.control.published.pass_result import PublishedPass
from extender.control.published.shared_state import LossPredictor
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.pod_groups import Forest
from extender.ports.cluster_ports import Cluster
from extender.runtime.cooperative_yield import SlicePace


class Moment(msgspec.Struct, frozen=True, eq=False):
    """What belongs together."""

    view: ClusterView
    forest: Forest  # the trees of `view`
    pending: ReservationState  # what further events are folded into; it may be newer than `view`
    # the same with the replacement holds of losses that are not recorded yet
    state: ReservationState


class ClusterObserver:
    """Looks at the cluster for the control loop, and publishes what it sees."""

    def __init__(
        self, cluster: Cluster, leader: Leader, published: PublishedPass, losses: LossPredictor
    ) -> None:
        self._cluster = cluster
        self._leader = leader
        self._published = published
        self._losses = losses

    async def approach(self, pace: SlicePace) -> None:
        """Build the trees of very many new groups in slices, before `observe`."""
        await self._published.approach(self._cluster.view(), pace)

    def observe(self) -> Moment:
        """Publish the newest view and its trees, and return them with the pending state."""
        view = self._cluster.view()
        return self._moment(view, self._published.observe(view).forest)

    def after_appends(self, now: Moment) -> Moment:
        """Return a moment with the same view and trees, and the state with what was appended since."""
        return self._moment(now.view, now.forest)

    def _moment(self, view: ClusterView, forest: Forest) -> Moment:
        pending = self._leader.pending_state
        return Moment(view, forest, pending, self._losses.with_predicted_losses(view, pending))
