"""The past of a log as jobs: what the log has comes back, what it does not have is drawn, and changes have their effect."""

from __future__ import annotations

import asyncio
import math
from functools import cache
from pathlib import Path

import msgspec
import pytest

from extender.cluster.manifests.manifest_entries import Role, read
from extender.core.log.events import (
    EventData,
    GangAdmitted,
    GangScheduled,
    GangUnschedulable,
    GroupRecord,
    MemberTerminated,
    PodBound,
    RecordedEvent,
)
from extender.core.model.errors import BadInput
from extender.core.model.ids import Epoch, GangUid, NodeName, PlanId, PodUid, Position
from extender.core.workloads.tree_policy import KindPolicy, TreeProfile
from extender.settings import Settings
from extender.simulation.job_files import Duration, jobs_of
from extender.simulation.memory_log import MemoryDatabase, MemoryDecisionInputs
from extender.simulation.past_jobs import Past, PastGang, read_past
from extender.simulation.simulation import BEGAN_US, Outcome, Scenario, simulate
from extender.simulation.simulation_report import compare
from tests.support.logs.fake_store import FakeEventQueries
from tests.unit.simulation.test_simulation import an_arrival, an_empty_fleet, run

UNTIL_S = 2_400.0
SECOND_US = 1_000_000
HOST = "kubernetes.io/hostname"


@cache
def recorded() -> Outcome:
    """Simulate jobs on 8 nodes, of which some wait, and some do not end in time."""
    jobs = [
        an_arrival("short", 0.0, 4, runs_for_s=200.0),
        an_arrival("two", 10.0, 2, 1, runs_for_s=500.0),
        an_arrival("whole", 100.0, 8, runs_for_s=900.0),
        an_arrival("late", 1_000.0, 3, runs_for_s=9_000.0, priority=10),
        an_arrival("never", 1_100.0, 9),
    ]
    return run(jobs, until_s=UNTIL_S, cluster=an_empty_fleet())


def the_past(since_s: float = 0.0) -> Past:
    return past_of(recorded().database, since_s)


def past_of(database: MemoryDatabase, since_s: float = 0.0, *profiles: TreeProfile) -> Past:
    return asyncio.run(
        read_past(
            FakeEventQueries(database),
            MemoryDecisionInputs(database),
            BEGAN_US + int(since_s * SECOND_US),
            BEGAN_US + int(UNTIL_S * SECOND_US),
            {profile.name: profile for profile in profiles},
        )
    )


def again(past: Past, seed: int = 1, **changes: tuple[str, ...]) -> Outcome:
    scenario = Scenario(
        cluster=past.cluster(**changes),
        jobs=past.jobs(seed),
        until_s=UNTIL_S,
        seed=seed,
        settings=Settings(),
    )
    return simulate(scenario)


def test_what_the_log_has_comes_back_and_the_rest_is_a_draw() -> None:
    past = the_past()
    assert len(past.nodes) == 8
    jobs = {job.name: job for job in past.jobs(1)}
    originals = {job.name: job for job in recorded().jobs}
    assert set(jobs) == set(originals)
    for name, job in jobs.items():
        assert job.at_s == pytest.approx(originals[name].at_s, abs=0.1)
        assert job.tree is not None
        assert len(job.tree.members) == len(originals[name].pods)
    assert [len(jobs[name].tree.groups) for name in ("short", "two")] == [1, 3]
    for name in ("short", "two"):
        assert jobs[name].runs_for_s == pytest.approx(originals[name].runs_for_s, abs=5.0)
    assert jobs["late"].runs_for_s == math.inf  # nothing in the log ran for as long as it did
    ended_s = {jobs[name].runs_for_s for name in ("short", "two")}
    assert {job.runs_for_s for seed in range(9) for job in past.jobs(seed) if job.name == "never"} == ended_s  # fmt: skip
    assert any("run times of 3 gangs of 5 are draws" in note for note in past.notes)


def test_what_ran_at_the_beginning_arrives_then_with_the_rest_of_its_run() -> None:
    past = the_past(since_s=100.0)
    jobs = {job.name: job for job in past.jobs(1)}
    short, two = jobs["short"], jobs["two"]
    assert (short.at_s, two.at_s) == (0.0, 0.0)
    assert short.runs_for_s == pytest.approx(105.0, abs=5.0)
    assert any("2 gangs from before the beginning" in note for note in past.notes)
    assert {job.name for job in the_past(since_s=900.0).jobs(1)} >= {"late", "never"}
    assert "short" not in {job.name for job in the_past(since_s=900.0).jobs(1)}


