"""Print the history of a gang: one line per event, and the details of decisions."""

from __future__ import annotations

from collections.abc import Iterator

from extender.cli.output.table_rows import visible
from extender.core.admit.wish_sentences import shown_texts
from extender.core.model.message_formatting import counted
from extender.queries.log.decision_details import Decision
from extender.queries.log.gang_history import HistoryLine, ServedEvent

NAMED_MAX = 3  # alternatives and members named; JSON has all


def print_line(line: HistoryLine | ServedEvent, gang: str) -> None:
    """Print time, type, reason and actor of an event, and the details of a decision if the line has them."""
    when = line.time[:19].replace("T", " ")
    gang_part = f" ({line.gang})" if line.gang and line.gang != gang else ""
    reason = f"; reason: {line.reason}" if line.reason else ""
    led = f", position {line.cause_position}" if line.cause_position else ""
    text = f"{line.position}  {when}  {line.type}{gang_part}: {line.summary}{reason}{led}; by {line.caused_by}"
    print(visible(text))
    if isinstance(line.decision, Decision):
        for text in _decided(line.decision):
            print(visible(f"      {text}"))


def _decided(decision: Decision) -> Iterator[str]:
    planned = decision.input
    if planned.stored:
        units = f", {counted(planned.evictable, 'unit')} ({counted(planned.evictable_pods, 'pod')}) that could be evicted"
        yield (
            f"input {planned.digest[:12]}: {planned.waiting} waiting and {planned.bound} bound members of "
            f"{counted(planned.groups, 'group')}, {counted(planned.nodes, 'node')}, "
            f"{counted(planned.rejected_nodes, 'node rejection')}, {counted(planned.rules, 'rule')} "
            f"between pods{units if planned.evictable else ''}"
        )
    else:
        yield f"input {planned.digest[:12]}: not stored any more (pruned)"
    proof = "proved" if decision.exhausted else "not proved"
    yield f"planner {decision.planner}: {counted(decision.search_nodes, 'search node')}, {proof}"
    if decision.unplaced:
        names = ", ".join(decision.unplaced[:NAMED_MAX])
        more = " and more" if len(decision.unplaced) > NAMED_MAX else ""
        yield f"without a node: {names}{more}"
    yield from shown_texts(decision.wishes)
    yield from (f"reason: {reason}" for reason in decision.reasons)
    yield from (f"would help: {text}" for text in decision.help)
    for conflict in decision.conflict:
        yield f"cannot hold together: {conflict.object}: {conflict.message}"
    yield from (f"preemption: {text}" for text in decision.preemption_notes)
    for other in decision.alternatives[:NAMED_MAX]:
        yield f"not {', '.join(other.units)}: {other.reason}"
