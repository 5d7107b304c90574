"""Log lines are JSON, one per record; metrics count the answers of the planner."""

from __future__ import annotations

import io
import logging
from typing import get_args

import msgspec
import pytest

from extender.core.log.events import (
    GangAdmitted,
    GangRemoved,
    GangUnschedulable,
    MemberTerminated,
    MoveCompleted,
    MovesEnded,
    MovesEndReason,
    MovesPlanned,
    PodBound,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
)
from extender.core.model.ids import GangUid
from extender.core.planner.plan_types import Plan, Refusal, SearchEffort
from extender.telemetry import JsonLines, Metrics, TextLines, set_up_logging


def _record(**extra):
    made = logging.makeLogRecord(
        {"name": "x", "levelname": "INFO", "msg": "hello", "created": 0.5, "msecs": 500.0}
    )
    made.__dict__ |= extra
    return made


def test_a_record_is_one_json_object():
    """time, level, logger, message, then the extra fields; values without a JSON form become text."""
    line = JsonLines().format(_record(pod="a/b", odd=ValueError("boom"), many={1, 2}))
    assert "\n" not in line
    assert msgspec.json.decode(line) == {
        "time": "1970-01-01T00:00:00.500Z", "level": "INFO", "logger": "x", "message": "hello",
        "pod": "a/b", "odd": "boom", "many": [1, 2],
    }  # fmt: skip


def test_an_exception_stays_in_its_line():
    """A traceback is a field, not twenty lines."""
    try:
        raise ValueError("boom")
    except ValueError as error:
        line = JsonLines().format(_record(exc_info=(type(error), error, error.__traceback__)))
    assert "\n" not in line
    assert "ValueError: boom" in msgspec.json.decode(line)["exception"]


def test_a_record_is_one_line_of_text():
    """Time, level, message, fields; what has spaces or line breaks is quoted, so that a line stays one."""
    line = TextLines().format(_record(pod="a/b", reason="x y\n\x1b[2J", many=[1, 2], empty=""))
    assert (
        line
        == '00:00:00.500Z INFO    hello  pod=a/b  reason="x y\\n\\u001b[2J"  many=[1,2]  empty=""'
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "form", "text"),
    [(Terminal, "", True), (Terminal, "json", False), (io.StringIO, "", False), (io.StringIO, "text", True)],
)  # fmt: skip
def test_lines_are_text_on_a_terminal_and_json_elsewhere(root_logger, stream, form, text):
    written = stream()
    set_up_logging("info", written, form)
    logging.getLogger("t").info("hello")
    assert written.getvalue().endswith("Z INFO    hello\n") is text
    assert written.getvalue().startswith("{") is not text


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield root
    root.handlers[:], root.level = before


def test_logging_goes_to_one_stream_from_its_level_on(root_logger):
    """Below the level nothing is written; lower-case levels are understood."""
    stream = io.StringIO()
    set_up_logging("warning", stream)
    logging.getLogger("t").info("no")
    logging.getLogger("t").warning("yes", extra={"n": 1})
    lines = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    assert [(line["message"], line["n"]) for line in lines] == [("yes", 1)]


def test_plans_are_counted_by_result():
    """Scheduled or unschedulable, and how often the budget ended the search."""
    metrics = Metrics()
    metrics.planned(
        Plan(
            placements=(), assignments=(), unplaced=(), search=SearchEffort(nodes=3, exhausted=True)
        ),
        5,
    )
    refused = Refusal(
        outcome="unknown",
        status="Unschedulable",
        reasons=(),
        search=SearchEffort(nodes=7, exhausted=False),
    )
    metrics.planned(refused, 5)
    value = metrics.registry.get_sample_value
    name = "gang_extender_podgroup_schedule_attempts_total"
    assert value(name, {"result": "scheduled"}) == value(name, {"result": "unschedulable"}) == 1
    assert value("gang_extender_tree_search_budget_exhausted_total") == 1


def test_an_attribute_has_the_name_of_its_metric():
    """`METRICS.leader` is `gang_extender_leader`: one name to search for."""
    metrics = Metrics()
    names = {
        attribute: collector._name
        for attribute, collector in vars(metrics).items()
        if attribute != "registry" and not attribute.startswith("_")
    }
    assert names == {attribute: f"gang_extender_{attribute}" for attribute in names}
    assert set(names.values()) == {family.name for family in metrics.registry.collect()}


