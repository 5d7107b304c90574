"""Faults by seed: a few seeds hold, each seed is the same in any process, and a defect is found and printed as a short story."""

from __future__ import annotations

import contextlib
import math

import msgspec
import pytest

from extender.cluster.connection.api_client import Request
from extender.cluster.manifests.manifest_entries import Role, entries_in, with_metadata
from extender.cluster.manifests.yaml_reader import Document
from extender.core.model.errors import ClusterUnavailable
from extender.ports.cluster_ports import PodRef
from tests.support.faults.cases import Case, Fault, case_of
from tests.support.faults.planted_defects import DEFECTS, planted
from tests.support.faults.processes import Process, ProcessLoop
from tests.support.faults.run import REST_S, Result, Run, run_case
from tests.support.faults.servers import RemoteLog, ServedCluster
from tests.support.faults.shrink import LINES, shrunk, story
from tests.support.service.hash_seeds import outputs
from tests.support.service.manifest_builders import a_pod

DIGEST = """
from tests.support.faults.cases import case_of
from tests.support.faults.run import run_case
print(run_case(case_of(2)).digest)
"""


def holds(seed: int, until_s: float = math.inf) -> int:
    """Run a seed, to a time of its case, in which nothing may be violated; return how many events its log has."""
    case = case_of(seed)
    result = run_case(msgspec.structs.replace(case, until_s=min(case.until_s, until_s)))
    assert (seed, result.violated, result.detail) == (seed, "", "")
    return result.events


# 141: in the instant in which a refusal is recorded pods end, which its leader reads 10 ms later
@pytest.mark.parametrize("seed", [3, 14, 83, 106, 141])
def test_what_must_hold_holds_with_the_faults_of_a_seed(seed):
    assert holds(seed) > 5


@pytest.mark.parametrize(
    ("seed", "until_s"),
    [
        pytest.param(108, 30.0, id="extended anew while a Binding is tried again"),
        pytest.param(197, 262.0, id="extended anew, in the second burst"),
        pytest.param(155, 30.0, id="a started gang is a victim with its reservations"),
        pytest.param(254, 60.0, id="a leader whose lease an older copy of the database lacks"),
        pytest.param(321, 80.0, id="the same, in the middle of a preemption"),
        pytest.param(3002, 61.0, id="a nominated member terminates for 40 s"),
        pytest.param(2033, 110.0, id="a child group that lost half of its reservations"),
        pytest.param(3050, 150.0, id="a pod that was refused for a replacement hold"),
        pytest.param(3272, 35.0, id="a node is back beside a tree that was placed meanwhile"),
        pytest.param(1910, 150.0, id="a pod that filter refuses before its leader has read of it"),
    ],
)
def test_a_seed_that_failed_once_holds(seed, until_s):
    assert holds(seed, until_s) > 5


@pytest.mark.full
@pytest.mark.parametrize("first", [0, 10, 20])
def test_what_must_hold_holds_with_the_faults_of_ten_seeds(first):
    assert sum(holds(seed) for seed in range(first, first + 10)) > 100


def test_a_failure_after_a_quiet_that_was_cut_short_is_shrunk_too():
    """Faults and the end of a case are in its own time, which is ahead of that of the loop then."""
    whole = case_of(83)
    cause = msgspec.structs.replace(whole.faults[-1], at_s=250.0)
    whole = msgspec.structs.replace(whole, faults=(*whole.faults, cause), until_s=400.0)

    def run(case):
        is_found = cause in case.faults and case.until_s >= 300.0
        return Result(violated="a defect" if is_found else "", at_s=120.0, case_s=300.0)

    case, smaller = shrunk(whole, run(whole), run)
    assert smaller.violated == "a defect"
    assert (case.faults, case.arrivals, case.until_s) == ((cause,), (), 301.0)


def test_each_planted_defect_is_still_in_the_code():
    for name in DEFECTS:
        with planted(name):
            pass


@pytest.mark.full
def test_the_same_seed_is_the_same_story_in_processes_with_different_hash_seeds():
    assert len(outputs(DIGEST, ["1", "77"])) == 1


