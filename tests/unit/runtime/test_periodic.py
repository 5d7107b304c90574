"""A periodic task goes on after errors that it expects, wakes at changes, and records its successes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from pathlib import Path

import pytest

import extender
from extender.core.model.errors import CorruptLog, StoreUnavailable
from extender.runtime import periodic
from extender.runtime.periodic import Changes, PeriodicTask, count_unhandled, kept_running
from extender.runtime.wakeup import Wakeup
from extender.telemetry import METRICS
from tests.support.waiting import eventually

NEVER_S = 3600
OFTEN_S = 0.001


def _last_success(task):
    """Return the metric of a task, None before its first success."""
    name = "gang_extender_periodic_task_last_success_timestamp_seconds"
    return METRICS.registry.get_sample_value(name, {"task": task})


@contextlib.asynccontextmanager
async def running(work, **more):
    task = asyncio.create_task(PeriodicTask(work=work, **more).run())
    yield task
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_expected_errors_are_logged_once_each_and_the_work_is_done_again(caplog):
    caplog.set_level(logging.WARNING)
    answers = [StoreUnavailable("down"), StoreUnavailable("down"), StoreUnavailable("full"), None, StoreUnavailable("down")]  # fmt: skip
    done = []

    async def work():
        done.append(_last_success("store"))
        if answers and (answer := answers.pop(0)) is not None:
            raise answer

    async with running(
        work, name="store", every_s=OFTEN_S, expected=(StoreUnavailable,), failure="not stored"
    ):
        await eventually(lambda: len(done) > 6, "runs after all failures")
    logged = [(r.message, r.task, r.error) for r in caplog.records]
    assert logged == [("not stored", "store", text) for text in ("down", "full", "down")]
    assert done[:4] == [None] * 4
    assert done[4] > 1_700_000_000  # seconds since 1970


async def test_an_error_of_the_log_ends_the_task():
    async def work():
        raise CorruptLog

    task = PeriodicTask(
        name="broken", work=work, every_s=OFTEN_S, expected=(StoreUnavailable,), failure="not done"
    )
    with pytest.raises(CorruptLog):
        await task.run()
    assert _last_success("broken") is None


async def test_a_defect_is_logged_and_counted_and_the_work_is_done_again(caplog, monkeypatch):
    """It does not end the task, and with it the process; a success ends the back-off."""
    monkeypatch.setattr("extender.runtime.periodic.FIRST_MS", 2)
    done = []

    async def work():
        done.append(_last_success("defective"))
        if len(done) < 3:
            raise ZeroDivisionError

    before = METRICS.object_faults.labels("periodic task")._value.get()
    async with running(work, name="defective", every_s=OFTEN_S):
        await eventually(lambda: len(done) > 3, "the work again")
    assert done[:3] == [None] * 3
    assert METRICS.object_faults.labels("periodic task")._value.get() == before + 2
    assert [(r.object, r.pause_ms) for r in caplog.records] == [("defective", 2), ("defective", 4)]


async def test_no_work_and_no_success_while_the_condition_is_false():
    asked, done = [], []

    def condition():
        asked.append(len(done))
        return len(asked) > 3

    async def work():
        done.append(_last_success("gated"))

    async with running(work, name="gated", every_s=OFTEN_S, condition=condition):
        await eventually(lambda: done, "the condition holds")
    assert asked[:4] == [0] * 4
    assert done[0] is None


async def test_a_change_ends_the_wait_even_if_it_comes_during_the_work():
    """The revision is read before the work, so the change is not lost."""
    wakeup, done = Wakeup(), []

    async def work():
        done.append(wakeup.revision)
        if len(done) == 1:
            wakeup.wake()

    changes = Changes(lambda: wakeup.revision, wakeup.wait)
    async with running(work, name="woken", every_s=NEVER_S, changes=changes):
        await eventually(lambda: done == [0, 1] and wakeup.waiting, "the second run")
        wakeup.wake()
        await eventually(lambda: done == [0, 1, 2], "the third run")


async def test_the_pause_depends_on_the_outcome():
    """`every_s` and `retry_s` may be functions; each is called once for a pause."""
    called, done = [], []

    def pause(kind):
        called.append(kind)
        return OFTEN_S

    async def work():
        done.append(None)
        if len(done) == 2:
            raise StoreUnavailable("down")

    async with running(
        work, name="pauses", every_s=lambda: pause("every"), retry_s=lambda: pause("retry"),
        expected=(StoreUnavailable,), failure="not done",
    ):  # fmt: skip
        await eventually(lambda: len(called) >= 3, "three pauses")
    assert called[:3] == ["every", "retry", "every"]


async def test_a_cancelled_task_cancels_its_work():
    started, ended = asyncio.Event(), []

    async def work():
        started.set()
        try:
            await asyncio.sleep(NEVER_S)
        finally:
            ended.append(True)

    async with running(work, name="cancelled", every_s=OFTEN_S):
        await started.wait()
    assert ended
    assert _last_success("cancelled") is None


async def test_a_loop_that_a_defect_has_ended_runs_again(monkeypatch, caplog):
    """Also one of several tasks; what it raised is logged and counted. An error of the log ends it, alone or in a group."""
    monkeypatch.setattr(periodic, "FIRST_MS", 1)
    before = METRICS.object_faults.labels("service")._value.get()
    errors = [ZeroDivisionError(), ExceptionGroup("tasks", [ZeroDivisionError()]), None]

    async def run():
        if (error := errors.pop(0)) is not None:
            raise error

    await kept_running("a loop", run)
    assert not errors
    assert METRICS.object_faults.labels("service")._value.get() == before + 2
    assert [r.object for r in caplog.records] == ["a loop"] * 2
    for error in (CorruptLog("gap"), ExceptionGroup("tasks", [ZeroDivisionError(), CorruptLog()])):
        errors.append(error)
        with pytest.raises(type(error)):
            await kept_running("a loop", run)


async def test_an_exception_of_a_task_that_is_not_awaited_is_counted():
    """A connection that breaks is no defect."""
    loop, value = asyncio.get_running_loop(), METRICS.object_faults.labels("service")._value
    before = value.get()
    loop.set_exception_handler(count_unhandled)
    for error in (ZeroDivisionError(), ConnectionResetError()):
        loop.call_exception_handler({"message": "a task", "exception": error})
    assert value.get() == before + 1


# Where tasks are started, and what becomes of an exception in one: a new place belongs here with its answer.
STARTED = {
    "cluster/api_server/informers.py": "kept_running, and the next discovery starts it again",
    "cluster/api_server/kubernetes_cluster.py": "kept_running; waits of catch_up, raised to its caller",
    "cluster/manifests/served/journal.py": "each caller gets it",
    "cluster/manifests/served/manifest_cluster.py": "_poll_alone",
    "composition.py": "kept_running; the leader ends the process",
    "control/actuators/nominator.py": "WorkQueue",
    "control/actuators/work_queue.py": "ObjectFaults for each key",
    "control/binding/bind_barrier.py": "ObjectFaults, and the calls are answered",
    "control/log/append_pipeline.py": "ObjectFaults, and the appends are settled or the lease is lost",
    "control/log/lease_loop.py": "raised by the loop of the leader; listeners by ObjectFaults",
    "control/log/leader.py": "ObjectFaults, and the lease is lost",
    "control/admission/refusal_explanations.py": "ObjectFaults for each tree",
    "control/admission/tree_searches.py": "ObjectFaults for each tree",
    "control/published/termination_reasons.py": "ObjectFaults for each member",
    "control/trees/tree_controller.py": "ObjectFaults and WorkQueue",
    "http/access/review_cache.py": "the callers get it",
    "http/scheduler/leader_proxy.py": "the caller gets it; the watch of closed connections starts again with the next call",
    "http/web/access_middleware.py": "the caller gets it",
    "http/web/listener_access.py": "answered as an internal error",
    "query_main.py": "PeriodicTask",
    "queries/log/event_stream.py": "the readers get it, and the next one starts it again",
    "runtime/wakeup.py": "waits, without work",
    "snapshots/state_loader.py": "awaited",
    "store/decision_inputs.py": "each caller gets it",
    "store/connections.py": "the connection is terminated in place of closed",
    "store/embedded/embedded_server.py": "logged, and tried again",
    "store/log/appender.py": "each caller gets it",
    "store/log/log_reader.py": "awaited",
    "store/projections.py": "awaited",
}
SERVICE = Path(extender.__file__).parent


def test_each_task_of_the_service_has_an_answer_to_exceptions():
    """A task whose exception is lost ends in silence, and its work is not done any more. A simulation is no service."""
    starts = re.compile(r"create_task\(|ensure_future\(")
    found = {
        str(path.relative_to(SERVICE))
        for path in SERVICE.rglob("*.py")
        if path.relative_to(SERVICE).parts[0] not in {"cli", "simulation"}
        and starts.search(path.read_text())
    }
    assert found == STARTED.keys()


def test_only_the_leader_runs_without_a_guard():
    """All other loops of the service run again after a defect."""
    started = re.findall(r"create_task\(\s*([\w.]+)", (SERVICE / "composition.py").read_text())
    assert sorted(started) == ["kept_running", "self.leader.run", "stopping.wait"]
