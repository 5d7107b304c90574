"""Verify the whole log again and again while this process leads, a slice at a time in another process.

A pass reads the log from its first event, so its length depends on that of the log. What it finds is recorded once as
`DriftDetected`, with the kind of tampering as its kind, and is in metrics until a pass does not find it any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures.process import BrokenProcessPool

from extender.control.log.leader import Leader
from extender.core.log.anchors import Anchor
from extender.core.log.events import DriftDetected
from extender.core.log.tampering import ADVICE, LogFinding
from extender.core.model.errors import ClusterUnavailable, CorruptLog, NotLeading, StoreUnavailable
from extender.ports.log_ports import Clock, PublishedAnchors
from extender.ports.verification_ports import SliceResult, VerifiedLog
from extender.runtime.periodic import PeriodicTask
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

SLICE_EVENTS = 2_000
# Pause after a slice, as a multiple of its duration: a pass takes a tenth of a processor, or up to a quarter where the last
# pass took so long that the next one would not end within a minute otherwise. A million events cost about 30 s of CPU time,
# each stored input of 1,200 nodes 0.24 ms.
REST_MAX, REST_MIN = 9.0, 3.0
PASS_WITHIN_S = 40.0
PASS_EVERY_S = 20.0  # pause after a pass; a short log is verified three times a minute
PAUSE_MIN_S = 0.05
FIRST_AFTER_S = 10.0  # a service that starts has other work

Slice = Callable[[Sequence[Anchor] | None, int], Awaitable[SliceResult]]


class LogVerifier:
    """Runs passes, and records what they find."""

    def __init__(
        self, leader: Leader, anchor: PublishedAnchors, verify_slice: Slice, clock: Clock
    ) -> None:
        """Prepare.

        Args:
            verify_slice: Begins a pass with anchors, or goes on with None, for a number of events.
        """
        self._leader = leader
        self._anchor = anchor
        self._slice = verify_slice
        self._clock = clock
        self.last: VerifiedLog | None = None  # the last pass that ended
        self._compared = 0  # anchors, in this pass
        self._under_way = False
        self._terms = 0  # of the leader, in which the pass began
        self._rest = REST_MAX
        self._took_s = 0.0  # by the slices of this pass
        self._pause_s = PAUSE_MIN_S
        self._recorded: set[tuple[str, str]] = set()
        self._of_anchors: list[LogFinding] = []
        self._compares_definitions = True
        self._privileged: frozenset[str] = frozenset()  # roles that were logged

    async def run(self) -> None:
        """Verify until cancelled; a pass that failed begins again."""
        await asyncio.sleep(FIRST_AFTER_S)
        await PeriodicTask(
            name="log_verifier",
            work=self.look,
            every_s=lambda: self._pause_s,
            condition=self._leader.may_record,
            expected=(
                NotLeading,
                StoreUnavailable,
                ClusterUnavailable,
                CorruptLog,
                BrokenProcessPool,
            ),
            failure="the log is not verified",
            retry_s=PASS_EVERY_S,
        ).run()

    async def look(self) -> bool:
        """Verify the next slice; return whether the pass goes on, or begins again as the lease was acquired anew.

        Raises:
            BrokenProcessPool: The worker process died; the next call begins a new pass.
            CorruptLog: An event cannot be read by this version.
        """
        begun_ms, terms = self._clock.monotonic_ms(), self._leader.terms
        under_way = self._under_way and terms == self._terms
        self._under_way, self._terms = False, terms
        anchors = None if under_way else await self._anchors()
        if anchors is not None:
            self._compared = len(anchors)
        result = await self._slice(anchors, SLICE_EVENTS)
        if self._leader.terms != terms:
            # A loss of history may lie between: the log is not compared with the anchors of before.
            self._pause_s = PAUSE_MIN_S
            return True
        METRICS.log_verified_position.set(result.position)
        took_s = (self._clock.monotonic_ms() - begun_ms) / 1000
        self._took_s = took_s if anchors is not None else self._took_s + took_s
        if result.more:
            self._under_way = True
            self._pause_s = max(PAUSE_MIN_S, self._rest * took_s)
            return True
        self._pause_s = PASS_EVERY_S
        rest = PASS_WITHIN_S / self._took_s - 1 if self._took_s else REST_MAX
        self._rest = min(REST_MAX, max(REST_MIN, rest))
        METRICS.log_verification_last_success_timestamp_seconds.set_to_current_time()
        if self._compares_definitions and not result.definitions:
            log.warning(
                "the schema of the database is of a version that this one does not know: its views, functions, triggers and "
                "rights are not compared; see gang-extender verify"
            )
        self._compares_definitions = bool(result.definitions)
        self._log_privileged(frozenset(result.privileged_roles))
        findings = (*self._of_anchors, *result.findings)
        self.last = VerifiedLog(
            result=result, findings=findings, anchors=self._compared, at_us=self._clock.now_us()
        )
        await self._conclude(findings)
        return False

    def _log_privileged(self, roles: frozenset[str]) -> None:
        """Log the login roles that can change the log, when there are others than in the last pass."""
        new = sorted(roles - self._privileged)
        if new:
            level = logging.WARNING if self._privileged else logging.INFO
            log.log(level, "login roles can change the log and what proves it", extra={"may": new})
        self._privileged = roles

    async def _anchors(self) -> Sequence[Anchor]:
        """Return the anchors to compare with: those of this process; compare them with what is published now."""
        self._of_anchors = []
        history = self._leader.history
        mine = history.anchors
        published = await self._anchor.published()
        if mine and mine == history.anchors and published != mine:
            text = "what is published is not what this process published; it was published again"
            position = mine[-1].position
            self._of_anchors.append(
                LogFinding(kind="forged-anchor", position=position, message=text)
            )
            await self._anchor.publish(mine)
        return (*history.forged, *mine)

    async def _conclude(self, findings: Sequence[LogFinding]) -> None:
        """Record findings that are new, and show all in the metrics."""
        for kind in ADVICE:
            METRICS.log_findings.labels(kind).set(sum(f.kind == kind for f in findings))
        new = [f for f in findings if (f.kind, f.place) not in self._recorded]
        drifts = (
            DriftDetected(kind=f.kind, object=f.place, message=f"{f.full_message}; {f.advice}")
            for f in new
        )
        await self._leader.append_own(*drifts)
        self._recorded.update((finding.kind, finding.place) for finding in new)
