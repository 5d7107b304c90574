"""The cluster and the pending state as a step of a pass sees them, together with the trees of that view."""

from __future__ import annotations

from extender.control.log.leader import Leader
from extender.control.published.loss_predictor import LossPredictor
from extender.control.published.pass_result import PublishedPass
from extender.core.log.reservation_state import ReservationState
from extender.core.model.cluster_view import ClusterView
from extender.core.model.pod_groups import Forest
from extender.ports.cluster_ports import Cluster
from extender.runtime.cooperative_yield import SlicePace


class ClusterObserver:
    """Looks at the cluster for the control loop, and publishes what it sees."""

    def __init__(
        self, cluster: Cluster, leader: Leader, published: PublishedPass, losses: LossPredictor
    ) -> None:
        """Prepare.

        Args:
            cluster: What is observed.
            leader: Has the pending state.
            published: Gets each observation.
            losses: For the pending state.
        """
        self._cluster = cluster
        self._leader = leader
        self._published = published
        self._losses = losses

    @property
    def forest(self) -> Forest:
        """Return the trees of the last observation."""
        return self._published.observation.forest

    async def approach(self, pace: SlicePace) -> None:
        """Build the trees of very many new groups in slices, before `observe`."""
        await self._published.approach(self._cluster.view(), pace)

    def observe(self) -> tuple[ClusterView, Forest, ReservationState]:
        """Publish the newest view and its trees; return both, and the pending state with its predicted losses."""
        view = self._cluster.view()
        forest = self._published.observe(view).forest
        state = self._losses.with_predicted_losses(view, self._leader.pending_state)
        return view, forest, state
