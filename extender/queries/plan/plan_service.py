"""`POST /v1/plan`: would it fit, on a cluster that the question describes or on ours as it is now.

Owns which of the two is asked, and what the process that plans is given. Nothing is decided here, and nothing of
it is decided in this process: a snapshot is written down in slices of the event loop, one question after the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from extender.core.model.cluster_view import ClusterView
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.ids import Position
from extender.ports.protocols import Clock, ReleasingGangs, StateSource
from extender.queries.log.event_dto import rfc3339
from extender.queries.plan.live_snapshot import LiveSnapshot, snapshot

NOW_BODY_MAX = 1 << 20  # bytes of a question about our cluster; it is looked at on the event loop


class ClusterSource(Protocol):
    """What is asked of a cluster."""

    def view(self) -> ClusterView:
        """Give the newest snapshot."""
        ...

    def doubt(self) -> str:
        """Say why `view` must not be decided from, or the empty string."""
        ...

    def priority_classes(self) -> tuple[bytes, ...]:
        """Give the PriorityClasses as JSON objects."""
        ...


class LiveInput(msgspec.Struct, frozen=True):
    """Our cluster as it is now."""

    snapshot: LiveSnapshot
    priority_classes: tuple[bytes, ...]
    as_of: str  # RFC 3339


class PlanResult(msgspec.Struct, frozen=True):
    """The answer: JSON of a `PlanReply`, and up to where the log was known if it is about our cluster."""

    body: bytes
    position: Position | None = None


class _About(msgspec.Struct):
    cluster: Raw | UnsetType = UNSET


class PlanService:
    """Asks the process that plans."""

    def __init__(
        self,
        cluster: ClusterSource,
        state: StateSource,
        releasing: ReleasingGangs,
        clock: Clock,
        run: Callable[[bytes, LiveInput | None], Awaitable[bytes]],
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._releasing = releasing
        self._clock = clock
        self._run = run

    async def plan(self, body: bytes) -> PlanResult:
        """Answer a question, the JSON of a `PlanQuestion`.

        Raises:
            BadInput: Names object, field and value.
            Busy: Too many wait already, or the question is too large.
            ClusterUnavailable: Our cluster is asked about, and it is not known how it is now.
        """
        if not _is_about_ours(body):
            return PlanResult(await self._run(body, None))
        if why := self._cluster.doubt():
            raise ClusterUnavailable(f"the cluster is not known as it is now: {why}")
        state, now_us = self._state.acknowledged, self._clock.now_us()
        saved = await snapshot(
            self._cluster.view(), state, releasing=self._releasing.started(), now_us=now_us
        )
        ours = LiveInput(saved, self._cluster.priority_classes(), rfc3339(now_us))
        return PlanResult(await self._run(body, ours), state.position)


def _is_about_ours(body: bytes) -> bool:
    """Say whether no cluster is described; what cannot be read is told by the process that plans."""
    if len(body) > NOW_BODY_MAX:
        return False
    try:
        return msgspec.json.decode(body, type=_About).cluster is UNSET
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
