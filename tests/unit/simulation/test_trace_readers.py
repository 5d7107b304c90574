"""Small made-up samples of each form of trace: what arrives, what is malformed and where, what is left out and why."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from extender.core.model.errors import BadInput
from extender.simulation.arrivals import Arrival, ArrivingGroup, check
from extender.simulation.trace_readers import GPU, is_trace, read_trace
from tests.support.service.command_line import run_command

PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 07:00:55,2951.0,24,70824.0,6214e9
2017-10-09 07:02:55,10,12,120,6214e9
2017-10-09 07:02:55,10,0,0,6214e9
"""
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,100,500,150
openb-pod-0001,6000,12288,0,0,,BE,Pending,50,90,
openb-pod-0002,6000,12288,8,1000,V100M16|V100M32,LS,Running,70,,70
"""
SERVICES = """\
instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time
instance_0,HN,app_0,12,12,1,1,25,25,120.0,120.0,0,0,8,,,
instance_1,CN,app_0,48,48,0,0,25,25,240.0,240.0,0,0,-1,,,100.0
instance_2,CN,app_0,48,48,0,0,25,25,240.0,240.0,0,0,-1,100.0,100.0,
instance_3,CN,app_0,48,48,0,0,25,25,200.0,200.0,0,0,-1,,,
instance_4,CN,app_1,2,2,0,0,0,0,1.0,1.0,0,0,-1,10.0,11.0,30.0
instance_5,HN,app_1,2,2,1,1,0,0,1.0,1.0,0,0,-1,20.0,21.0,25.0
"""
BATSIM = """\
{"nb_res": 4,
 "jobs": [{"id": "a", "subtime": 3, "walltime": 30, "res": 2, "profile": "short"},
          {"id": 7, "subtime": 1, "walltime": -1, "res": 4, "profile": "thrice"},
          {"id": "b", "subtime": 2, "res": 1, "profile": "computes"},
          {"id": "c", "subtime": 4, "walltime": 5, "res": 1, "profile": "short"}],
 "profiles": {"short": {"type": "delay", "delay": 20.5},
              "thrice": {"type": "composed", "repeat": 3, "seq": ["short", "short"]},
              "computes": {"type": "parallel_homogeneous", "cpu": 10e6, "com": 1e6}}}
"""
SWF = """\
; Version: 2.2
; MaxNodes: 128
  1  0 10 100 4 -1 -1 8 200 1024 1 3 1 -1 2 -1 -1 -1
  2 30 -1  -1 4 -1 -1 4 200   -1 5 3 1 -1 2 -1 -1 -1

  3 20  0  50 2 -1 -1 -1 -1   -1 1 3 1 -1 -1 -1 -1 -1
  4 40  0  50 -1 -1 -1 -1 -1  -1 1 3 1 -1 1 -1 -1 -1
"""
GIB = 1 << 30


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a text as a trace."""

    def reading(text, name="trace.csv"):
        (tmp_path / name).write_text(text)
        return read_trace(tmp_path / name)

    return reading


def shown(arrivals):
    """Return of each arrival what a reader decides: time, path, pods and requests of the groups, run time."""
    return [
        (a.at_s, f"{a.namespace}/{a.name}", [(g.name, g.pods, g.minimum, g.requests) for g in a.groups], a.runs_for_s)
        for a in arrivals.arrivals
    ]  # fmt: skip


def test_philly(read):
    """In the order of their times; pods of equally many GPUs, at most 8; a job without GPUs is counted."""
    trace = read(PHILLY)
    assert shown(trace) == [
        (0.0, "6214e9/job-3", [("workers", 3, 3, {GPU: 8})], 2951.0),
        (60.0, "11cb48/job-2", [("workers", 1, 1, {GPU: 1})], 66.0),
        (120.0, "6214e9/job-4", [("workers", 2, 2, {GPU: 6})], 10.0),
    ]
    assert (trace.malformed, trace.left_out) == ((), {"num_gpus is 0": 1})