def an_event(data, at_s=0):
    return RecordedEvent(
        position=1, event_id="e", epoch=1, at_us=at_s * 1_000_000, gang="ns/hi", gang_uid="hi", stream_version=1,
        actor="me", cause="test", data=data,
    )  # fmt: skip


def in_vain(*events):
    """Count some events, given with their second; return how many preemptors never ran, and ran for less than a minute."""
    metrics = Metrics()
    for at_s, data in events:
        metrics.appended(an_event(data, at_s))
    counts = (
        metrics.registry.get_sample_value("gang_extender_preemptions_in_vain_total", {"ran": ran})
        for ran in ("never", "less-than-a-minute")
    )
    return tuple(counts)


ENDED = [MemberTerminated(pod=f"ns/hi-{i}", uid=f"hi-{i}", node="n", cause="ended") for i in range(2)]  # fmt: skip
PLANNED = PreemptionPlanned(
    preemption="p", kind="PodGroup", priority=9, victims=(), cost={}, alternatives=(), shapes=(), assignments=()
)  # fmt: skip


def bound(*seconds):
    """Return a plan, and the members that were bound for it at some seconds."""
    return (0, PLANNED), *(
        (at_s, PodBound(plan="p", pod=f"ns/hi-{i}", uid=f"hi-{i}", group="hi", node="n"))
        for i, at_s in enumerate(seconds)
    )


def completed(evicted=1, preemption="p"):
    return PreemptionCompleted(preemption=preemption, bound=2, evicted=evicted, duration_ms=1)


def cancelled(reason, evicted=1, preemption="p"):
    return PreemptionCancelled(preemption=preemption, reason=reason, units_spared=(), units_in_progress=(), evicted=evicted)  # fmt: skip


AGAIN = (5, msgspec.structs.replace(PLANNED, preemption="q"))  # the same gang preempts again
LATE = [
    PodBound(plan="q", pod="ns/hi-2", uid="hi-2", group="hi", node="n"),
    MemberTerminated(pod="ns/hi-2", uid="hi-2", node="n", cause="ended"),
]


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        ([(0, cancelled("capacity-lost"))], (1, 0)),
        ([(0, cancelled("capacity-lost", evicted=0))], (0, 0)),
        ([(0, cancelled("taken-over"))], (0, 0)),
        ([(0, cancelled("no-longer-needed"))], (0, 0)),
        ([*bound(0, 0), (0, completed()), (58, ENDED[0]), (59, ENDED[1])], (0, 1)),
        ([*bound(0, 0), (0, completed()), (58, ENDED[0]), (60, ENDED[1])], (0, 0)),
        ([*bound(0, 9), (9, completed()), (58, ENDED[0]), (68, ENDED[1])], (0, 1)),  # from the binding of each
        ([*bound(0, 9), (9, completed()), (60, ENDED[0]), (61, ENDED[1])], (0, 0)),
        ([*bound(0, 0), (0, completed()), (58, ENDED[0])], (0, 0)),
        ([*bound(0, 0), (1, ENDED[0]), (2, ENDED[1]), (3, completed())], (0, 1)),  # before it was recorded as complete
        ([*bound(0, 0), (0, completed()), (10, GangRemoved(reason="deleted")), (11, ENDED[0])], (0, 1)),
        ([*bound(0, 0), (0, completed(evicted=0)), (10, GangRemoved(reason="deleted"))], (0, 0)),
        ([*bound(0, 0), (0, completed()), *bound(9)[1:], (50, ENDED[0]), (55, ENDED[1])], (0, 1)),
        ([(0, completed()), (10, GangRemoved(reason="deleted"))], (0, 0)),  # planned under another leader
        ([*bound(0, 0), (0, completed()), AGAIN, (58, ENDED[0]), (59, ENDED[1])], (0, 1)),
        ([*bound(0, 0), (0, completed()), AGAIN, (6, LATE[0]), (7, completed(preemption="q")), (8, LATE[1]), (58, ENDED[0]), (59, ENDED[1])], (0, 2)),
        ([*bound(0, 0), (0, completed()), AGAIN, (6, cancelled("capacity-lost", preemption="q")), (58, ENDED[0]), (59, ENDED[1])], (1, 1)),
        ([*bound(0, 0), AGAIN, (6, LATE[0]), (7, completed(preemption="q")), (9, LATE[1]), (9, ENDED[0]), (10, ENDED[1])], (0, 1)),
        ([(0, PLANNED), (5, completed()), (9, ENDED[0]), (10, GangRemoved(reason="deleted"))], (0, 0)),  # it gave itself up
    ],
)  # fmt: skip
def test_evictions_in_vain_are_counted(events, counts):
    assert in_vain(*events) == counts


