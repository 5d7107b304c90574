"""The appends of one pass: they run while the next tree is planned, and are awaited together."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Sequence

from extender.control.log.leader import Leader
from extender.core.log.events import (
    CapacityHeld,
    GangAdmitted,
    GangExtended,
    GangUnschedulable,
    NewEvent,
    PreemptionPlanned,
    RecordedEvent,
)
from extender.core.log.reservation_state import ReservationState
from extender.ports.log_ports import Clock, DecisionInput, DecisionInputs

_HAS_INPUT = GangAdmitted | GangExtended | GangUnschedulable | PreemptionPlanned | CapacityHeld


class AppendBatch:
    """Starts appends at the leader, each after its decision input, and waits for all of them."""

    def __init__(self, leader: Leader, inputs: DecisionInputs, clock: Clock) -> None:
        self._leader = leader
        self._inputs = inputs
        self._clock = clock
        self._appends: list[Awaitable[tuple[RecordedEvent, ...]]] = []
        self.cpu_us_while_waiting = 0  # of other tasks, while this pass waited for the log
        self.committed = 0  # appends of this pass

    def begin(self) -> None:
        """Begin a pass."""
        self._appends, self.cpu_us_while_waiting, self.committed = [], 0, 0

    def append_nowait(
        self, drafts: Sequence[NewEvent], encoded: DecisionInput | None = None
    ) -> ReservationState:
        """Fold drafts into the pending state now, and start to append them after their decision input.

        Returns:
            The pending state after that.
        """
        if not drafts:
            return self._leader.pending_state
        has_input = encoded and any(isinstance(d.data, _HAS_INPUT) for d in drafts)
        save = functools.partial(self._inputs.save, encoded) if encoded and has_input else None
        self._appends.append(self._leader.append_nowait(drafts, save))
        return self._leader.pending_state

    async def flush(self) -> None:
        """Wait until all appends of this pass have ended, then raise the first failure."""
        appends, self._appends = self._appends, []
        begun_us = self._clock.thread_cpu_us()
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        self.cpu_us_while_waiting += self._clock.thread_cpu_us() - begun_us
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        self.committed += len(outcomes) - len(failures)
        if failures:
            raise failures[0]

    async def append(self, drafts: Sequence[NewEvent]) -> None:
        """Append drafts and wait until they are durable."""
        begun_us = self._clock.thread_cpu_us()
        self.committed += bool(await self._leader.append(drafts))
        self.cpu_us_while_waiting += self._clock.thread_cpu_us() - begun_us
