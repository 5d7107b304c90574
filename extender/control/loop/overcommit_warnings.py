"""Warn the operator that other pods took reserved capacity: a log line with advice, and a counter."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from extender.core.log.events import CapacityUseReason, NewEvent, ReservationReleased
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

ADVICE: Final[dict[CapacityUseReason, str]] = {
    "unaware": "its scheduler does not see reservations: taint the nodes of gangs against it, or give it a "
    "scope in which this extender is called (deploy/README.md, Other schedulers)",
    "higher-priority": "as it may; give gangs a priority above it to keep it out",
    "pinned": "as DaemonSets may; leave capacity for them, or give gangs a higher priority",
}


def warn_overcommit(drafts: Iterable[NewEvent]) -> None:
    """Log and count each pod that took reserved capacity, by events that have been appended."""
    for draft in drafts:
        if not isinstance(draft.data, ReservationReleased):
            continue
        for taking_pod in draft.data.taken_by:
            METRICS.reserved_capacity_used_by_others.labels(taking_pod.via).inc()
            log.warning(
                "reserved capacity was used",
                extra={
                    "gang": draft.gang,
                    "node": taking_pod.node,
                    "pod": taking_pod.pod,
                    "scheduler": taking_pod.scheduler,
                    "priority": taking_pod.priority,
                    "via": taking_pod.via,
                    "advice": ADVICE[taking_pod.via],
                },
            )
