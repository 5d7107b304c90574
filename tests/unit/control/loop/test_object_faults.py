"""A defect that shows with one object: the work for the others goes on, and the object is tried again after a pause.

`GUARDS` has each actuator, reporter and controller; the watches are in tests/integration/cluster/test_informers.py, the log in
tests/unit/control/log/test_leader.py, loops and periodic tasks in tests/unit/runtime/test_periodic.py.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import pytest

from extender.control.actuators import evictor, finalizer_controller, nominator, status_reporter
from extender.control.actuators.evictor import Evictor
from extender.control.actuators.finalizer_controller import FinalizerController
from extender.control.actuators.status_reporter import StatusReporter
from extender.control.admission import tree_admission
from extender.control.admission.capacity_hold_search import CapacityHoldSearch
from extender.control.admission.cluster_observer import ClusterObserver
from extender.control.admission.pending_trees import IdlePassFilter
from extender.control.admission.preemption_policy import PreemptionPolicy
from extender.control.admission.request_builder import RequestBuilder
from extender.control.admission.tree_admission import TreeAdmission
from extender.control.binding import bind_barrier
from extender.control.loop import control_loop, reconciler
from extender.control.loop.control_loop import FAILURES_SHOWN
from extender.control.trees import group_controller, tree_controller, workload_notifier
from extender.core.admit.node_rejections import RejectionEvidence
from extender.core.admit.readmission_backoff import Readmissions
from extender.core.fairness.new_gang_limits import NewGangLimits
from extender.core.fairness.search_turns import SearchTurns
from extender.core.log.events import (
    DriftDetected,
    GangAdmitted,
    MemberTerminated,
    ReservationReleased,
    VictimGone,
)
from extender.core.model.cluster_view import Guard, with_guard
from extender.core.model.errors import ClusterUnavailable, CorruptLog
from extender.core.preempt import preemption_lifecycle
from extender.core.reconcile import cluster_reconciliation, drift, reconciliation
from extender.runtime import periodic
from extender.telemetry import METRICS
from tests.support.planning.preemption_builders import order
from tests.support.service.fake_workloads import FakeWorkloads
from tests.support.service.fakes import GATED, Stage
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually
from tests.unit.control.trees.test_tree_controller import a_jobset


def faults(part):
    return METRICS.object_faults.labels(part)._value.get()


class Defect:
    """A defect that shows with each object that has `bad` in its name, while `raises`."""

    def __init__(self, monkeypatch):
        self.raises = True
        self._monkeypatch = monkeypatch

    def with_name(self, name):
        """Return what is raised in the work for an object; None for others."""
        return (
            ZeroDivisionError(f"the test fails {name}") if self.raises and "bad" in name else None
        )

    def within(self, place, name, position):
        """Let a function show the defect; its argument at a position names the object."""
        inner = getattr(place, name)

        def outer(*arguments, **rest):
            if (error := self.with_name(repr(arguments[position]))) is not None:
                raise error
            return inner(*arguments, **rest)

        self._monkeypatch.setattr(place, name, outer)

    def of_requests(self, requested):
        """Return the fault of a cluster or of workloads, for one verb."""
        return lambda verb, name: self.with_name(name) if verb == requested else None


class Story(NamedTuple):
    """A service whose work for `bad` and `good` begins, and what is seen of it."""

    turn: object
    is_done: object  # whether the work for an object was done, by its name


@contextlib.asynccontextmanager
async def staged(*objects, runs=(), **settings):
    """Yield a stage that leads, with a turn: time goes on, and a pass is made."""
    async with Stage(a_node("n0", gpu=8), *objects, **settings) as stage:

        async def turn():
            stage.later(2)
            stage.conditions_due()
            await stage.one_pass()

        await stage.lead()
        for run in runs:
            stage.start(run(stage).run())
        yield stage, turn


def gangs(*, requests=1, pods=1, **spec):
    return [
        *a_gang("bad", pods=pods, requests={GPU: requests}, **spec),
        *a_gang("good", pods=pods, requests={GPU: requests}, **spec),
    ]


@contextlib.asynccontextmanager
async def gated(defect, verb=""):
    """Members lose their gate."""
    runs = (lambda stage: stage.parts.nominator,)
    async with staged(*gangs(schedulingGates=GATED), runs=runs) as (stage, turn):
        stage.cluster.fault = defect.of_requests(verb)
        yield Story(turn, lambda name: not stage.cluster.pod(f"{name}-0").gates)


@contextlib.asynccontextmanager
async def refused(defect, verb):
    """Members of trees that were refused lose their gate."""
    runs = (lambda stage: stage.parts.gate_remover,)
    objects = gangs(requests=9, schedulingGates=GATED)
    async with staged(*objects, runs=runs, unschedulable_gates="remove") as (stage, turn):
        stage.cluster.fault = defect.of_requests(verb)
        yield Story(turn, lambda name: not stage.cluster.pod(f"{name}-0").gates)


@contextlib.asynccontextmanager
async def two_preemptions(defect, verb=""):
    """Yield a stage and its turn: two gangs preempt; the victim of `bad` is `low-of-bad-0`."""
    lows = []
    for name in ("bad", "good"):
        low = f"low-of-{name}"
        lows += [a_group(low, gang=1, priority=0)]
        lows += [a_pod(f"{low}-0", low, node="n0", requests={GPU: 4}, priority=0)]
    objects = [*lows, *gangs(requests=4, priority=10)]
    for one in objects:
        if one["kind"] == "PodGroup" and not one["metadata"]["name"].startswith("low"):
            one["spec"]["priority"] = 10
    runs = (lambda stage: stage.parts.evictor,)
    async with staged(*objects, runs=runs, preemption=False) as (stage, turn):
        stage.cluster.fault = defect.of_requests(verb)
        await stage.one_pass()
        for name in ("bad", "good"):
            victims = {f"PodGroup/low-of-{name}": [f"low-of-{name}-0"]}
            await order(stage, name, {f"{name}-0": "n0"}, victims, preemption=f"of-{name}")
        yield stage, turn


@contextlib.asynccontextmanager
async def preempting(defect, verb=""):
    """Victims are evicted."""
    async with two_preemptions(defect, verb) as (stage, turn):
        yield Story(
            turn, lambda name: (f"default/low-of-{name}-0", "deleted") in stage.cluster.did("evict")
        )


@contextlib.asynccontextmanager
async def freed(defect):
    """The ends of victims are recorded."""
    async with two_preemptions(defect) as (stage, turn):
        for name in ("bad", "good"):
            stage.cluster.delete_pod(f"low-of-{name}-0")
        yield Story(
            turn,
            lambda name: (
                f"default/low-of-{name}-0" in {e.pod for e in stage.event_data(VictimGone)}
            ),
        )


@contextlib.asynccontextmanager
async def run_elsewhere(defect, *, is_admitted):
    """Members run: on their reserved nodes, or without an admission."""
    async with staged(*gangs(pods=2)) as (stage, turn):
        if is_admitted:
            await stage.one_pass()
        for name in ("bad", "good"):
            for number in range(2):
                stage.cluster.change_pod(f"{name}-{number}", node="n0", phase="Running")
        yield Story(turn, lambda name: stage.root(name) and len(stage.root(name).bound) == 2)


@contextlib.asynccontextmanager
async def renominated(defect):
    """Nominations that another client changed are recorded."""
    async with staged(a_node("n1"), *gangs()) as (stage, turn):
        await stage.one_pass()
        for node in ("n0", "n1"):
            for name in ("bad-0", "good-0"):
                stage.cluster.change_pod(name, nominated=node)
            if node == "n0":
                defect.raises = False
                await stage.one_pass()
                defect.raises = True

        def is_done(name):
            drift = {(e.kind, e.object) for e in stage.event_data(DriftDetected)}
            return ("nomination-altered", f"Pod/default/{name}-0") in drift

        yield Story(turn, is_done)


@contextlib.asynccontextmanager
async def unused(defect):
    """Reservations that are not used for their lifetime are released."""
    async with staged(*gangs(pods=2)) as (stage, turn):
        await stage.one_pass()
        stage.later(10_000)

        def is_done(name):
            released = stage.event_data(ReservationReleased)
            return any(pod.pod == f"default/{name}-0" for e in released for pod in e.pods)

        yield Story(turn, is_done)


@contextlib.asynccontextmanager
async def finalized(defect):
    """Groups get our finalizer."""
    async with staged(*gangs()) as (stage, _):
        stage.cluster.fault = defect.of_requests("set_finalizers")
        for key, group in list(stage.cluster.seen.groups.items()):
            stage.cluster.seen = with_guard(stage.cluster.seen, key, Guard(uid=group.uid))
        stage.start(FinalizerController(stage.cluster, stage.leader, stage.clock).run())

        async def change():
            stage.later(2)
            stage.cluster.change_node("n0", labels={"at": str(stage.clock.ms)})

        done = stage.cluster.did
        yield Story(
            change, lambda name: f"default/{name}" in {n for n, _ in done("set_finalizers")}
        )


@contextlib.asynccontextmanager
async def reported(defect, what):
    """Groups get conditions, and Events about warnings and members that wait."""
    del defect
    objects = [*a_gang("bad", pods=1, requests={GPU: 9}, topo="example.com/nowhere"),
               *a_gang("good", pods=1, requests={GPU: 9}, topo="example.com/nowhere")]  # fmt: skip
    async with staged(*objects, runs=(lambda stage: stage.reporter,)) as (stage, turn):

        def is_done(name):
            if what == "conditions":
                return f"default/{name}" in {n for n, _ in stage.cluster.did("set_conditions")}
            wanted = name if what == "warnings" else f"{name}-0"
            return wanted in {notice.name for notice in stage.cluster.notices}

        yield Story(turn, is_done)


@contextlib.asynccontextmanager
async def admitted(defect):
    """Gangs get reservations."""
    del defect
    async with staged(*gangs()) as (stage, turn):
        yield Story(turn, lambda name: stage.root(name) and stage.root(name).reservations)


@contextlib.asynccontextmanager
async def searched(defect, monkeypatch):
    """Each plan is searched in the planner process."""
    del defect
    async with staged(*gangs()) as (stage, turn):
        monkeypatch.setattr(stage.parts.planner, "at_once", lambda request: "search")
        yield Story(turn, lambda name: stage.root(name) and stage.root(name).reservations)


@contextlib.asynccontextmanager
async def bound(defect):
    """Members come to bind."""
    del defect
    async with staged(*gangs(pods=2)) as (stage, turn):
        await stage.one_pass()
        for name in ("bad", "good"):
            for number in range(2):
                stage.bind(f"{name}-{number}")
        yield Story(turn, lambda name: stage.cluster.pod(f"{name}-1").node)


@contextlib.asynccontextmanager
async def ended(defect):
    """A member of each gang is lost, then another one of `bad`."""
    async with staged(*gangs(pods=2)) as (stage, turn):
        await stage.settled()
        for name in ("bad", "good"):
            for number in range(2):
                stage.cluster.change_pod(f"{name}-{number}", node="n0", phase="Running")
        await stage.settled()
        stage.cluster.fault = defect.of_requests("ending")
        stage.cluster.delete_pod("bad-0")
        stage.cluster.delete_pod("good-0")

        async def lose():
            if not defect.raises and any(
                p.name == "bad-1" for p in stage.cluster.seen.pods.values()
            ):
                stage.cluster.delete_pod("bad-1")
            await turn()

        def is_done(name):
            losses = stage.event_data(MemberTerminated)
            return f"default/{name}-{0 if name == 'good' else 1}" in {
                e.pod for e in losses if e.cause == "deleted"
            }

        yield Story(lose, is_done)


@contextlib.asynccontextmanager
async def compiled(defect, verb=""):
    """JobSets get groups, and Events."""
    async with staged() as (stage, _):
        jobsets = [a_jobset(name, f"{name}-0123456789") for name in ("bad", "good")]
        workloads = FakeWorkloads(stage.cluster, *jobsets)
        workloads.fault = defect.of_requests(verb)
        stage.start(
            tree_controller.TreeController(
                stage.cluster, workloads, stage.leader, stage.inputs, stage.settings
            ).run()
        )
        if verb == "notice":
            stage.cluster.fault = defect.of_requests(verb)

        async def turn():
            pass

        def is_done(name):
            if verb in ("events", "notice"):
                return name in {notice.name for notice in stage.cluster.notices}
            return any(key.name.startswith(name) for key in stage.cluster.seen.groups)

        yield Story(turn, is_done)


# the story, the part of the metric, and the object in the log
GUARDS = {
    "nomination, its step": (
        lambda d, m: (d.within(nominator, "next_step", 0), gated(d))[1], "nominations", "default/bad-0",
    ),
    "nomination, its write": (lambda d, m: gated(d, "remove_gate"), "nominations", "bad-0"),
    "gate removal": (lambda d, m: refused(d, "remove_gate"), "gate removal", "bad-0"),
    "eviction, what is due": (
        lambda d, m: (d.within(evictor, "victims_to_evict", 1), preempting(d))[1], "evictions", "default/bad",
    ),
    "eviction, its write": (lambda d, m: preempting(d, "evict"), "evictions", "low-of-bad-0"),
    "finalizer": (lambda d, m: finalized(d), "finalizers", "PodGroup/default/bad"),
    "warnings": (
        lambda d, m: (d.within(status_reporter, "collect_warnings", 1), reported(d, "warnings"))[1],
        "status reports", "warnings of PodGroup/default/bad",
    ),
    "conditions": (
        lambda d, m: (d.within(status_reporter, "_condition_of", 0), reported(d, "conditions"))[1],
        "status reports", "conditions of PodGroup/default/bad",
    ),
    "reasons of pods": (
        lambda d, m: (d.within(status_reporter, "pending_reason", 3), reported(d, "pods"))[1],
        "status reports", "members of PodGroup/default/bad",
    ),
    "admission": (
        lambda d, m: (d.within(tree_admission, "bind_blockers", 0), admitted(d))[1], "admission", "default/bad",
    ),
    "search": (
        lambda d, m: (d.within(tree_admission.TreeAdmission, "perform", 1), searched(d, m))[1], "searches", "default/bad",
    ),
    "bind barrier": (lambda d, m: (d.within(bind_barrier, "missing", 0), bound(d))[1], "bind barriers", "bad"),
    "end of a member": (lambda d, m: ended(d), "ends of members", "default/bad-0"),
    "reconciliation of a gang": (
        lambda d, m: (d.within(cluster_reconciliation, "_settled", 1), run_elsewhere(d, is_admitted=True))[1],
        "reconciliation", "default/bad",
    ),
    "members without a reservation": (
        lambda d, m: (d.within(drift, "_outside_events", 1), run_elsewhere(d, is_admitted=False))[1],
        "reconciliation", "members of default/bad without a reservation",
    ),
    "ends of victims": (
        lambda d, m: (d.within(preemption_lifecycle, "_victim_gone", 1), freed(d))[1], "reconciliation", "preemption of default/bad",
    ),
    "nomination that was changed": (
        lambda d, m: (d.within(drift, "_drift", 1), renominated(d))[1], "reconciliation", "nomination of default/bad-0",
    ),
    "lifetime of reservations": (
        lambda d, m: (d.within(reconciler.Reconciler, "_last_plans", 1), unused(d))[1],
        "reconciliation", "lifetime of the reservations of default/bad",
    ),
    "tree": (lambda d, m: (d.within(tree_controller, "decide_tree", 0), compiled(d))[1], "trees", "JobSet/default/bad"),
    "group, its comparison": (
        lambda d, m: (d.within(group_controller, "group_write", 0), compiled(d))[1], "group writes", "PodGroup/default/bad-",
    ),
    "group, its write": (lambda d, m: compiled(d, verb="create"), "group writes", "PodGroup/default/bad-"),
    "workload, its Events": (
        lambda d, m: (d.within(workload_notifier, "_events", 0), compiled(d, verb="events"))[1],
        "workload events", "JobSet/default/bad",
    ),
    "workload, their write": (lambda d, m: compiled(d, verb="notice"), "workload events", "bad"),
}  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS)
async def test_a_defect_with_one_object_keeps_no_other(guard, monkeypatch, caplog):
    """The work for the other object is done meanwhile; the log line names the object, whose pause doubles; later it is done as usual."""
    monkeypatch.setattr(periodic, "FIRST_MS", 20)
    monkeypatch.setattr(finalizer_controller, "SETTLE_S", 0.001)
    monkeypatch.setattr(tree_controller, "TICK_S", 0.02)
    monkeypatch.setattr(tree_controller, "SETTLE_S", 0.001)
    story, part, named = GUARDS[guard]
    defect, before = Defect(monkeypatch), faults(part)
    async with story(defect, monkeypatch) as (turn, is_done):

        async def others_go_on():
            await turn()
            return is_done("good") and faults(part) >= before + 1

        async def recovers():
            await turn()
            return is_done("bad")

        await eventually(others_go_on, "the others go on")
        assert not is_done("bad")
        defect.raises = False
        await eventually(recovers, "it is done")
        count = faults(part)
        await turn()
        assert faults(part) == count
    records = [r for r in caplog.records if r.levelname == "ERROR"]
    assert {r.part for r in records} == {part}
    assert all(named in r.object for r in records)
    pauses: dict[str, list[int]] = {}
    for record in records:
        pauses.setdefault(record.object, []).append(record.pause_ms)
    for each in pauses.values():
        assert each == [20 * 2**n for n in range(len(each))]


async def test_a_pause_doubles_while_the_defect_stays(monkeypatch, caplog):
    """An object that always fails costs a look every minute, not one per pass."""
    Defect(monkeypatch).within(status_reporter, "collect_warnings", 1)
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


# what is computed for all gangs together: where it is, and the step that a defect in it ends
COMMON = {
    "trees": ("pass", ClusterObserver, "observe"),
    "context of reconciliation": ("pass", reconciler.Reconciler, "_context"),
    "ends of capacity holds": ("pass", reconciler, "decide_hold_ends"),
    "ends of evictions": ("pass", reconciler, "decide_evictions"),
    "differences": ("pass", reconciliation.Reconciliation, "decide"),
    "back-off after releases": ("pass", Readmissions, "released"),
    "evidence against nodes": ("rejected nodes", RejectionEvidence, "confirmed"),
    "queue": ("admission", RequestBuilder, "pending"),
    "what has changed": ("admission", IdlePassFilter, "begin_pass"),
    "limits of namespaces": ("admission", NewGangLimits, "begin"),
    "pauses of preemption": ("admission", PreemptionPolicy, "retain"),
    "turns of searches": ("searches", SearchTurns, "choose"),
    "turns of capacity holds": ("capacity holds", CapacityHoldSearch, "want"),
    "explanations": ("explanations", TreeAdmission, "record_explanations"),
    "changes that may wait": ("expected changes", control_loop, "are_expected"),
    "evictions": ("evictions", Evictor, "sync"),
    "status": ("status reports", StatusReporter, "sync"),
}


@pytest.mark.parametrize("place", COMMON)
async def test_a_defect_in_what_is_common_to_all_gangs_ends_no_loop(place, monkeypatch, caplog):
    """It is logged, counted and shown; what is committed is carried out meanwhile, and all goes on when it is gone."""
    monkeypatch.setattr(periodic, "FIRST_MS", 1)
    step, owner, name = COMMON[place]
    nodes = [a_node("n0", gpu=3), a_node("n1", gpu=4)]
    low = a_pod("low-0", "low", node="n1", requests={GPU: 4}, priority=0)
    high = a_pod("high-0", "high", requests={GPU: 4}, priority=10)
    groups = [a_group("low", gang=1, priority=0), a_group("high", gang=1, priority=10)]
    gangs = [*a_gang("old", pods=2), *groups, low, high]
    async with Stage(*nodes, *gangs, preemption=False) as stage:
        for work in (stage.parts.nominator, stage.parts.evictor):
            stage.start(work.run())
        await stage.lead()
        await stage.one_pass()
        inner, raises = getattr(owner, name), [True]

        def broken(*arguments, **rest):
            if raises[0]:
                raise ZeroDivisionError("the test fails it")
            return inner(*arguments, **rest)

        def shown():
            """Let time go on, with a change, and return the text of the readiness check."""
            stage.later(0.01)
            stage.cluster.change_node("n0", labels={"at": str(stage.clock.ms)})
            return stage.extender_service.checks()[-1].reason

        monkeypatch.setattr(owner, name, broken)
        before = faults("control loop")
        loop = stage.start(stage.control_loop.run())
        stage.cluster.add(*a_gang("new", pods=1))
        await eventually(lambda: f"{step} has failed" in shown(), "the readiness check names it")
        assert METRICS.control_loop_failures_in_a_row._value.get() >= FAILURES_SHOWN
        assert faults("control loop") >= before + FAILURES_SHOWN

        assert stage.extender_service.ready()
        decision = stage.extender_service.filter(stage.cluster.pod("old-0"), ["n0"])
        assert decision.outcome == "redeemed"
        for number in range(2):
            stage.bind(f"old-{number}")
        await eventually(lambda: shown() and stage.cluster.pod("old-1").node, "it is bound")
        await order(stage, "high", {"high-0": "n1"}, {"PodGroup/low": ["low-0"]})
        if step != "evictions":
            await eventually(lambda: shown() and stage.cluster.did("evict"), "the eviction")
        assert not loop.done()

        raises[0] = False
        await eventually(lambda: shown() == "", "nothing fails any more")
        await eventually(lambda: shown() or stage.where("new"), "the admission")
        assert stage.where("new") == {"new-0": "n0"}
        assert METRICS.control_loop_failures_in_a_row._value.get() == 0
    lines = [r for r in caplog.records if r.levelname == "ERROR"]
    assert {(r.part, r.object) for r in lines} == {("control loop", step)}
    assert all(r.exc_info for r in lines)


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


async def test_an_api_server_that_is_away_is_no_defect(caplog):
    """A leader whose view cannot catch up gives its passes up, and tries again without an alert."""
    async with Stage(a_node("n0", gpu=2), *a_gang("g", pods=2)) as stage:
        await stage.lead()
        before = faults("control loop")
        stage.cluster.fault = lambda verb, _: (
            ClusterUnavailable("503") if verb == "catch_up" else None
        )
        stage.start(stage.control_loop.run())
        await eventually(lambda: "pass given up" in caplog.text, "the first pass")
        stage.cluster.fault = lambda *_: None
        await eventually(lambda: stage.event_data(GangAdmitted), "the admission")
        assert faults("control loop") == before
        assert not [r for r in caplog.records if r.levelname == "ERROR"]
