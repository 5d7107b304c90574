"""`plan` on workloads whose parts are not alike: a head without which nothing runs, and parts that start one after the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import Object, a_group, a_node, a_pod, an_object
from tests.support.service.workload_builders import (
    DEFAULT,
    a_job,
    a_jobset,
    a_replicated_job,
    a_template,
)

HEAD = "default/c-ray-headgroup"


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Plan objects on nodes of 4 CPUs; gives the exit code and the answer."""
    monkeypatch.chdir(tmp_path)

    def call(*wanted: Object, nodes: int = 2, cpu: int = 4, words: tuple[str, ...] = ()) -> Any:
        fleet = [a_node(f"n{i}", cpu=cpu) for i in range(nodes)]
        (tmp_path / "nodes.yaml").write_text(yaml.safe_dump_all(fleet))
        (tmp_path / "work.yaml").write_text(yaml.safe_dump_all(wanted))
        command = ("plan", "--cluster", "nodes.yaml", "-f", "work.yaml", "-o", "json", *words)
        done = run_command(*command, GANG_EXTENDER_DATA_DIR=str(tmp_path / "data"))
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return call


def asks(cpu: int) -> Object:
    """Return a pod template."""
    return a_template({"cpu": cpu})


def a_raycluster(*groups: Object, head: int = 8, **metadata: Any) -> Object:
    """Make a RayCluster."""
    spec = {
        "headGroupSpec": {"rayStartParams": {}, "template": asks(head)},
        "workerGroupSpecs": list(groups),
    }
    return an_object(
        "RayCluster", "c", "ray.io/v1", metadata={"labels": dict(DEFAULT), **metadata}, spec=spec
    )


def workers(name: str = "g", cpu: int = 1, **fields: Any) -> Object:
    """Make a worker group."""
    group = {"groupName": name, "rayStartParams": {}, "replicas": 1, "minReplicas": 0, **fields}
    return {**group, "template": asks(cpu)}


# --- required groups


@pytest.mark.parametrize(
    "groups",
    [
        [workers(replicas=2)],
        [workers(numOfHosts=2)],
        [workers(minReplicas=1), workers("z")],
        [workers("y", minReplicas=2, replicas=3), workers("z"), workers("x", numOfHosts=2)],
    ],
    ids=["ray-head-left-out", "several hosts", "an optional group beside a required one", "three"],
)
def test_workers_without_a_head_are_not_placed(plan, groups):
    """Cases ray-head-left-out and raycluster-without-head: the head asks for more than any node has."""
    code, answer = plan(a_raycluster(*groups), nodes=4)
    (gang,) = answer["gangs"]
    assert (code, gang["verdict"], gang["assignments"]) == (1, "impossible", [])
    assert gang["search"]["exhausted"]
    assert any(HEAD in reason and "cpu" in reason for reason in gang["reasons"])


def test_the_head_gets_the_place_that_workers_would_take(plan):
    """One node of 4 CPUs: the head, not the four workers that are more pods."""
    code, answer = plan(a_raycluster(workers(replicas=4, maxReplicas=4), head=4), nodes=1)
    (gang,) = answer["gangs"]
    assert (code, gang["verdict"]) == (0, "placed")
    assert [line["group"] for line in gang["assignments"]] == ["c-ray-headgroup"]


def test_a_required_group_of_workers_is_not_replaced_by_an_optional_one(plan):
    big, small = workers("big", cpu=5, minReplicas=1), workers("small", replicas=2)
    code, answer = plan(a_raycluster(big, small, head=1))
    (gang,) = answer["gangs"]
    assert (code, gang["verdict"], gang["assignments"]) == (1, "impossible", [])
    assert any("c-ray-big" in reason for reason in gang["reasons"])


def test_a_tree_below_a_composite_of_the_user_is_not_placed_without_its_head(plan):
    parent = "gang-extender.dev/parent"
    above = a_group("search", composite=True, gang=1)
    inside = a_raycluster(workers(), annotations={parent: "search"})
    code, answer = plan(above, inside)
    (gang,) = answer["gangs"]
    assert (code, gang["gang"], gang["verdict"]) == (1, "default/search", "impossible")
    assert gang["assignments"] == []


