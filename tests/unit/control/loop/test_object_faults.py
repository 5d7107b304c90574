"""A defect that shows with one object: the pass goes on for the others, and the object is tried again after a pause."""

from __future__ import annotations

import pytest

from extender.control.actuators import status_reporter
from extender.control.loop.admission import tree_admission
from extender.core.log.events import GangAdmitted
from extender.core.model.errors import CorruptLog
from extender.telemetry import METRICS
from tests.support.service.fakes import GATED, Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_node
from tests.support.waiting import eventually


def faults(part):
    return METRICS.object_faults.labels(part)._value.get()


def raising_for(inner, name, position):
    """Return a function that raises when its argument at a position names an object, while `raises`."""

    def outer(*arguments, **rest):
        if outer.raises and name in repr(arguments[position]):
            raise ZeroDivisionError(f"the test fails {name}")
        return inner(*arguments, **rest)

    outer.raises = True
    return outer


# the module and the name of what fails for one gang, which argument names it, the part that counts it, and the object of the log line
DEFECTS = {
    "warnings": (status_reporter, "collect_warnings", 1, "status reports", "warnings of PodGroup/default/bad"),
    "conditions": (status_reporter, "_condition_of", 0, "status reports", "conditions of PodGroup/default/bad"),
    "events": (status_reporter, "pending_reason", 3, "status reports", "members of PodGroup/default/bad"),
    "planning": (tree_admission, "bind_blockers", 0, "admission", "default/bad"),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
async def test_a_defect_with_one_gang_keeps_no_other(defect, monkeypatch, caplog):
    """The other gang is placed and bound meanwhile; the log line names the object; afterwards it is done as usual."""
    module, name, position, part, named = DEFECTS[defect]
    broken = raising_for(getattr(module, name), "bad", position)
    before = faults(part)
    gangs = [*a_gang("bad", pods=2, requests={GPU: 9}), *a_gang("good", pods=2, schedulingGates=GATED)]  # fmt: skip
    async with Stage(a_node("n0", gpu=2), *gangs) as stage:
        monkeypatch.setattr(module, name, broken)
        await stage.lead()
        stage.start(stage.parts.nominator.run())
        await stage.one_pass()
        stage.later(2)
        await stage.one_pass()
        for pod in ("good-0", "good-1"):
            await eventually(lambda pod=pod: not stage.cluster.pod(pod).gates, "its gate is gone")
            stage.bind(pod)
        await eventually(lambda: len(stage.cluster.bindings) == 2, "the other gang is bound")
        await stage.one_pass()
        assert stage.root("good").phase == "scheduled"
        assert faults(part) > before
        logged = {r.object for r in caplog.records if r.levelname == "ERROR"}
        assert logged == {named}
        broken.raises = False
        count = faults(part)
        stage.later(60)
        await stage.one_pass()
        stage.later(2)
        await stage.settled()
        assert faults(part) == count
        stage.start(stage.reporter.run())
        await eventually(lambda: stage.root("bad").last_decision, "it is planned")
        stage.conditions_due()
        await eventually(
            lambda: "bad" in {n for verb, n, _ in stage.cluster.calls if verb == "set_conditions" for n in [n.partition("/")[2]]},
            "its condition",
        )  # fmt: skip


async def test_a_pause_doubles_while_the_defect_stays(monkeypatch, caplog):
    """An object that always fails costs a look every minute, not one per pass."""
    broken = raising_for(status_reporter.collect_warnings, "bad", 1)
    monkeypatch.setattr(status_reporter, "collect_warnings", 1, broken)
    async with Stage(a_node("n0", gpu=2), *a_gang("bad", pods=2)) as stage:
        await stage.lead()
        for _ in range(40):
            await stage.one_pass()
            stage.later(1)
    assert [r.pause_ms for r in caplog.records if r.levelname == "ERROR"] == [
        1000, 2000, 4000, 8000, 16000, 32000,
    ]  # fmt: skip


async def test_a_whole_actuator_that_fails_does_not_keep_the_others(monkeypatch):
    """A defect outside of the work for one object, as in what is computed for all of them."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2, schedulingGates=GATED)) as stage:
        await stage.lead()
        stage.start(stage.parts.nominator.run())

        def broken(view, state):
            raise ZeroDivisionError("the test fails it")

        monkeypatch.setattr(stage.parts.evictor, "sync", broken)
        before = faults("control loop")
        await stage.settled()
        await eventually(lambda: not stage.cluster.pod("g-0").gates, "its gate is gone")
        assert faults("control loop") > before


async def test_a_pass_that_fails_is_tried_again_and_the_log_ends_the_loop(monkeypatch):
    """The loop outlives a defect in what is common to all objects; a damaged log it does not."""
    monkeypatch.setattr("extender.runtime.periodic.FIRST_MS", 1)
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        inner, errors = stage.parts.observer.observe, [ZeroDivisionError(), ZeroDivisionError()]

        def observe():
            if errors:
                raise errors.pop()
            return inner()

        monkeypatch.setattr(stage.parts.observer, "observe", observe)
        loop = stage.start(stage.control_loop.run())
        await eventually(lambda: stage.event_data(GangAdmitted), "the admission")
        assert not loop.done()
        errors.append(CorruptLog("the test damages it"))
        stage.cluster.change_node("n0", labels={"a": "b"})
        await eventually(loop.done, "the end of the loop")
        with pytest.raises(CorruptLog):
            loop.result()