def test_unchanged_it_goes_as_it_went_and_more_nodes_shorten_waits() -> None:
    past = the_past()
    unchanged = again(past)
    (node, *_) = past.nodes
    differences = compare(
        [(unchanged, again(past, further=(f"8x{node.name}",))), (again(past, 2), again(past, 2))]
    )
    (wait,) = (each for each in differences if each.figure == "wait max, min")
    (original,) = (e for e in compare([(recorded(), unchanged)]) if e.figure == wait.figure)
    assert original.difference == pytest.approx(0.0, abs=1.0)
    assert wait.difference is not None
    assert wait.difference < -2.0
    assert wait.interval is not None
    assert wait.interval[0] < wait.difference < wait.interval[1]
    (admitted,) = (each for each in differences if each.figure == "admitted")
    assert admitted.difference == pytest.approx(
        0.5
    )  # "never" fits on 16 nodes, with one of two seeds


def test_nodes_that_are_not_there_are_refused() -> None:
    past = the_past()
    with pytest.raises(BadInput, match="the cluster has no node"):
        past.cluster(further=("2xnowhere",))
    with pytest.raises(BadInput, match="no node is left"):
        past.cluster(without=tuple(node.name for node in past.nodes))
    with pytest.raises(BadInput, match="--since: the log has no gang from this time on"):
        the_past(since_s=UNTIL_S + 1.0)


def test_a_podgroup_with_slices_comes_back_as_one_and_is_bound_again() -> None:
    cluster = read(["deploy/examples/cluster.yaml"], Role.CLUSTER)
    entries = read(["deploy/examples/slices.yaml"], Role.WANTED)
    context, jobs = jobs_of(entries, until_s=UNTIL_S, duration=Duration(600.0, 600.0), seed=1)
    database = simulate(
        Scenario(
            cluster=(*cluster, *context), jobs=jobs, until_s=UNTIL_S, settings=Settings()
        )
    ).database  # fmt: skip
    past = past_of(database)
    trees = {job.name.partition("-")[0]: job.tree for job in past.jobs(1)}
    two_levels, ranked = trees["evaluate"], trees["pipeline"]
    assert two_levels is not None
    assert ranked is not None
    for tree, pods in ((two_levels, 4), (ranked, 8)):
        (group,) = tree.groups
        assert (group.kind, group.minimum, len(tree.members)) == ("PodGroup", pods, pods)
        assert {leaf for leaf, _ in tree.members} == {group.name}
    assert [level.size for level in two_levels.groups[0].slices] == [4, 2]
    assert [level.size for level in ranked.groups[0].slices] == [4]
    assert all(job.ended_s is not None for job in again(past).jobs)


def test_a_workload_of_the_log_becomes_the_tree_of_another_profile(tmp_path: Path) -> None:
    cluster = read(["deploy/examples/cluster.yaml"], Role.CLUSTER)
    text = Path("deploy/examples/jobset.yaml").read_text()
    (tmp_path / "jobset.yaml").write_text(text.replace("gang-extender.dev/topology", "a/b"))
    entries = read([str(tmp_path)], Role.WANTED)
    context, jobs = jobs_of(entries, until_s=UNTIL_S, duration=Duration(600.0, 600.0), seed=1)
    scenario = Scenario(
        cluster=(*cluster, *context), jobs=jobs, until_s=UNTIL_S, settings=Settings()
    )
    database = simulate(scenario).database

    def with_policy(name: str, **fields: object) -> Past:
        kinds = {"JobSet": KindPolicy(**fields)}  # type: ignore[arg-type]
        return past_of(database, 0.0, TreeProfile(name=name, kinds=kinds))

    past = with_policy("default", root_topology=HOST)
    (job,), (changed,) = past.jobs(1), past.jobs(1, changed=True)
    assert job.tree is not None
    assert changed.tree is not None
    assert changed.tree.members == job.tree.members
    assert (job.tree.groups[0].topology, changed.tree.groups[0].topology) == ("", HOST)
    assert past.notes[0] == "1 gang of 1 made with --profile, 1 of them as another tree"
    before, after = (
        simulate(msgspec.structs.replace(scenario, cluster=past.cluster(), jobs=jobs))
        for jobs in (past.jobs(1), past.jobs(1, changed=True))
    )
    assert [outcome.jobs[0].bound_s is not None for outcome in (before, after)] == [True, False]

    (apart,) = with_policy("default", gang="per-job").jobs(1, changed=True)
    assert apart.tree is not None
    assert [group.basic for group in apart.tree.groups] == [True, True, True, False, False]
    with pytest.raises(BadInput, match="the TreeProfile racks; the log has workloads with default"):
        with_policy("racks")