def decode_first(required: list[str], *, minimum: int = 2) -> list[Object]:
    """Make a composite of three groups of one pod, of which `decode` asks for more than a node has."""
    root = a_group("root", composite=True, gang=minimum)
    root["spec"]["schedulingPolicy"]["gang"]["requiredGroups"] = required
    found = [root]
    for name, cpu in (("decode", 9), ("a", 1), ("b", 1)):
        found += [
            a_group(name, parent="root", gang=1),
            a_pod(f"{name}-0", name, requests={"cpu": cpu}),
        ]
    return found


def test_a_user_names_the_groups_that_a_composite_cannot_do_without(plan):
    """L27: three children, required {decode}: any two with decode."""
    assert plan(*decode_first([]))[0] == 0
    assert plan(*decode_first(["a"]))[0] == 0
    code, answer = plan(*decode_first(["decode"]))
    (gang,) = answer["gangs"]
    assert (code, gang["verdict"], gang["assignments"]) == (1, "impossible", [])
    assert "PodGroup default/decode needs 1 pod; the cluster holds 0" in gang["reasons"][0]
    code, answer = plan(*decode_first(["absent"]))
    assert (code, answer["verdict"]) == (1, "waiting")
    assert "without absent, which its requiredGroups name" in str(answer["gangs"][0]["reasons"])


def test_only_our_composites_name_required_groups(plan, tmp_path):
    """A built-in group would lose the field silently, a leaf has no children, and a count below the names is none."""
    leaf, builtin, more = decode_first(["decode"])[1], *decode_first(["decode"])[:1], *decode_first(["decode", "a"], minimum=1)[:1]  # fmt: skip
    leaf["spec"]["schedulingPolicy"]["gang"]["requiredGroups"] = ["x"]
    builtin["apiVersion"] = "scheduling.k8s.io/v1alpha3"
    for thing, words in (
        (leaf, "only a CompositePodGroup of gang-extender.dev has it; found x"),
        (builtin, "only a CompositePodGroup of gang-extender.dev has it; found decode"),
        (more, "2 names count towards minGroupCount, which is 1; raise it"),
    ):
        (tmp_path / "bad.yaml").write_text(yaml.safe_dump(thing))
        done = run_command("plan", "--cluster", "bad.yaml", GANG_EXTENDER_DATA_DIR=str(tmp_path))
        assert done.returncode == 2
        assert f"spec.schedulingPolicy.gang.requiredGroups: {words}" in done.stderr


def test_the_required_groups_stay_when_a_minimum_is_lowered(plan):
    low, answer = plan(*decode_first(["a"], minimum=3), words=("--relax", "root:minGroupCount=1"))
    assert (low, answer["verdict"]) == (0, "placed")
    done = run_command(
        "plan", "--cluster", "nodes.yaml", "-f", "work.yaml", "--relax", "root:minGroupCount=0"
    )
    assert "requires 1 of its groups; write a number from 1 to 3" in done.stderr


# --- steps


def a_step(name: str, cpu: int, pods: int = 1, *after: str) -> Object:
    """Make an entry of replicatedJobs; `after`: `JOB` that must be complete, `JOB!` that must be ready."""
    found = a_replicated_job(name, 1, template=asks(cpu), parallelism=pods, completions=pods)
    states = [
        {"name": one.rstrip("!"), "status": "Ready" if one.endswith("!") else "Complete"}
        for one in after
    ]
    return {**found, "dependsOn": states} if states else found


def in_order(*jobs: Object) -> Object:
    return a_jobset(*jobs, startupPolicy={"startupPolicyOrder": "InOrder"})