def test_pods_of_alibaba(read):
    """One that was never scheduled runs from its creation; one that has no end does not end."""
    trace = read(PODS)
    assert shown(trace) == [
        (0.0, "be/openb-pod-0001", [("pod", 1, 1, {"cpu": 6000, "memory": 12 * GIB})], 40.0),
        (20.0, "ls/openb-pod-0002", [("pod", 1, 1, {"cpu": 6000, "memory": 12 * GIB, GPU: 8})], math.inf),
        (50.0, "ls/openb-pod-0000", [("pod", 1, 1, {"cpu": 12000, "memory": 16 * GIB, GPU: 1})], 350.0),
    ]  # fmt: skip
    assert (trace.malformed, trace.left_out) == ((), {})


def test_services_of_alibaba(read):
    """A group for each shape of a role, with the most instances at once: one that goes when another comes is none more."""
    cn, hn = {"cpu": 48000, "rdma-percent": 25}, {"cpu": 12000, GPU: 1, "rdma-percent": 25}
    small = {"cpu": 2000, "memory": GIB}
    assert shown(read(SERVICES)) == [
        (0.0, "dlrm/app-0", [
            ("cn-0", 1, 1, cn | {"memory": 200 * GIB}), ("cn-1", 1, 1, cn | {"memory": 240 * GIB}),
            ("hn-0", 1, 1, hn | {"memory": 120 * GIB}),
        ], math.inf),
        (10.0, "dlrm/app-1", [("cn-0", 1, 1, small), ("hn-0", 1, 1, small | {GPU: 1})], 20.0),
    ]  # fmt: skip


def test_batsim(read):
    """A composed profile runs the sum of its parts; a job ends at its walltime; a computation has no run time here."""
    trace = read(BATSIM, "workload.json")
    assert [(at, path, groups[0][1], runs) for at, path, groups, runs in shown(trace)] == [
        (1.0, "batsim/job-7", 4, 123.0), (3.0, "batsim/job-a", 2, 20.5), (4.0, "batsim/job-c", 1, 5.0),
    ]  # fmt: skip
    assert trace.left_out == {"the run time of its profile depends on a platform": 1}
    assert trace.arrivals[0].groups[0].requests == {"cpu": 1000}


