"""The report of a simulation: counted against the jobs and the log it is made from."""

from __future__ import annotations

import io
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from PIL import Image, ImageChops, ImageColor

from extender.cluster.manifests.manifest_entries import Role, entries_in, read
from extender.cluster.manifests.yaml_reader import Document
from extender.core.log.events import GangAdmitted, GangRemoved, MemberTerminated
from extender.core.model.errors import BadInput
from extender.settings import Settings
from extender.simulation.arrivals import Arrival, ArrivingGroup, NodeFailure
from extender.simulation.controllers import Job
from extender.simulation.job_files import job_of, jobs_of
from extender.simulation.simulation import BEGAN_US, Scenario, simulate
from extender.simulation.simulation_report import (
    BOTTOM,
    FONT,
    HEIGHT,
    LEFT,
    PIXELS,
    RIGHT,
    TOP,
    WIDTH,
    plotted,
    report,
)
from tests.support.service.manifest_builders import a_fleet
from tests.unit.simulation.test_simulation import GPU, an_arrival, an_empty_fleet, run

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}
JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: j
  namespace: team-a
  labels: {gang-extender.dev/tree: default}
  annotations: {gang-extender.dev/runs-for: 1h}
spec:
  parallelism: 1
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: i, resources: {limits: {nvidia.com/gpu: "4"}}}]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: j, namespace: team-a}
spec: {containers: [{name: main, image: i, resources: {limits: {nvidia.com/gpu: "1"}}}]}
"""


def test_waits_and_what_starves_are_counted_by_namespace_and_size() -> None:
    # 8 nodes: the second waits for the end of the first, the third for one that does not end, the last fits nowhere
    jobs = [
        an_arrival("a", 0.0, 8, runs_for_s=300.0),
        an_arrival("b", 10.0, 8, runs_for_s=600.0),
        an_arrival("small", 20.0, 1, runs_for_s=60.0, namespace="team-b"),
        an_arrival("never", 30.0, 9, namespace="team-b"),
    ]
    shown = report(run(jobs, until_s=900.0, cluster=an_empty_fleet()), seed=1)
    assert (shown.counted, shown.capacity) == (GPU, 64)
    rows = {(row.namespace, row.size): row for row in shown.classes}
    assert set(rows) == {("team-a", "33-128"), ("team-b", "2-8"), ("team-b", "33-128")}
    large = rows["team-a", "33-128"]
    assert (large.jobs, large.admitted, large.ended, large.starved) == (2, 2, 1, 0)
    assert large.wait_max_s == pytest.approx(290.0, abs=60.0)
    never = rows["team-b", "33-128"]
    assert (never.admitted, never.wait_p50_s, never.starved) == (0, None, 1)
    assert 0.9 < shown.utilisation <= 1.0
    assert {free.key for free in shown.largest_free} >= {""}


def test_a_gang_that_is_preempted_loses_the_time_that_it_ran() -> None:
    jobs = [
        an_arrival("low", 0.0, 8, runs_for_s=3_000.0),
        an_arrival("high", 1_800.0, 8, runs_for_s=300.0, namespace="team-b", priority=10),
    ]
    shown = report(run(jobs, until_s=3_000.0, cluster=an_empty_fleet()), seed=1)
    low, high = (
        next(row for row in shown.classes if row.namespace == name) for name in ("team-a", "team-b")
    )
    assert shown.preemptions == 1
    assert (low.evictions, high.evictions, high.ended) == (1, 0, 1)
    assert low.lost_unit_hours == pytest.approx(64 * 0.5, rel=0.05)


def a_file_job(folder: Path, text: str) -> tuple[Job, ...]:
    (folder / "w.yaml").write_text(text)
    entries = read([str(folder)], Role.WANTED)
    return jobs_of(entries, until_s=3_600.0, duration=None, seed=1)[1]


def test_a_job_and_a_pod_of_one_name_are_two_jobs(tmp_path: Path) -> None:
    shown = report(run(a_file_job(tmp_path, f"{JOB}\n---\n{POD}"), until_s=600.0), seed=1)
    assert [(row.size, row.jobs, row.admitted) for row in shown.classes] == [
        ("1", 1, 1),
        ("2-8", 1, 1),
    ]


def test_a_node_that_fails_takes_the_run_of_a_gang_with_it_and_nothing_is_placed_there_meanwhile() -> (
    None
):
    fleet = an_empty_fleet()
    job = an_arrival("whole", 0.0, 8, runs_for_s=3_000.0)  # of all nodes
    nodes = [entry.obj.metadata.name for entry in fleet]
    failure = NodeFailure(node=nodes[0], at_s=1_000.0, for_s=600.0)
    outcome = simulate(
        Scenario(
            cluster=fleet, jobs=(job,), until_s=6_000.0, settings=Settings(), failures=(failure,)
        )
    )
    (row,) = report(outcome, seed=1).classes
    assert (row.evictions, row.ended) == (1, 1)
    assert row.lost_unit_hours == pytest.approx(64 * 1_000 / 3_600, rel=0.02)
    assert job.ended_s == pytest.approx(1_600.0 + 3_000.0, abs=60.0)
    lost = {event.data.cause for event in outcome.events() if isinstance(event.data, MemberTerminated) and event.at_us < BEGAN_US + 2_000_000_000}  # fmt: skip
    assert lost == {"node-lost"}
    unknown = Scenario(
        cluster=fleet, jobs=(), until_s=60.0, settings=Settings(), failures=(msgspec.structs.replace(failure, node="x"),),
    )  # fmt: skip
    with pytest.raises(BadInput, match="--node-failures: the cluster has no node 'x'"):
        simulate(unknown)


def test_a_plot_has_what_is_used_and_what_waits_over_time() -> None:
    jobs = [
        an_arrival("a", 0.0, 8, runs_for_s=300.0),
        an_arrival("b", 450.0, 4, runs_for_s=300.0),
        an_arrival("never", 600.0, 9),
    ]
    outcome = run(jobs, until_s=900.0, cluster=an_empty_fleet())
    svg = ET.fromstring(plotted(outcome, ".svg"))
    assert plotted(outcome, ".html").startswith(b"<!DOCTYPE html>")
    lines = {
        path.get("stroke"): re.findall(r"([\d.]+),([\d.]+)", path.get("d") or "")
        for path in svg.iter("{http://www.w3.org/2000/svg}path")
    }
    top = BOTTOM - (BOTTOM - TOP) * 64 / 72  # of 64 GPUs, where the plot ends at the 72 that wait
    heights = [float(y) for _, y in lines["blue"]]
    assert min(heights) == pytest.approx(top, abs=0.1)
    assert pytest.approx((BOTTOM + top) / 2, abs=0.1) in heights  # 32 of them
    assert min(float(y) for _, y in lines["red"]) == TOP
    assert float(lines["red"][-1][0]) == float(lines["blue"][-1][0]) == RIGHT
    picture = Image.open(io.BytesIO(plotted(outcome, ".png")))
    assert picture.size == (WIDTH * PIXELS, HEIGHT * PIXELS)

    def box(colour: str) -> tuple[float, ...]:
        """Return left, top, right and bottom of all that has a colour, in units of the plot."""
        channels = [
            [255 * (level == of) for level in range(256)] for of in ImageColor.getrgb(colour)
        ]
        masks = picture.point([level for channel in channels for level in channel]).split()
        of_colour = ImageChops.darker(ImageChops.darker(masks[0], masks[1]), masks[2]).getbbox()
        assert of_colour is not None, f"nothing is {colour}"
        return tuple(side / PIXELS for side in of_colour)

    assert box("blue") == pytest.approx((LEFT, top, RIGHT, BOTTOM), abs=1.5)
    assert box("red") == pytest.approx((LEFT, TOP, RIGHT, BOTTOM), abs=1.5)
    assert box("black")[3] > BOTTOM + FONT / 2  # the times below the axis


def test_groups_of_files_are_admitted_run_and_end(tmp_path: Path) -> None:
    group = """