def a_lws(leader: int, worker: int, size: int = 3, **spec: Any) -> Object:
    """Make a LeaderWorkerSet that starts its leader first; the numbers are CPUs."""
    pods = {"leaderTemplate": asks(leader), "workerTemplate": asks(worker), "size": size}
    body = {"startupPolicy": "LeaderReady", "leaderWorkerTemplate": pods, **spec}
    metadata = {"labels": dict(DEFAULT)}
    return an_object("LeaderWorkerSet", "l", "leaderworkerset.x-k8s.io/v1", metadata=metadata, spec=body)  # fmt: skip


RUNTIME = an_object(
    "ClusterTrainingRuntime", "ini", "trainer.kubeflow.org/v1alpha1", "",
    spec={"mlPolicy": {"numNodes": 2, "torch": {}}, "template": {"spec": {"replicatedJobs": [
        {"name": name, "dependsOn": after, "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": step}},
            "spec": {"template": {"spec": {"containers": [{"name": name, "resources": {"requests": {"cpu": 1}}}]}}},
        }}
        for name, step, after in (
            ("dataset-initializer", "dataset-initializer", []),
            ("node", "trainer", [{"name": "dataset-initializer", "status": "Complete"}]),
        )
    ]}}},
)  # fmt: skip


def a_trainjob(cpu: int) -> Object:
    spec = {
        "runtimeRef": {"name": "ini"},
        "trainer": {"numNodes": 2, "resourcesPerNode": {"requests": {"cpu": str(cpu)}}},
    }
    metadata = {"labels": dict(DEFAULT)}
    return an_object("TrainJob", "t", "trainer.kubeflow.org/v1alpha1", metadata=metadata, spec=spec)


@pytest.mark.parametrize(
    ("work", "number", "step", "after", "leaf"),
    [
        ([a_jobset(a_step("init", 1), a_step("train", 9, 2, "init"))], 2, "train", "init has ended", "train"),
        ([a_jobset(a_step("init", 9), a_step("train", 1, 2, "init"))], 1, "init", "", "init"),
        ([RUNTIME, a_trainjob(9)], 2, "node", "dataset-initializer has ended", "node"),
        ([in_order(a_step("driver", 1), a_step("w", 9, 2))], 2, "w", "driver is ready", "w"),
        ([a_lws(9, 1)], 1, "leader", "", "leader"),
        ([a_lws(1, 9)], 2, "worker", "the leader is ready", "worker"),
        ([a_lws(9, 1, subGroupPolicy={"subGroupSize": 2})], 1, "leader", "", "leader"),
        ([a_jobset(a_step("a", 1), a_step("b", 1, 1, "a"), a_step("c", 5, 1, "b!"))], 3, "c", "b is ready", "c"),
    ],
    ids=[
        "sequenced-step-fits-nowhere", "the first", "TrainJob", "InOrder", "leaderready-part-fits-nowhere",
        "its workers", "subgroups", "the third of three",
    ],
)  # fmt: skip
def test_a_step_that_fits_on_no_node_is_named(plan, work, number, step, after, leaf):
    """The verdict is that of the worst step, with what is missing for it; nothing is placed."""
    code, answer = plan(*work)
    (gang,) = answer["gangs"]
    assert (code, gang["verdict"], gang["assignments"]) == (1, "impossible", [])
    assert gang["search"]["exhausted"]
    first, second, *_ = gang["reasons"]
    start = f", which starts when {after}" if after else ""
    assert first.startswith(f"step {number} of ")
    assert first.endswith(f", {step}{start}: does not fit")
    assert leaf in second
    assert "cpu" in second
    line = gang["steps"][number - 1]
    assert (line["step"], line["after"], line["verdict"]) == (step, after, "impossible")
    assert [one["verdict"] for one in gang["steps"][: number - 1]] == ["placed"] * (number - 1)
    assert not any("minGroupCount" in text for text in gang["help"])


def nodes_of(gang: Any, role: str) -> list[str]:
    return [line["node"] for line in gang["assignments"] if f"-{role}-" in line["group"]]