def test_standard_workload_format(read):
    """Requested processors, else those that were allocated; what is unknown is counted with the field."""
    trace = read(SWF, "log.swf")
    assert shown(trace) == [
        (0.0, "queue-2/job-1", [("tasks", 8, 8, {"cpu": 1000, "memory": 1 << 20})], 100.0),
        (20.0, "queue-unknown/job-3", [("tasks", 2, 2, {"cpu": 1000})], 50.0),
    ]
    assert trace.left_out == {
        "its run time (field 4) is unknown: it never ran": 1,
        "its processors (fields 5 and 8) are unknown": 1,
    }


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (PHILLY.replace("66.0,1,", "66.0,x,"), "p.csv", 'p.csv:2: num_gpus "x" is not a whole number from 0'),
        (PHILLY.replace("66.0,1,", "66.0,1.5,"), "p.csv", 'p.csv:2: num_gpus "1.5" is not a whole number from 0'),
        (PHILLY.replace("55,66.0", "55,-66"), "p.csv", 'p.csv:2: duration "-66" is not a number from 0'),
        (PHILLY.replace("55,66.0", "55,nan"), "p.csv", 'p.csv:2: duration "nan" is not a number from 0'),
        (PHILLY.replace("2017-10-09 07:01", "9 Oct 07:01"), "p.csv", 'p.csv:2: timestamp "9 Oct 07:01:55" is not a time like 2017-10-09 07:01:55'),
        (PHILLY.replace("66.0,11cb48", "66.0,--"), "p.csv", 'p.csv:2: cluster "--" has no letter and no digit, so it is no name'),
        (PHILLY.replace("66.0,11cb48", "66.0,11cb48,1,2"), "p.csv", "p.csv:2: line "),
        (PHILLY.replace(",1,66.0,11cb48", ",1"), "p.csv", 'p.csv:2: cluster "" has no letter'),
        (PODS.replace("100,500,150", "100,120,150"), "o.csv", 'o.csv:2: deletion_time "120" is before 150, when it was started'),
        (SERVICES.replace("10.0,11.0,30.0", "10.0,11.0,3.0"), "d.csv", 'd.csv:6: deletion_time "3.0" is before 10, when it was created'),
        (BATSIM.replace('"res": 2', '"res": 0'), "b.json", 'b.json: jobs[0]: tasks.pods "0" is not between 1 and 1,000,000'),
        (BATSIM.replace('"res": 2, "profile": "short"', '"res": 2, "profile": "none"'), "b.json", 'b.json: jobs[0]: profile "none" is not among the profiles of the file'),
        (BATSIM.replace('"short", "short"', '"thrice"'), "b.json", 'b.json: jobs[1]: profile "thrice" is composed of itself'),
        (SWF.replace("  3 20  0", "  3 20"), "l.swf", 'l.swf:6: line "3 20 50 2'),
        (SWF.replace("  3 20  0", "  3 soon  0"), "l.swf", 'l.swf:6: field 2 "soon" is not a number from 0'),
    ],
    ids=range(15),
)  # fmt: skip
def test_a_line_that_is_malformed_is_named_and_the_others_are_read(text, name, expected, read):
    (malformed,) = read(text, name).malformed
    assert malformed.startswith(expected)
    good = {"p": PHILLY, "o": PODS, "d": SERVICES, "b": BATSIM, "l": SWF}[name[0]]
    lost = 0 if name == "d.csv" else 1  # a service has other instances
    assert len(read(text, name).arrivals) == len(read(good, name).arrivals) - lost


def test_other_files_are_refused(read, tmp_path):
    for text, name in (("a,b,c\n1,2,3\n", "other.csv"), ("", "empty.csv"), ("{]", "x.json"), ("[]", "x.json")):  # fmt: skip
        with pytest.raises(BadInput, match=name):
            read(text, name)
    with pytest.raises(BadInput, match=r"absent\.csv: cannot be read"):
        read_trace(tmp_path / "absent.csv")


def test_an_arrival_that_cannot_be_is_named():
    group = ArrivingGroup(name="g", pods=2, minimum=2, requests={})
    good = Arrival(at_s=0.0, namespace="n", name="a", groups=(group,), runs_for_s=1.0)
    assert check(good, "x:1") is good
    for changes, expected in (
        ({"at_s": -1.0}, 'x:1: at_s "-1.0" is not a number of seconds from 0'),
        ({"runs_for_s": math.nan}, 'x:1: runs_for_s "nan" is not'),
        ({"groups": ()}, 'x:1: groups "" is empty'),
        ({"groups": (group, group)}, 'x:1: name "g" is the name of two groups'),
    ):
        fields = {name: getattr(good, name) for name in good.__struct_fields__}
        with pytest.raises(BadInput) as caught:
            check(Arrival(**fields | changes), "x:1")
        assert str(caught.value).startswith(expected)
    for changes, expected in (
        ({"pods": 0}, 'x:1: g.pods "0" is not between'),
        ({"minimum": 3}, 'x:1: g.minimum "3" is not between 0 and its pods, 2'),
        ({"requests": {"cpu": -1}}, 'x:1: g.requests.cpu "-1" is negative'),
    ):
        fields = {name: getattr(group, name) for name in group.__struct_fields__}
        wrong = ArrivingGroup(**fields | changes)
        with pytest.raises(BadInput) as caught:
            check(
                Arrival(at_s=0.0, namespace="n", name="a", groups=(wrong,), runs_for_s=1.0), "x:1"
            )
        assert str(caught.value).startswith(expected)