def test_the_end_of_moves_is_counted_by_its_reason():
    metrics = Metrics()
    ended = MovesEnded(plan="p", reason="refused", made=1, left=2, message="")
    metrics.appended(an_event(ended))
    name = "gang_extender_moves_ended_total"
    counts = {
        reason: metrics.registry.get_sample_value(name, {"reason": reason})
        for reason in get_args(MovesEndReason)
    }
    assert counts == dict.fromkeys(counts, 0) | {"refused": 1}


def moves_in_vain(*events):
    """Return how many plans were counted for each reason, of events at these seconds."""
    metrics = Metrics()
    for second, uid, data in events:
        event = msgspec.structs.replace(
            an_event(data), gang_uid=GangUid(uid), at_us=second * 1_000_000
        )
        metrics.appended(event)
    name = "gang_extender_moves_in_vain_total"
    return [
        metrics.registry.get_sample_value(name, {"reason": reason})
        for reason in ("not-bound", "moved-twice")
    ]


MOVES = MovesPlanned(plan="p", question="q", by="", moves=(), for_gang="ns/t", for_uid=GangUid("t"))
MADE = MovesEnded(plan="p", reason="completed", made=2, left=0)
REFUSED = GangUnschedulable(outcome="impossible", reasons=())
ADMITTED = GangAdmitted(plan="a", kind="PodGroup", priority=0, groups=(), shapes=(), assignments=())


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ([(0, "", MOVES), (9, "", MADE), (10, "t", ADMITTED)], 0),
        ([(0, "", MOVES), (5, "t", REFUSED), (9, "", MADE), (10, "t", ADMITTED)], 0),
        ([(0, "", MOVES), (9, "", MADE), (10, "t", REFUSED)], 1),
        ([(0, "", MOVES), (9, "", MADE), (10, "t", GangRemoved(reason="deleted"))], 1),
        ([(0, "", MOVES), (9, "", MADE), (10, "", MOVES)], 1),
        ([(0, "", MOVES), (9, "", msgspec.structs.replace(MADE, reason="refused", made=1))], 1),
        ([(0, "", MOVES), (9, "", msgspec.structs.replace(MADE, reason="refused", made=0)), (10, "t", REFUSED)], 0),
        ([(0, "", MOVES), (5, "t", ADMITTED), (9, "", msgspec.structs.replace(MADE, reason="no-longer-needed", made=1))], 0),
    ],
)  # fmt: skip
def test_moves_for_a_gang_that_gets_no_place_are_counted(events, count):
    assert moves_in_vain(*events) == [count, 0]


@pytest.mark.parametrize(("plan", "second", "count"), [("p", 60, 0), ("q", 60, 1), ("q", 3600, 0)])
def test_a_gang_that_is_moved_again_within_the_hour_is_counted_once_a_plan(plan, second, count):
    def made(plan):
        return MoveCompleted(
            plan=plan, number=1, pod="ns/a", uid="a", source="n", target="m", replacement="ns/b", replacement_uid="b", duration_ms=1
        )  # fmt: skip

    events = [(0, "g", made("p")), (second, "g", made(plan)), (second + 1, "g", made(plan))]
    assert moves_in_vain(*events) == [0, count]


@pytest.mark.parametrize(
    ("evicted", "in_progress", "result"),
    [(0, (), "cancelled"), (2, (), "cancelled-after-evictions"), (0, ("ns/a",), "cancelled-after-evictions")],
)  # fmt: skip
def test_cancelled_preemptions_are_counted_by_what_they_cost(evicted, in_progress, result):
    """One that evicted pods, or has begun to, lost work without a gain; rare events begin at zero."""
    metrics = Metrics()
    name = "gang_extender_preemptions_ended_total"
    assert metrics.registry.get_sample_value(name, {"result": result}) == 0
    metrics.appended(an_event(PreemptionCancelled(
        preemption="p", reason="capacity-lost", units_spared=(), units_in_progress=in_progress, evicted=evicted,
    )))  # fmt: skip
    assert metrics.registry.get_sample_value(name, {"result": result}) == 1
    events = "gang_extender_events_appended_total"
    assert metrics.registry.get_sample_value(events, {"type": "PreemptionCancelled"}) == 1
    assert metrics.registry.get_sample_value(events, {"type": "DriftDetected"}) == 0