def test_steps_that_never_run_together_use_the_same_nodes(plan):
    """Case sequenced-steps-one-after-the-other: step 1 has ended when step 2 starts."""
    code, answer = plan(a_jobset(a_step("init", 4), a_step("train", 4, 2, "init")))
    (gang,) = answer["gangs"]
    assert (code, gang["verdict"], gang["unplaced"]) == (0, "placed", [])
    assert len(nodes_of(gang, "init")) == 1
    assert sorted(nodes_of(gang, "train")) == ["n0", "n1"]
    assert [step["verdict"] for step in gang["steps"]] == ["placed", "placed"]
    assert [len(step["groups"]) for step in gang["steps"]] == [1, 1]


@pytest.mark.parametrize(
    ("work", "nodes"),
    [
        (a_jobset(a_step("server", 4), a_step("client", 4, 2, "server!")), 3),
        (in_order(a_step("server", 4), a_step("client", 4, 2)), 3),
        (a_jobset(a_step("a", 4), a_step("b", 4, 1, "a!"), a_step("c", 4, 1, "b")), 2),
        (a_jobset(a_step("a", 4, 2), a_step("b", 4, 1, "a"), a_step("c", 4, 1, "b!")), 2),
        (a_lws(4, 4), 3),
    ],
    ids=["Ready", "InOrder", "ready and then ended", "ended before both", "LeaderReady"],
)  # fmt: skip
def test_a_step_that_is_ready_runs_on_beside_the_later_one(plan, work, nodes):
    """Both must fit together: as many nodes as pods at once, and not one less."""
    code, answer = plan(work, nodes=nodes)
    (gang,) = answer["gangs"]
    assert (code, gang["verdict"], gang["unplaced"]) == (0, "placed", [])
    code, answer = plan(work, nodes=nodes - 1)
    assert (code, answer["verdict"]) == (1, "impossible")


def test_copies_fit_beside_any_step_of_those_before(plan):
    """Two nodes of 8 CPUs: a copy uses 4 of one in step 1 and 4 of both in step 2, so two fit."""
    work = a_jobset(a_step("init", 4), a_step("train", 4, 2, "init"))
    code, answer = plan(work, cpu=8, words=("--max-copies",))
    assert (code, answer["copies"]["fit"], answer["copies"]["proved"]) == (0, 2, True)
    never = a_jobset(a_step("init", 1), a_step("train", 9, 2, "init"))
    code, answer = plan(never, cpu=8, words=("--max-copies",))
    assert (code, answer["copies"]["fit"], answer["copies"]["proved"]) == (1, 0, True)
    wide = a_jobset(a_step("init", 1, 3), a_step("train", 6, 1, "init"))
    code, answer = plan(wide, nodes=1, cpu=8, words=("--max-copies",))
    assert (code, answer["copies"]["fit"]) == (0, 1)  # 3 and 6 CPUs of 8


def test_a_later_tree_does_not_get_what_a_step_of_an_earlier_one_uses(plan):
    job = a_job("later", template=asks(4), parallelism=1, completions=1)
    steps = a_jobset(a_step("init", 4), a_step("train", 4, 2, "init"))
    _, answer = plan(steps, job)
    assert [gang["verdict"] for gang in answer["gangs"]] == ["placed", "impossible"]
    _, answer = plan(steps, job, nodes=3)
    assert [gang["verdict"] for gang in answer["gangs"]] == ["placed", "placed"]


def test_what_would_help_is_named_for_each_step_that_does_not_fit(plan):
    """Three nodes for one step and two for the other: each number is true, and none is for both."""
    full = an_object("Pod", "full", "v1", spec={"nodeName": "n0", "containers": [{"name": "c", "resources": {"requests": {"cpu": 4}}}]}, status={"phase": "Running"})  # fmt: skip
    work = a_jobset(a_step("init", 4, 3), a_step("train", 3, 2, "init"))
    code, answer = plan(work, full, nodes=1)
    gang = next(one for one in answer["gangs"] if one["workload"])
    assert (code, gang["verdict"], gang["changes"]) == (1, "impossible", [])
    assert "for step 1 of 2, init: 3 more empty nodes like n0" in gang["help"]
    assert "for step 2 of 2, train: 2 more empty nodes like n0" in gang["help"]
    assert gang["when_empty"] == "never"
    code, answer = plan(a_lws(4, 4), full, nodes=1)  # the leader runs beside its workers
    gang = next(one for one in answer["gangs"] if one["workload"])
    assert gang["help"][0] == "3 more empty nodes like n0"
    assert gang["changes"]


