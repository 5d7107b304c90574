"""The context of a decision's events: who decided, why, from which input, and the id of the plan."""

from __future__ import annotations

from extender.core.admit.verdict_events import EventContext
from extender.core.model.ids import PlanId
from extender.ports.log_ports import Clock
from extender.settings import Settings


def new_event_context(clock: Clock, settings: Settings, digest: str, cause: str) -> EventContext:
    """Return the context of a new plan.

    Args:
        digest: Of the decision input; empty: the decision has none.
    """
    return EventContext(
        plan=PlanId(clock.new_id()),
        digest=digest,
        actor=settings.identity,
        cause=cause,
        topology_keys=settings.topology_keys,
    )