apiVersion: scheduling.k8s.io/v1alpha3
kind: PodGroup
metadata: {name: g, namespace: team-a, annotations: {gang-extender.dev/runs-for: 5m}}
spec: {schedulingPolicy: {gang: {minCount: 1}}}
"""
    pod = POD.replace("spec: {", "spec: {schedulingGroup: {podGroupName: g}, ")
    outcome = run(a_file_job(tmp_path, f"{pod}\n---\n{group}"), until_s=600.0)
    (row,) = report(outcome, seed=1).classes
    assert (row.jobs, row.admitted, row.ended) == (1, 1, 1)
    assert {type(event.data) for event in outcome.events()} >= {GangAdmitted, GangRemoved}


@pytest.mark.parametrize("field", ["suspend: true", "parallelism: 0"])
def test_a_job_without_pods_does_not_starve(tmp_path: Path, field: str) -> None:
    text = JOB.replace("parallelism: 1", field)
    (row,) = report(run(a_file_job(tmp_path, text), until_s=600.0), seed=1).classes
    assert (row.jobs, row.admitted, row.starved) == (1, 0, 0)


def test_a_cluster_without_accelerators_is_counted_in_whole_cpus(tmp_path: Path) -> None:
    fleet = tuple(
        entries_in(
            (
                Document(where="fleet", value=node)
                for node in a_fleet("2 racks x 2 nodes", cpu="16", gpu=0)
            ),
            Role.CLUSTER,
        )
    )
    text = JOB.replace('nvidia.com/gpu: "4"', 'cpu: "3500m"').replace(
        "parallelism: 1", "parallelism: 2"
    )
    shown = report(run(a_file_job(tmp_path, text), until_s=3_600.0, cluster=fleet), seed=1)
    assert (shown.counted, shown.capacity) == ("cpu", 64)
    assert [row.size for row in shown.classes] == ["2-8"]
    assert 0.1 < shown.utilisation < 0.12
    assert {free.last for free in shown.largest_free if not free.key} == {16}


def test_a_cluster_without_nodes_is_refused() -> None:
    with pytest.raises(BadInput, match="--cluster: the files have no Node"):
        run(
            (),
            until_s=60.0,
            cluster=entries_in((Document(where="c", value=NAMESPACE),), Role.CLUSTER),
        )


def test_what_a_gang_of_two_shapes_loses_is_counted_of_all_that_ran() -> None:
    cpu_only = ArrivingGroup(name="cn", pods=1, minimum=1, requests={"cpu": 1000})
    gpu = ArrivingGroup(name="hn", pods=8, minimum=8, requests={GPU: 8, "cpu": 1000})
    low = Arrival(
        at_s=0.0, namespace="team-a", name="low", groups=(cpu_only, gpu), runs_for_s=9_000.0
    )
    jobs = [
        job_of(low),
        an_arrival("high", 1_800.0, 8, runs_for_s=300.0, namespace="team-b", priority=10),
    ]
    shown = report(run(jobs, until_s=3_000.0, cluster=an_empty_fleet()), seed=1)
    row = next(row for row in shown.classes if row.namespace == "team-a")
    assert row.evictions == 1
    assert row.lost_unit_hours == pytest.approx(64 * 0.5, rel=0.05)