def test_a_failure_in_a_later_burst_is_shrunk_with_what_it_needs():
    """Quiet ends early, so the clock of a run is behind the times of its case."""
    whole = case_of(197)
    needed = [fault for fault in whole.faults if fault.at_s > whole.bursts[1][0]][-1]
    ends_s = needed.at_s + 5.0

    def run(case: Case) -> Result:
        fails = needed in case.faults and case.until_s >= ends_s
        return Result(violated="it" if fails else "", at_s=99.0, case_s=ends_s)

    case, result = shrunk(whole, run(whole), run)
    assert (case.faults, case.arrivals, result.violated) == ((needed,), (), "it")
    assert case.until_s == ends_s + 1.0
    assert run(case).violated == "it"


def test_the_quiet_that_is_left_out_counts_in_the_time_of_the_case():
    empty = msgspec.structs.replace(case_of(197), arrivals=(), faults=(), until_s=262.0)
    result = run_case(empty)
    assert result.case_s == pytest.approx(262.0, abs=0.01)
    assert result.at_s < 150.0


def test_a_process_that_is_killed_twice_is_replaced_once():
    """Two replicas of one name would take the lease from each other for ever."""
    deaths = [Fault(at_s=5.0, kind="process_dies", target=300, lasts_s=s) for s in (1.0, 3.0)]
    whole = msgspec.structs.replace(case_of(197), replicas=1, arrivals=(), until_s=30.0)
    result = run_case(msgspec.structs.replace(whole, faults=tuple(deaths)))
    assert (result.violated, result.detail) == ("", "")
    assert sum("starts again" in line for line in result.story) == 1


@pytest.mark.full
def test_a_planted_defect_is_found_and_printed_in_few_lines():
    whole = case_of(4)  # the first seed that shows it
    with planted("the barrier opens one member early"):
        result = run_case(whole)
        case, smaller = shrunk(whole, result)
    assert smaller.violated == result.violated == "bound before its minimum had arrived"
    assert len(case.faults) + len(case.arrivals) < len(whole.faults) + len(whole.arrivals)
    assert len(story(case, smaller).splitlines()) <= LINES + 2
    assert run_case(case).violated == ""


POD = PodRef(namespace="default", name="waits", uid="waits")


async def lists(run, cluster):
    await cluster.connection.call(Request(method="GET", path="/api/v1/nodes"))


async def shows_a_change(run, cluster):
    query = {"resourceVersion": "0", "timeoutSeconds": "300"}
    async with cluster.connection.watch("/api/v1/nodes", query, idle_s=60.0) as lines:
        run.model.remove(run._uid_of("n0"))
        run.loop.pace.active_s = 0.0  # as if that were long ago
        deleted = [line async for line in until_deleted(lines)]
    assert deleted


async def until_deleted(lines):
    async for line in lines:
        if b"DELETED" in line:
            yield line
            return


async def writes(run, cluster):
    await cluster.nominate(POD, "n0")


async def writes_slowly(run, cluster):
    run.requests.slow_until_s = math.inf
    await cluster.nominate(POD, "n0")


async def refuses_a_write(run, cluster):
    run.requests.down_until_s = math.inf
    with pytest.raises(ClusterUnavailable):
        await cluster.publish(())


async def reads_anchors(run, cluster):
    await cluster.published()


async def reads_the_end_of_a_pod(run, cluster):
    await cluster.ending(POD)


async def reads_the_log(run, cluster):
    await RemoteLog(run.database).head()


@pytest.mark.parametrize(
    "asks",
    [
        lists, shows_a_change, writes, writes_slowly, refuses_a_write, reads_anchors, reads_the_end_of_a_pod, reads_the_log,
    ],
)  # fmt: skip
def test_a_server_needs_no_longer_while_nothing_else_happens(asks):
    """Time goes on in steps then, but not past the answer."""
    loop = ProcessLoop()
    loop.pace.may_rest_s = lambda: REST_S
    run = Run(case_of(3), loop)
    (pod,) = entries_in([Document(where="test", value=a_pod("waits"))], Role.CLUSTER)

    async def took_s() -> float:
        run.model.put(with_metadata(pod.obj, uid="waits", creation_timestamp=run.model.now()))
        cluster = ServedCluster(run.model, run.requests, run.clock, Process("p"), "p", lambda: True)
        await loop.rest(10.0)
        began_s = loop.time()
        await asks(run, cluster)
        return loop.time() - began_s

    with contextlib.closing(loop):
        assert 0.0005 < loop.run_until_complete(took_s()) < 0.5