def test_simulate_runs_a_trace_and_names_what_it_leaves_out(tmp_path):
    """A malformed line is named on stderr, and so is how many lines are none, or come after the end."""
    path = tmp_path / "philly.csv"
    path.write_text(PHILLY.replace("66.0,1,", "66.0,x,") + "2017-12-09 07:00:00,1,1,1,x\n")
    cluster = str(Path(__file__).parents[3] / "deploy/examples/cluster.yaml")
    done = run_command("simulate", "--cluster", cluster, "--workloads", str(path), "--until", "1h", "-o", "json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sum(size["admitted"] for size in msgspec.json.decode(done.stdout)["classes"]) == 2
    assert done.stderr.splitlines() == [
        'gang-extender: philly.csv:2: num_gpus "x" is not a whole number from 0',
        f"gang-extender: {path}: 1 of 5 left out: malformed",
        f"gang-extender: {path}: 1 of 5 left out: num_gpus is 0",
        f"gang-extender: {path}: 1 of 5 left out: arrive after --until",
    ]


def test_manifests_are_no_trace(tmp_path):
    for name, text, expected in (
        ("a.csv", "", True), ("a.swf", "", True), ("a.yaml", "", False), ("a.json", BATSIM, True),
        ("b.json", '{"apiVersion": "v1", "kind": "List", "items": []}', False), ("absent.json", None, False),
    ):  # fmt: skip
        if text is not None:
            (tmp_path / name).write_text(text)
        assert is_trace(tmp_path / name) is expected, name


HEADER = "timestamp,duration,num_gpus,cluster\n"
LINE = "2017-10-09 07:01:55,100,8,a\n"
BATSIM_JOB = '{"jobs":[{"id":1,"subtime":0,"res":1,"profile":"p"}],"profiles":'


@pytest.mark.parametrize(
    "text",
    [f"\ufeff{HEADER}{LINE}", f"{HEADER.replace(',', ' , ')}{LINE}"],
    ids=["byte order mark", "spaces in the header"],
)
def test_a_header_is_read_with_what_editors_add(tmp_path, text):
    (tmp_path / "t").write_text(text, encoding="utf-8")
    arrivals = read_trace(tmp_path / "t")
    assert (len(arrivals.arrivals), arrivals.malformed) == (1, ())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{HEADER}{LINE * 500}".encode() + b"\xff,1,1,a\n", "cannot be read: 'utf-8' codec"),
        (f"{HEADER}2017-10-09 07:01:55,100,8,{'a' * 200_000}\n".encode(), "field larger than"),
        (b'{"jobs": 5, "profiles": {}}', "Expected `array`"),
        (f"{BATSIM_JOB}[]}}".encode(), "Expected `object`"),
    ],
    ids=["no text", "a large field", "jobs", "profiles"],
)
def test_a_file_that_breaks_off_its_form_is_refused_with_its_path(tmp_path, body, expected):
    (tmp_path / "t").write_bytes(body)
    with pytest.raises(BadInput, match=expected) as refused:
        read_trace(tmp_path / "t")
    assert str(refused.value).startswith(f"{tmp_path / 't'}: ")


@pytest.mark.parametrize("seq", ["5", "null"])
def test_a_composed_profile_without_a_list_is_malformed(tmp_path, seq):
    (tmp_path / "t").write_text(f'{BATSIM_JOB}{{"p":{{"type":"composed","seq":{seq}}}}}}}')
    (text,) = read_trace(tmp_path / "t").malformed
    assert "profiles.p: seq" in text


def test_the_second_job_of_a_name_is_malformed(tmp_path):
    """Two arrivals of one name would be one object of the API server."""
    line = "1 0 -1 5 4 -1 -1 4 -1 -1 1 1 1 1 1 -1 -1 -1\n"
    (tmp_path / "t").write_text(line * 2)
    arrivals = read_trace(tmp_path / "t")
    assert len(arrivals.arrivals) == 1
    assert arrivals.malformed == ('t:2: name "queue-1/job-1" is the name of another one, of t:1',)
