"""A preemption in sentences that its victim can be sent: by whom, when, why this unit, what else was tried, how it ended."""

from __future__ import annotations

from collections.abc import Iterable

from extender.core.model.message_formatting import amounts_text, counted, spaced
from extender.core.model.visibility import is_hidden
from extender.queries.log.preemption_dto import PreemptionLine, UnitLine

OTHERS_MAX = 3  # alternatives, and other units, that are named


def preemption_paragraph(line: PreemptionLine, victim: str = "") -> str:
    """Return what happened, without internal weights, as one paragraph.

    Args:
        victim: namespace/name of a pod, a group or a unit whose owner asks; empty: all victims.
    """
    units = [unit for unit in line.victims if not victim or is_unit_of(unit, victim)]
    sentences = [_who(line, unit) for unit in units]
    if not units:
        sentences = [_released(line, victim)]
    sentences.append(_needed(line))
    if units:
        sentences += _why(line, units)
        sentences.append(_others(line, units))
        sentences += _alternatives(line)
    sentences.append(_end(line))
    return " ".join(text for text in sentences if text)


def is_unit_of(unit: UnitLine, victim: str) -> bool:
    """Return whether a unit is, or contains, what `victim` names: a pod, a leaf, or the group of the unit."""
    return unit.unit.partition("/")[2] == victim or any(
        victim in (pod.pod, f"{pod.pod.partition('/')[0]}/{pod.group}") for pod in unit.pods
    )


def _who(line: PreemptionLine, unit: UnitLine) -> str:
    name = _at_begin(_with_priority(unit.unit, unit.priority))
    preemptor = _with_priority(line.preemptor, line.priority)
    if unit.spared:
        return (
            f"{name} was chosen for eviction on {_time(line.planned)} for {preemptor}"
            ", and was spared: the preemption ended before its eviction began."
        )
    pods = ""
    if not (_is_pod(unit) or is_hidden(unit.unit)):
        pods = f", with {counted(len(unit.pods), 'pod')},"
    return f"{name}{pods} was evicted on {_time(line.planned)} for {preemptor}."


def _is_pod(unit: UnitLine) -> bool:
    return unit.unit.startswith(("Pod/", "a Pod "))


def _with_priority(name: str, priority: int) -> str:
    """Return a name with its priority; what stands for a hidden name has it already."""
    return name if is_hidden(name) else f"{spaced(name)} (priority {priority})"


def _at_begin(text: str) -> str:
    """Return a text as the begin of a sentence."""
    return text[:1].upper() + text[1:]


def _released(line: PreemptionLine, victim: str) -> str:
    name = victim or ", ".join(line.superseded)
    return (
        f"No pod of {name} was evicted: reservations for pods that did not run yet were released on "
        f"{_time(line.planned)} for {_with_priority(line.preemptor, line.priority)}."
        if name
        else f"On {_time(line.planned)} {_with_priority(line.preemptor, line.priority)} was planned without evictions."
    )


def _needed(line: PreemptionLine) -> str:
    if not line.placed:
        return ""
    amounts = amounts_text(line.needed)
    requests = f" with {amounts} in all" if amounts else ""
    pods = counted(line.placed, "pod")
    name = _at_begin(spaced(line.preemptor))
    return f"{name} needed a place for {pods}{requests}, and found none without evictions."


def _why(line: PreemptionLine, units: list[UnitLine]) -> Iterable[str]:
    if all(unit.priority < line.priority for unit in units):
        yield f"Its priority is higher: {line.priority} instead of {max(u.priority for u in units)}."
    for unit in units:
        if not _is_pod(unit):
            yield f"{_at_begin(spaced(unit.unit))} has the disruption mode *all*, so it is evicted as a whole or not at all."
        elif any(pod.group for pod in unit.pods):
            group = next(pod.group for pod in unit.pods if pod.group)
            yield f"The pod is a member of PodGroup {group}, whose disruption mode *single* lets one pod be evicted."
    if line.proved:
        yield "No set of victims with a lower cost exists: the search was complete."
    else:
        yield "No set of victims with a lower cost was found before the search budget was used up."


def _others(line: PreemptionLine, units: list[UnitLine]) -> str:
    others = [spaced(unit.unit) for unit in line.victims if unit not in units]
    if not others:
        return ""
    return f"{_at_begin(_first(others))} {'was' if len(others) == 1 else 'were'} chosen too."


def _alternatives(line: PreemptionLine) -> Iterable[str]:
    if not line.alternatives:
        return
    texts = [
        f"{_first([spaced(unit) for unit in other.units])} ({other.reason})"
        for other in line.alternatives[:OTHERS_MAX]
    ]
    more = len(line.alternatives) - OTHERS_MAX
    rest = f"; and {more} more" if more > 0 else ""
    yield f"Examined and not taken: {'; '.join(texts)}{rest}."


def _end(line: PreemptionLine) -> str:
    name = spaced(line.preemptor)
    if line.outcome == "completed":
        return (
            f"The preemption was completed after {line.duration_ms / 1000:.1f} s: "
            f"{counted(line.bound, 'pod')} of {name} {'is' if line.bound == 1 else 'are'} bound."
        )
    if line.outcome == "cancelled":
        detail = f": {line.message}" if line.message else ""
        taken = f" by {spaced(line.taken_over_by)}" if line.taken_over_by else ""
        return (
            f"The preemption was cancelled on {_time(line.ended)} ({line.reason}{taken}){detail}."
        )
    return "The preemption has not ended yet."


def _first(names: list[str]) -> str:
    more = len(names) - OTHERS_MAX
    return ", ".join(names[:OTHERS_MAX]) + (f" and {more} more" if more > 0 else "")


def _time(text: str) -> str:
    """Return an RFC 3339 time in UTC as text.

    >>> _time("2026-11-24T03:12:05.123456Z")
    '2026-11-24 at 03:12:05 UTC'
    """
    return f"{text[:10]} at {text[11:19]} UTC"
