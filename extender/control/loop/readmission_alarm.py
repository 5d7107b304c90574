"""Report trees that are released and admitted again without a change: a defect of this service."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from extender.control.actuators.status_reporter import StatusReporter
from extender.core.admit.readmission_backoff import ROUNDS_FREE, ReadmissionLoop
from extender.core.model.pod_groups import Forest
from extender.telemetry import METRICS

log = logging.getLogger(__name__)

REASON = "ReadmissionLoopBackOff"


def report_loops(
    loops: Iterable[ReadmissionLoop],
    forest: Forest,
    reporter: StatusReporter,
    *,
    show_names: bool,
) -> None:
    """Report loops: an ERROR log line and a Kubernetes Event on the root each time, and one count per loop.

    Args:
        loops: The loops.
        forest: Has the root groups.
        reporter: Writes the Events.
        show_names: Whether an Event may have names of other namespaces.
    """
    found = tuple(loops)
    roots = {tree.root.uid: tree.root for tree in forest.trees.values()} if found else {}
    for loop in found:
        if loop.rounds == ROUNDS_FREE + 1:
            METRICS.readmission_loops.inc()
        log.error(
            "a tree is released and admitted again although nothing changed",
            extra={
                "gang": loop.gang,
                "rounds": loop.rounds,
                "pause_ms": loop.pause_ms,
                "reason": loop.reason,
                "detail": loop.message,
                "advice": _advice(loop),
            },
        )
        if (root := roots.get(loop.gang_uid)) is not None:
            text = loop.message if show_names else loop.message_reduced or loop.message
            reporter.warn(root, REASON, _message(loop, text))


def _message(loop: ReadmissionLoop, release: str) -> str:
    """Return the text of the Kubernetes Event; the part that may be truncated is last."""
    return (
        f"Back-off {loop.pause_ms // 1000} s: reservations were released {loop.rounds} times in a row although "
        "neither the pods and groups nor their nodes had changed. This is a defect of gang-extender. A change of "
        f"the pods, the groups or a node ends the back-off. {_advice(loop)}. Last release ({loop.reason}): {release}"
    )


def _advice(loop: ReadmissionLoop) -> str:
    return f"Report the output of `gang-extender history {loop.gang} --decisions`"
