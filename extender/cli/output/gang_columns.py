"""The columns of gangs, in `gangs` and in `state`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from extender.cli.output.list_table import Column, age_column, number_column, time_column
from extender.core.model.message_formatting import spaced
from extender.queries.log.event_dto import parse_time
from extender.queries.state.state_dto import GangAt


def gang_columns(now_us: Callable[[], int]) -> Sequence[Column[GangAt]]:
    """Return the columns of gangs.

    Args:
        now_us: Returns the time up to which ages count, in microseconds since the epoch.
    """
    return (
        Column(title="gang", text=lambda line: line.gang),
        Column(title="kind", text=lambda line: line.kind, gives_way=5),
        number_column("priority", lambda line: line.priority, gives_way=2),
        Column(title="state", text=lambda line: line.state, colored=True),
        number_column("reserved", lambda line: line.reserved, gives_way=3),
        number_column("bound", lambda line: line.bound, gives_way=4),
        Column(title="minimum", text=minimum_text, key=_present),
        age_column("age", lambda line: micros_of(line.observed), now_us, gives_way=1),
        age_column("waits", lambda line: micros_of(line.waiting_since), now_us),
        Column(title="uid", text=lambda line: line.uid, wide=True),
        Column(title="outcome", text=lambda line: line.outcome, wide=True),
        time_column("observed", lambda line: line.observed, wide=True),
        time_column("admitted", lambda line: line.admitted, wide=True),
        time_column("decided", lambda line: line.last_decision_time, wide=True),
        Column(title="workload", text=lambda line: spaced(line.workload), gives_way=6),
        Column(title="reason", text=lambda line: line.reasons[0] if line.reasons else ""),
    )


def gang_name(line: GangAt) -> str:
    """Return Kind/namespace/name, which `explain` and `history` take."""
    return f"{line.kind}/{line.gang}"


def minimum_text(line: GangAt) -> str:
    """Return how many pods of the minimum of a gang are there, `3/8`; empty before its first admission."""
    return f"{line.minimum_present}/{line.minimum_needed}" if line.minimum_needed else ""


def _present(line: GangAt) -> float | None:
    return line.minimum_present / line.minimum_needed if line.minimum_needed else None


def micros_of(time: str) -> int | None:
    """Return a time of RFC 3339 as microseconds since the epoch; None: it is empty."""
    return parse_time(time, "time") if time else None
