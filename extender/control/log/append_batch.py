"""What a pass has decided, on its way to the log: the next root is planned meanwhile."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Sequence

from extender.control.log.leader import Leader
from extender.core.log.events import (
    GangAdmitted,
    GangExtended,
    GangRefused,
    NewEvent,
    PreemptionPlanned,
    RecordedEvent,
)
from extender.ports.protocols import Clock, DecisionInput, DecisionInputs

_RESTS_ON_INPUT = GangAdmitted | GangExtended | GangRefused | PreemptionPlanned


class AppendBatch:
    """Hands drafts to the leader, their inputs first, and waits for them together."""

    def __init__(self, leader: Leader, inputs: DecisionInputs, clock: Clock) -> None:
        self._leader = leader
        self._inputs = inputs
        self._clock = clock
        self._waiting: list[Awaitable[tuple[RecordedEvent, ...]]] = []
        self.waited_ms = 0  # for the log, in this pass; nobody is held up meanwhile

    def begin(self) -> None:
        """Begin a pass."""
        self._waiting, self.waited_ms = [], 0

    def soon(self, drafts: Sequence[NewEvent], encoded: DecisionInput | None = None) -> None:
        """Fold drafts now, and write them, after the input that they rest on."""
        if not drafts:
            return
        rests = encoded and any(isinstance(d.fact, _RESTS_ON_INPUT) for d in drafts)
        save = functools.partial(self._inputs.save, encoded) if encoded and rests else None
        self._waiting.append(self._leader.record_soon(drafts, save))

    async def done(self) -> None:
        """Wait until all that was handed over is durable; the first failure is raised."""
        waiting, self._waiting = self._waiting, []
        begun_ms = self._clock.monotonic_ms()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        self.waited_ms += self._clock.monotonic_ms() - begun_ms
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def now(self, drafts: Sequence[NewEvent]) -> None:
        """Write drafts and wait for them."""
        begun_ms = self._clock.monotonic_ms()
        await self._leader.record(drafts)
        self.waited_ms += self._clock.monotonic_ms() - begun_ms