def test_steps_below_a_gang_go_on_together(plan):
    """A DisaggregatedSet whose role starts its leaders first: each replica is leader and workers."""

    def a_set(worker: int) -> Object:
        role = a_lws(1, worker, replicas=1)["spec"]
        spec = {"roles": [{"name": "prefill", "spec": role}]}
        return an_object("DisaggregatedSet", "pd", "disaggregatedset.x-k8s.io/v1", metadata={"labels": dict(DEFAULT)}, spec=spec)  # fmt: skip

    code, answer = plan(a_set(1))
    assert (code, answer["verdict"]) == (0, "placed")
    code, answer = plan(a_set(9))
    (gang,) = answer["gangs"]
    assert (code, gang["verdict"], gang["assignments"]) == (1, "impossible", [])
    assert (
        gang["reasons"][0]
        == "step 2 of 2, worker, which starts when the leader is ready: does not fit"
    )


def test_the_table_shows_that_parts_start_one_after_the_other(plan):
    plan(a_jobset(a_step("init", 4), a_step("train", 4, 2, "init")))
    done = run_command("plan", "--cluster", "nodes.yaml", "-f", "work.yaml")
    _, first, second, tree, *_ = done.stdout.splitlines()
    assert first == "  step 1 of 2, init: fits"
    assert second == "  step 2 of 2, train, which starts when init has ended: fits"
    assert tree.endswith("2 of 2 groups placed, one after the other")


def test_a_leader_whose_workers_have_no_place_has_none_either(plan):
    """Two replicas below a Basic root, capacity for one: the leader of the other one is not shown on a node."""
    work = a_lws(3, 3, size=2, replicas=2)
    work["metadata"]["annotations"] = {"gang-extender.dev/gang": "all"}
    code, answer = plan(work, nodes=3)
    (gang,) = answer["gangs"]
    assert (code, gang["verdict"]) == (0, "placed")
    assert [line["pod"] for line in gang["assignments"]] == [
        "default/l-0", "default/l-0-1",
    ]  # fmt: skip
    assert gang["unplaced"] == ["default/l-1", "default/l-1-1"]


def a_flat_workload(*names: str) -> Object:
    """Make a Workload with a PodGroup for each part, `train` of two pods: each is a tree of its own."""
    templates = [
        {"name": name, "schedulingPolicy": {"gang": {"minCount": 1 + (name == "train")}}}
        for name in names
    ]
    return an_object("Workload", "flat", spec={"podGroupTemplates": templates})


@pytest.mark.parametrize("order", [("init", "train"), ("train", "init")])
def test_steps_that_are_trees_of_their_own_use_the_same_nodes(plan, order):
    """By the user's Workload; whichever is planned first, and a Job beside them gets what no step uses."""
    names = {"gang-extender.dev/workload": "flat"}
    jobs = (a_step("init", 4), a_step("train", 4, 2, "init"))
    work = a_jobset(*jobs, annotations=names)
    code, answer = plan(a_flat_workload(*order), work)
    assert (code, [gang["verdict"] for gang in answer["gangs"]]) == (0, ["placed", "placed"])
    job = a_job("later", template=asks(4), parallelism=1, completions=1)
    _, answer = plan(a_flat_workload(*order), work, job, nodes=3)
    assert [gang["verdict"] for gang in answer["gangs"]] == ["placed"] * 3
    _, answer = plan(a_flat_workload(*order), work, job)
    assert [gang["verdict"] for gang in answer["gangs"]] == ["placed", "placed", "impossible"]
    ready = a_jobset(a_step("init", 4), a_step("train", 4, 2, "init!"), annotations=names)
    code, answer = plan(a_flat_workload(*order), ready)
    assert (code, answer["verdict"]) == (1, "impossible")
