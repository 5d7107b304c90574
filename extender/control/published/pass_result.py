"""What the control loop publishes: immutable values, each replaced as a whole.

A pass waits for the log, and looks at the cluster again after each wait. So there are two values: `Observation` is
replaced whenever the control loop looks at the cluster, also in the middle of a pass, and `PassResult` once, at the
end of each complete pass. Which trees wait for a long search is published apart, whenever it changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from extender.core.admit.readmission_backoff import WaitReason
from extender.core.log.reservation_state import Reservation
from extender.core.model.cluster_view import ClusterView, forest_after, forest_steps
from extender.core.model.ids import GangUid, PlanId, PodUid
from extender.core.model.pod_groups import Forest
from extender.ports.live_progress import LiveProgress
from extender.runtime.cooperative_yield import SlicePace


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as the control loop saw it last."""

    view: ClusterView = ClusterView()
    forest: Forest = Forest(trees={}, root_of={}, orphans={}, populated={})  # the trees of `view`
    compared: ClusterView = ClusterView()  # the view that was last compared with the log


class PassResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the last complete pass left behind."""

    number: int = 0  # complete passes of this process
    terms: int = 0  # `Leader.terms` when the pass began
    released: Mapping[PodUid, PlanId] = {}  # the plan of each member whose stage has come

    def reconciled(self, terms: int) -> bool:
        """Return whether a complete pass has run since the lease was acquired; `terms`: `Leader.terms` now."""
        return self.number > 0 and self.terms == terms

    def held_back(self, reservation: Reservation) -> bool:
        """Return whether the stage of a member has not come yet (`GateRemovalStages`)."""
        return self.released.get(reservation.uid) != reservation.plan


class PublishedPass(LiveProgress):
    """The published values. Only the control loop sets them, and calls the methods but `forest_of`; nothing in them is changed afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.observation = Observation()  # what the control loop saw last
        # a view and its trees: the published ones, or some on the way to the next
        self._base = (self.observation.view, self.observation.forest)
        self.result = PassResult()  # of the last complete pass
        self.failures = ""  # steps of the control loop that fail again and again

    @property
    def turns(self) -> Mapping[GangUid, WaitReason]:
        """Return why trees wait to be recorded, to be searched, or for the end of a back-off, by the UID of the root."""
        return {**self.searches, **self.limited, **self.paused}

    def observe(self, view: ClusterView) -> Observation:
        """Publish a view with its trees, of which only changed ones are built again, and return both."""
        before = self.observation
        if before.view is not view:
            forest = forest_after(*self._base, view)
            self._base = (view, forest)
            self.observation = msgspec.structs.replace(before, view=view, forest=forest)
        return self.observation

    def forest_of(self, view: ClusterView) -> Forest:
        """Return the trees of a view that the control loop may not have seen yet; nothing is published."""
        before = self.observation
        return before.forest if before.view is view else forest_after(*self._base, view)

    async def approach(self, view: ClusterView, pace: SlicePace) -> None:
        """Build the trees of a view with many more or fewer groups in slices, so that `observe` has little to do."""
        for base in forest_steps(*self._base, view):
            self._base = base
            await pace.yield_if_due()

    def mark_compared(self, view: ClusterView) -> None:
        """Publish that all differences between a view and the log are in the log."""
        self.observation = msgspec.structs.replace(self.observation, compared=view)

    def release(self, released: Mapping[PodUid, PlanId]) -> None:
        """Publish the plan of each member whose stage has come, where no complete pass was possible."""
        self.result = msgspec.structs.replace(self.result, released=released)

    def end_pass(self, terms: int, released: Mapping[PodUid, PlanId]) -> None:
        """Publish the result of a complete pass.

        Args:
            released: The plan of each member whose stage has come; not changed by the caller afterwards.
        """
        self.result = PassResult(number=self.result.number + 1, terms=terms, released=released)