def test_without_the_input_of_the_first_decision_the_nodes_are_those_of_a_later_one() -> None:
    database = recorded().database
    first = next(
        event.data.input_digest
        for event in recorded().events()
        if isinstance(event.data, GangAdmitted)
    )
    (pruned := MemoryDatabase()).restore(database.copy())
    del pruned.inputs[first]
    past = past_of(pruned)
    assert past.nodes == the_past().nodes
    assert {gang.name for gang in past.gangs} == {"two", "whole", "late", "never"}
    assert any("1 gang left out: no input" in note for note in past.notes)


def test_the_nodes_are_those_of_any_decision_that_has_its_input() -> None:
    """Also of a later refusal of a gang, which is not the decision that its jobs are made from."""
    (pruned := MemoryDatabase()).restore(recorded().database.copy())
    since_s = 1_020.0
    refusals = [
        event.data.input_digest
        for event in recorded().events()
        if isinstance(event.data, GangUnschedulable)
        and event.data.input_digest
        and event.at_us > BEGAN_US + int(since_s * SECOND_US)
    ]
    assert len(refusals) == 3
    for digest in (refusals[0], refusals[2]):
        del pruned.inputs[digest]
    past = past_of(pruned, since_s)
    assert past.nodes == the_past().nodes
    assert {gang.name for gang in past.gangs} == {"whole", "late"}


def test_a_gang_whose_admission_has_no_input_comes_back_from_an_earlier_refusal() -> None:
    (pruned := MemoryDatabase()).restore(recorded().database.copy())
    inputs = {
        kind: [
            event.data.input_digest
            for event in recorded().events()
            if isinstance(event.data, kind) and event.gang == "team-a/whole"
        ]
        for kind in (GangAdmitted, GangUnschedulable)
    }
    assert all(inputs.values())
    for digest in (*inputs[GangAdmitted], *inputs[GangUnschedulable][1:]):
        pruned.inputs.pop(digest, None)
    (whole,) = (gang for gang in past_of(pruned).gangs if gang.name == "whole")
    assert whole.tree == next(gang.tree for gang in the_past().gangs if gang.name == "whole")


@pytest.mark.parametrize(("lost", "began_us"), [("a", 13), ("ab", None)])
def test_a_gang_that_keeps_its_minimum_after_a_node_was_lost_has_not_lost_its_run(
    lost: str, began_us: int | None
) -> None:
    groups = (GroupRecord(kind="PodGroup", name="elastic", minimum=2),)
    bound = bindings("abc")
    admitted = GangAdmitted(
        plan=PlanId("p"), kind="PodGroup", priority=0, groups=groups, shapes=(), assignments=()
    )
    ends = [
        MemberTerminated(pod=e.pod, uid=e.uid, node=e.node, cause="node-lost")
        for e in bound[: len(lost)]
    ]
    gang, _ = gang_after(
        admitted, *bound[:2], GangScheduled(plan=PlanId("p"), bound=2), bound[2], *ends
    )
    assert gang.began_us == began_us


def test_a_gang_that_gets_smaller_has_not_ended() -> None:
    bound = bindings("ab")
    ends = [MemberTerminated(pod=e.pod, uid=e.uid, node=e.node, cause="deleted") for e in bound]
    gang, ended_us = gang_after(*bound, GangScheduled(plan=PlanId("p"), bound=2), *ends)
    assert (gang.began_us, ended_us) == (12, [None, None, None, None, 14])


def bindings(names: str) -> list[PodBound]:
    """Return the Bindings of pods with names of one letter."""
    return [
        PodBound(plan=PlanId("p"), pod=f"team-a/{name}", uid=PodUid(name), node=NodeName("n"))
        for name in names
    ]


def gang_after(*story: EventData) -> tuple[PastGang, list[int | None]]:
    """Return a gang with the events of a story, at 10, 11 ... us, and when it had ended after each of them."""
    gang = PastGang("team-a", "elastic", 0)
    ended_us = []
    for at_us, data in enumerate(story, 10):
        gang.take(
            RecordedEvent(
                position=Position(at_us), event_id="", epoch=Epoch(1), at_us=at_us, gang_uid=GangUid("u"),
                stream_version=at_us, gang="team-a/elastic", actor="", cause="", data=data,
            )
        )  # fmt: skip
        ended_us.append(gang.ended_us)
    return gang, ended_us
