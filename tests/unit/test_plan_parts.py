"""`plan` on workloads whose parts are not alike: a head without which nothing runs, and parts that start one after the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import Object, a_group, a_node, a_pod, an_object
from tests.support.service.workload_builders import DEFAULT, a_template

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
    assert "CompositePodGroup default/root cannot be without PodGroup default/decode" in str(
        gang["reasons"]
    )
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
