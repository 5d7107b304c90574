"""From when the work of a running pod counts, if it is evicted: its start, or its last checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec

from extender.core.model.pods import CHECKPOINT_ANNOTATION, FILLED_IN_US, Pod
from extender.core.planner.plan_types import MINUTE_US, work_min

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_Instant = Annotated[datetime, msgspec.Meta(tz=True)]
TEXT_MAX: Final = 60  # characters of a wrong value


def work_since_us(pod: Pod, now_us: int) -> int:
    """Return when the work began that an eviction of a pod loses, in microseconds since 1970.

    Args:
        now_us: 0: not known, and no checkpoint counts. It is returned for a pod of a file, whose start is not known.
    """
    begin_us = max(pod.assigned_us, pod.created_us)
    if begin_us in FILLED_IN_US:
        begin_us = 0
    if pod.checkpoint and now_us:
        written_us = _written_us(pod.checkpoint)
        if written_us is not None and written_us <= now_us:
            return max(begin_us, written_us)
    return begin_us or now_us


def lost_work_min(pod: Pod, now_us: int) -> int:
    """Return the GPU-minutes of work that an eviction of a pod loses; 0 where the time is not known."""
    return (
        work_min(pod.shape, work_since_us(pod, now_us), now_us // MINUTE_US)
        if now_us and pod.node is not None
        else 0
    )


def checkpoint_warnings(pods: Iterable[Pod], now_us: int) -> Iterator[str]:
    """Yield a text for each pod whose last checkpoint is no time, or in the future, and so is not used."""
    for pod in pods:
        if not pod.checkpoint:
            continue
        written_us = _written_us(pod.checkpoint)
        field = f'Pod/{pod.path}: metadata.annotations[{CHECKPOINT_ANNOTATION}] "{pod.checkpoint[:TEXT_MAX]}"'
        rest = "it is not used, and the work of the pod counts from its start"
        if written_us is None:
            yield f"{field} is not an RFC 3339 time, such as 2026-11-30T08:00:00Z: {rest}"
        elif written_us > now_us > 0:
            yield f"{field} is in the future: {rest}; write the time at which the checkpoint was complete"


def _written_us(text: str) -> int | None:
    """Return a time in RFC 3339 as microseconds since 1970; None: it is none."""
    try:
        written = msgspec.convert(text, _Instant)
    except msgspec.ValidationError:
        return None
    return (written - EPOCH) // timedelta(microseconds=1)
