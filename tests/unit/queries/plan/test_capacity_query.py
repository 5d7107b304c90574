"""`plan` as a capacity tool: copies, nodes that are away or added, requirements that are dropped or lowered."""

from __future__ import annotations

import itertools
import json
import random

import pytest
import yaml

from tests.support.hypothesis_profile import daily
from tests.support.service.command_line import run_command
from tests.support.service.manifest_builders import (
    GPU,
    RACK,
    a_fleet,
    a_gang,
    a_group,
    a_node,
    a_pod,
    an_object,
)
from tests.support.service.workload_builders import a_job, a_jobset

HOST = "kubernetes.io/hostname"
HIGH = an_object("PriorityClass", "high", "scheduling.k8s.io/v1", "", value=1000)
TREE = "gang-extender.dev/tree"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Plan objects on a cluster; gives (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(cluster, wanted, *options):
        (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all(cluster))
        (tmp_path / "wanted.yaml").write_text(yaml.safe_dump_all(wanted))
        words = ("plan", "--cluster", "cluster.yaml", "-f", "wanted.yaml", *options)
        done = run_command(*words, GANG_EXTENDER_DATA_DIR=str(tmp_path / "data"))
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def ask(run):
    """The same as JSON: (exit code, answer)."""

    def call(cluster, wanted, *options):
        code, out, err = run(cluster, wanted, *options, "-o", "json")
        assert code in (0, 1), err
        return code, json.loads(out)

    return call


# --- copies


def test_copies_are_planned_one_after_the_other(ask):
    """Three racks of 8 GPUs, gangs of 6 in one rack: three fit, the fourth finds 2 GPUs in each rack."""
    fleet = a_fleet("3 racks x 2 nodes", gpu=4)
    code, found = ask(fleet, a_gang("g", pods=6, topo=RACK), "--copies", "4")
    assert code == 1
    assert found["copies"] == {"wanted": 4, "fit": 3, "proved": True, "limited": False}
    assert [(one["gang"], one["copy"], one["verdict"]) for one in found["gangs"]] == [
        ("default/g", 1, "placed"),
        ("default/g-2", 2, "placed"),
        ("default/g-3", 3, "placed"),
        ("default/g-4", 4, "impossible"),
    ]
    racks = [one["domains"][one["gang"].partition("/")[2]][RACK] for one in found["gangs"][:3]]
    assert sorted(racks) == ["r0", "r1", "r2"]
    assert found["gangs"][1]["assignments"][0]["pod"] == "default/g-0-2"
    assert found["verdict"] == "impossible"
    code, found = ask(fleet, a_gang("g", pods=6, topo=RACK), "--copies", "3")
    assert (code, found["verdict"], found["copies"]["fit"]) == (0, "placed", 3)


def test_max_copies_prints_a_number_and_why_the_next_does_not_fit(run, ask):
    """The first line is the answer; exit 0 when one copy fits, 1 when none does."""
    fleet, gang = a_fleet("3 racks x 2 nodes", gpu=4), a_gang("g", pods=6, topo=RACK)
    code, out, err = run(fleet, gang, "--max-copies")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == [
        "3 copies of PodGroup default/g fit",
        "Copy 4 (PodGroup default/g-4) does not fit: impossible, proved",
    ]
    assert "needs 6 pods in one topology.example.com/rack" in lines[2]
    code, found = ask(fleet, gang, "--max-copies")
    assert (code, found["verdict"]) == (0, "placed")
    assert found["copies"] == {"wanted": 0, "fit": 3, "proved": True, "limited": False}
    code, found = ask(fleet, a_gang("g", pods=9, topo=RACK), "--max-copies")
    assert (code, found["verdict"], found["copies"]["fit"]) == (1, "impossible", 0)


@pytest.mark.parametrize("seed", daily(4, range(12)))
def test_max_copies_is_what_planning_each_copy_of_a_file_finds(ask, seed):
    """The number against arithmetic (pods of one GPU in one rack), and against files that have the copies written out."""
    draw = random.Random(seed)
    racks = [[draw.randint(1, 4) for _ in range(draw.randint(1, 3))] for _ in range(3)]
    fleet = [
        a_node(f"n{r}{n}", {RACK: f"r{r}"}, gpu=gpus)
        for r, nodes in enumerate(racks)
        for n, gpus in enumerate(nodes)
    ]
    pods = draw.randint(2, 5)
    expected = sum(sum(nodes) // pods for nodes in racks)
    _, found = ask(fleet, a_gang("g", pods=pods, topo=RACK), "--max-copies")
    assert (found["copies"]["fit"], found["copies"]["proved"]) == (expected, True)
    written = [a_gang(f"g{n}", pods=pods, topo=RACK) for n in range(expected + 1)]
    if expected:
        code, found = ask(fleet, [*itertools.chain(*written[:expected])])
        assert (code, [one["verdict"] for one in found["gangs"]]) == (0, ["placed"] * expected)
    code, found = ask(fleet, [*itertools.chain(*written)])
    assert (code, [one["verdict"] for one in found["gangs"]].count("placed")) == (1, expected)


def test_a_search_that_ends_early_does_not_prove_the_number(run, ask):
    """With a budget of one search node the first copy is unknown, and the answer states it."""
    draw = random.Random(2)
    fleet = [
        a_node(f"n{r}{n}", {RACK: f"r{r}"}, gpu=draw.randint(5, 9), cpu=str(draw.randint(5, 9)))
        for r in range(2)
        for n in range(3)
    ]
    amounts = [{GPU: draw.randint(1, 4), "cpu": str(draw.randint(1, 4))} for _ in range(7)]
    shapes = [a_pod(f"g-{n}", "g", requests=amount) for n, amount in enumerate(amounts)]
    gang = [a_group("g", gang=7, topo=RACK), *shapes]
    code, found = ask(fleet, gang, "--max-copies", "--search-budget", "1")
    assert not found["copies"]["proved"]
    assert found["gangs"][-1]["verdict"] == "unknown"
    code, out, _ = run(fleet, gang, "--max-copies", "--search-budget", "1")
    assert "More copies may fit: the search budget was used up" in out
    assert code == 1


def test_a_workload_is_copied_before_it_becomes_a_tree(ask):
    """The copies are Jobs and JobSets of their own, with trees of their own names."""
    fleet = a_fleet("1 racks x 4 nodes", gpu=2)
    code, found = ask(fleet, [a_job("fit", pods=2)], "--copies", "2")
    assert code == 0
    assert [one["workload"] for one in found["gangs"]] == ["Job/default/fit", "Job/default/fit-2"]
    assert len({one["gang"] for one in found["gangs"]}) == 2
    code, found = ask(a_fleet("1 racks x 4 nodes", gpu=4), [a_jobset()], "--max-copies")
    fit = found["copies"]["fit"]
    assert fit >= 1
    assert [one["workload"] for one in found["gangs"]] == [
        "JobSet/default/train" + (f"-{n}" if n > 1 else "") for n in range(1, fit + 2)
    ]


def test_the_whole_tree_is_copied_also_what_only_the_cluster_has(ask):
    """A member in -f, its groups and its running siblings in --cluster: a copy has all of them, pending."""
    root = a_group("top", gang=2, composite=True)
    leaves = [a_group(name, gang=1, parent="top") for name in ("left", "right")]
    runs = a_pod("left-0", "left", requests={GPU: 1}, node="n0")
    wanted = a_pod("right-0", "right", requests={GPU: 1})
    code, found = ask([*a_fleet("4 nodes", gpu=1), root, *leaves, runs], [wanted], "--max-copies")
    assert (code, found["copies"]["fit"]) == (0, 2)
    second = found["gangs"][1]
    assert second["gang"] == "default/top-2"
    assert {line["pod"] for line in second["assignments"]} == {
        "default/left-0-2",
        "default/right-0-2",
    }


def test_names_that_exist_are_left_out(ask):
    """With a gang g-2 in the cluster the copy of g is g-3."""
    there = a_gang("g-2", pods=1)
    code, found = ask([*a_fleet("2 nodes"), *there], a_gang("g", pods=1), "--copies", "2")
    assert code == 0
    assert [one["gang"] for one in found["gangs"]] == ["default/g", "default/g-3"]


def test_a_copy_evicts_no_copy_before_it(ask):
    """Two trees of different priority on capacity for three pods: one copy fits, the important tree evicts no other copy."""
    low, high = a_gang("low", pods=1), a_gang("high", pods=1)
    high[0]["spec"]["priorityClassName"] = "high"
    high[1]["spec"]["priorityClassName"] = "high"
    code, found = ask([HIGH, a_node("n0", gpu=3)], [*low, *high], "--max-copies")
    assert (code, found["copies"]["fit"]) == (0, 1)
    assert all(one["victims"] == [] for one in found["gangs"])
    assert [(one["gang"], one["verdict"]) for one in found["gangs"]] == [
        ("default/high", "placed"),
        ("default/low", "placed"),
        ("default/high-2", "placed"),
        ("default/low-2", "impossible"),
    ]


def test_copies_may_evict_what_runs(ask, run):
    """Running pods of lower priority are victims of a copy, and --no-preemption spares them."""
    fleet = [
        HIGH,
        a_node("n0", gpu=2),
        *(a_pod(f"r{n}", requests={GPU: 1}, node="n0") for n in (0, 1)),
    ]
    gang = a_gang("g", pods=1)
    for one in gang:
        one["spec"]["priorityClassName"] = "high"
    _, found = ask(fleet, gang, "--max-copies")
    assert found["copies"]["fit"] == 2
    assert [len(one["victims"]) for one in found["gangs"]] == [1, 1, 0]
    _, out, _ = run(fleet, gang, "--copies", "2")
    assert out.splitlines()[2].split()[:5] == ["1", "default/g", "1", "1", "pod"]
    code, found = ask(fleet, gang, "--max-copies", "--no-preemption")
    assert (code, found["copies"]["fit"]) == (1, 0)


# --- nodes that are away, and further ones


def test_a_node_that_is_away_takes_its_pods_along(ask):
    """By name and by label; a pod of a planned tree is planned again elsewhere."""
    fleet = a_fleet("2 racks x 2 nodes", gpu=2)
    runs = [
        a_pod("other", requests={GPU: 2}, node="r0-n0"),
        a_pod("g-0", "g", requests={GPU: 1}, node="r0-n1"),
    ]
    gang = [a_group("g", gang=2), a_pod("g-1", "g", requests={GPU: 1})]
    code, found = ask([*fleet, *runs], gang, "--without", f"{RACK}=r0")
    assert code == 0
    assert found["given"] == [f"without {RACK}=r0 (2 nodes) and the 2 pods there"]
    (root,) = found["gangs"]
    assert {line["pod"] for line in root["assignments"]} == {"default/g-0", "default/g-1"}
    assert {line["node"].partition("-")[0] for line in root["assignments"]} == {"r1"}
    code, found = ask(fleet, a_gang("g", pods=8), "--without", "r0-n0")
    assert (code, found["verdict"]) == (1, "impossible")


def test_further_nodes_are_empty_and_in_the_domains_of_their_model(ask):
    """Two more nodes like a full one add capacity to its rack; each is a host of its own."""
    fleet = [a_node("n0", {RACK: "r0", "serial": "n0"}, gpu=1), a_node("n1", {RACK: "r1"}, gpu=1)]
    full = a_pod("full", requests={GPU: 1}, node="n0")
    gang = a_gang("g", pods=2, topo=RACK)
    assert ask([*fleet, full], gang)[0] == 1
    code, found = ask([*fleet, full], gang, "--with", "2xn0")
    assert code == 0
    assert {line["node"] for line in found["gangs"][0]["assignments"]} == {"n0-new-1", "n0-new-2"}
    assert found["gangs"][0]["domains"] == {"g": {RACK: "r0"}}
    assert found["given"] == ["with 2 more empty nodes like n0: n0-new-1 to n0-new-2"]
    code, found = ask(fleet, a_gang("g", pods=2, topo=HOST), "--with", "4xn0")
    assert (code, found["verdict"]) == (1, "impossible")


def test_what_describes_the_state_of_the_model_is_left_out(ask):
    """A cordoned node that is not ready is a model too; a taint that the user set is kept."""
    model = a_node("n0", gpu=1)
    model["spec"] = {
        "unschedulable": True,
        "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
    }
    assert ask([model], a_gang("g", pods=1), "--with", "n0")[0] == 0
    model["spec"]["taints"].append({"key": "team", "value": "a", "effect": "NoSchedule"})
    assert ask([model], a_gang("g", pods=1), "--with", "n0")[0] == 1


def test_away_and_further_nodes_go_together(ask):
    """The model may itself be away, and the new node is not."""
    fleet = a_fleet("1 racks x 2 nodes", gpu=1)
    code, found = ask(fleet, a_gang("g", pods=3), "--without", f"{RACK}=r0", "--with", "3xr0-n0")
    assert code == 0
    assert {line["node"] for line in found["gangs"][0]["assignments"]} == {
        "r0-n0-new-1", "r0-n0-new-2", "r0-n0-new-3",
    }  # fmt: skip


# --- requirements


def test_a_requirement_is_dropped_or_lowered(ask):
    """One rack holds 4 of 6 pods: without the constraint, or with a minimum of 4, the gang fits."""
    fleet, gang = a_fleet("2 racks x 1 nodes", gpu=4), a_gang("g", pods=6, topo=RACK)
    assert ask(fleet, gang)[0] == 1
    code, found = ask(fleet, gang, "--relax", "g:topology")
    assert (code, len(found["gangs"][0]["assignments"])) == (0, 6)
    assert found["given"] == [f"PodGroup default/g without its topology constraint ({RACK})"]
    code, found = ask(fleet, gang, "--relax", "default/g:minCount=4")
    assert (code, len(found["gangs"][0]["assignments"])) == (0, 4)
    assert found["given"] == ["PodGroup default/g with minCount 4 in place of 6"]
    _, found = ask(fleet, gang, "--relax", "PodGroup/default/g:topology", "--max-copies")
    assert found["copies"]["fit"] == 1


def test_copies_are_relaxed_too(ask):
    """Gangs of 3 in racks of 4 GPUs: 2 fit in 2 racks, with a minimum of 2 in any rack the extra pods fill up."""
    fleet, gang = a_fleet("2 racks x 1 nodes", gpu=4), a_gang("g", pods=3, topo=RACK)
    assert ask(fleet, gang, "--max-copies")[1]["copies"]["fit"] == 2
    _, found = ask(fleet, gang, "--max-copies", "--relax", "g:topology", "--relax", "g:minCount=2")
    assert found["copies"]["fit"] == 3


def test_the_role_of_a_workload_names_its_group(ask):
    """A group of a JobSet can be named by the name of the ReplicatedJob."""
    code, found = ask(
        a_fleet("1 racks x 4 nodes", gpu=4), [a_jobset()], "--relax", "worker:minGroupCount=1"
    )
    assert code == 0
    assert found["given"][0].endswith("with minGroupCount 1 in place of 2")


WRONG = [
    (("--without", "r0-n"), 'without "r0-n": the cluster has no node of this name; did you mean r0-n'),
    (("--without", f"{RACK}s=r0"), f"no node has the label {RACK}s; did you mean {RACK}?"),
    (("--without", f"{RACK}=r9"), f"no node has this value of {RACK}; its values are r0, r1"),
    (("--with", "4xr0-n7"), 'the cluster has no node "r0-n7"; did you mean r0-n'),
    (("--with", "0xr0-n0"), "0 nodes change nothing"),
    (("--with", "four"), "it is not of the form 4xNODE"),
    (("--with", "10001xr0-n0"), "adds more than 10000 nodes"),
    (("--with", f"{10**12}xr0-n0"), "adds more than 10000 nodes"),
    (("--relax", "gg:topology"), 'no planned tree has a group "gg"; the groups are default/g'),
    (("--relax", "g"), "write GROUP:topology, GROUP:slices, GROUP:exclusive, GROUP:minCount=N or GROUP:minGroupCount=N"),
    (("--relax", "g:minCuont=1"), 'has no requirement "minCuont"; did you mean minCount?'),
    (("--relax", "g:minCount=9"), 'minCount of PodGroup default/g is 2; write a number from 1 to 2, found "9"'),
    (("--relax", "g:minCount="), 'found ""'),
    (("--relax", "g:minGroupCount=1"), "has minCount, not minGroupCount"),
    (("--relax", "g:slices"), "PodGroup default/g has no slices"),
    (("--relax", "g:topology=x"), "topology takes no value"),
    (("--copies", "0"), "--copies: '0' is below 1"),
    (("--copies", "1001"), "1001"),
    (("--copies", "x"), "--copies"),
    (("--copies", "2", "--max-copies"), "give one of them"),
    (("--max-copies", "--all-pending"), "max-copies: counts copies of the trees that are given"),
    (("--max-copies", "--relax", "x:topology"), 'no planned tree has a group "x"'),
]  # fmt: skip


@pytest.mark.parametrize(("options", "text"), WRONG, ids=lambda one: str(one)[:40])
def test_wrong_options_are_named_with_what_would_be_right(run, options, text):
    """Exit 2, nothing on stdout, and a message with option, value and what exists."""
    code, out, err = run(a_fleet("2 racks x 2 nodes"), a_gang("g", pods=2, topo=RACK), *options)
    assert (code, out) == (2, ""), err
    assert text in err
    assert "Traceback" not in err


def test_a_name_of_two_groups_is_ambiguous(run):
    """The message has both, and either can be written."""
    other = a_gang("g", pods=1)
    for one in other:
        one["metadata"]["namespace"] = "other"
    wanted = [*a_gang("g", pods=1), *other]
    code, _, err = run(a_fleet("2 nodes"), wanted, "--relax", "g:minCount=1")
    assert (code, "PodGroup/default/g or PodGroup/other/g" in err) == (2, True)
    assert run(a_fleet("2 nodes"), wanted, "--relax", "other/g:minCount=1")[0] == 0


def test_copies_need_pod_templates(run):
    """A PodGang has none, so the message has what to give."""
    gang = an_object("PodGang", "p", "scheduler.grove.io/v1alpha1", spec={"podgroups": []})
    code, _, err = run(a_fleet("2 nodes"), [gang, *a_gang("g", pods=1)], "--copies", "2")
    assert code == 2
    assert "PodGang/default/p: has no pod templates" in err


# --- several trees


def test_several_trees_get_a_verdict_each_and_a_total(run):
    """In queue order: priority, creation, file order; the last line counts them."""
    first, second, large = a_gang("a", pods=1), a_gang("b", pods=1), a_gang("c", pods=9)
    for one in large:
        one["spec"]["priorityClassName"] = "high"
    code, out, _ = run([HIGH, *a_fleet("2 nodes", gpu=1)], [*first, *second, *large])
    assert code == 1
    heads = [line for line in out.splitlines() if line.startswith("PodGroup")]
    assert [head.partition(" (")[0] for head in heads] == [
        "PodGroup default/c: impossible", "PodGroup default/a: placed", "PodGroup default/b: placed",
    ]  # fmt: skip
    assert out.splitlines()[-1] == "3 trees in queue order: 2 placed, 1 impossible"


# --- lost members


@pytest.mark.parametrize("options", [(), ("--without", "r1-2")])
def test_lost_members_are_planned_as_their_group_asks(ask, options):
    """The rack of a running gang has no node left for its two lost members; the next one has."""
    constraints = {"topology": [{"key": RACK}], "lostMembers": "Widen"}
    bound = [a_pod(f"old-{n}", "g", node=f"r0-{n}", requests={GPU: 1}) for n in range(2)]
    nodes = [a_node(f"r0-{n}", {RACK: "r0"}, gpu=1) for n in range(2)]
    nodes += [a_node(f"r1-{n}", {RACK: "r1"}, gpu=1) for n in range(3)]
    lost = [a_pod(f"new-{n}", "g", requests={GPU: 1}) for n in range(2)]
    group = a_group("g", gang=4, schedulingConstraints=constraints)
    code, answer = ask([*nodes, group, *bound], lost, *options)
    assert (code, answer["verdict"]) == (0, "placed")
    assert {line["node"] for line in answer["gangs"][0]["assignments"]} == {"r1-0", "r1-1"}
