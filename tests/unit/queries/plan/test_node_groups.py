"""Node groups of a cluster autoscaler: which of them would help, by how many nodes, and what is wrong with a file."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from extender.cli.commands.explain_command import print_explanation
from extender.cluster.manifests.node_group_file import node_groups, read_node_groups
from extender.core.model.errors import BadInput
from extender.queries.explain.explain_service import ExplainService
from extender.queries.explain.name_lookup import parse_name
from extender.queries.plan.plan_dto import NodeGroupSpec, PlanReply
from tests.support.document_outputs import DOCS, DocumentOutputs
from tests.support.service.command_line import run_command
from tests.support.service.fakes import Stage
from tests.support.service.live_plans import live_plans
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_node, a_pod

DOCUMENT = DocumentOutputs("how-to/node-groups.md", "gang-extender explain")
GPUS = {GPU: 8}


def a_file(folder, *groups):
    path = folder / "groups.yaml"
    path.write_text(yaml.safe_dump([*groups]))
    return str(path)


def a_group_of(name="large", most=8, gpu=8, labels=None, **spec):
    template = {
        "metadata": {"labels": labels or {"pool": name}},
        "spec": spec,
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", GPU: str(gpu), "pods": "110"}},
    }
    return {"name": name, "max": most, "template": template}


async def explained(stage, specs, name="g"):
    service = ExplainService(
        stage.cluster,
        stage.leader,
        stage.clock,
        live_plans(stage).plan_live,
        node_groups(specs, "test"),
    )
    return await service.explain(parse_name(name, "default"))


def specs_of(*groups):
    return msgspec.convert(groups, tuple[NodeGroupSpec, ...])


@pytest.mark.parametrize(
    ("groups", "answer", "help_"),
    [
        ([a_group_of()], "it would fit if node group large grew by 3 nodes",
         "3 more nodes of node group large, which has 2 of 8"),
        ([a_group_of("small", gpu=4), a_group_of()], "it would fit if node group large grew by 3 nodes",
         "3 more nodes of node group large, which has 2 of 8"),
        ([a_group_of("huge", gpu=16)], "it would fit if node group huge grew by 2 nodes",
         "2 more nodes of node group huge, which has 0 of 8"),
        ([a_group_of(most=4)], "no node group alone would make it fit", ""),
        ([a_group_of(taints=[{"key": "x", "effect": "NoSchedule"}])], "no node group alone would make it fit", ""),
    ],
)  # fmt: skip
async def test_the_smallest_growth_that_helps_is_in_the_answer(groups, answer, help_) -> None:
    """Two nodes of `large` exist, five pods with a whole node each are wanted."""
    nodes = [a_node(f"n{n}", {"pool": "large"}, gpu=8) for n in range(2)]
    async with Stage(*nodes, *a_gang("g", pods=5, requests=GPUS)) as stage:
        await stage.lead()
        await stage.settled()
        found = await explained(stage, specs_of(*groups))
        assert found.answer.endswith(f"; {answer}"), found.answer
        assert "can never be placed on these nodes" in found.answer
        assert (help_ in found.help) == bool(help_)
        assert found.help[0] == help_ or not help_


async def test_one_node_less_would_not_do() -> None:
    """Each number is the smallest: the tree is planned with it, and with one node less."""
    nodes = [a_node(f"n{n}", {"pool": "large"}, gpu=8) for n in range(2)]
    runs = [a_pod(f"r{n}", node=f"n{n}", requests={GPU: 4}) for n in range(2)]
    async with Stage(*nodes, *runs, *a_gang("g", pods=9, requests={GPU: 3})) as stage:
        await stage.lead()
        await stage.settled()
        found = await explained(stage, specs_of(a_group_of()))
        assert "it would fit if node group large grew by 4 nodes" in found.answer
        for count, verdict in ((4, "placed"), (3, "impossible")):
            more = [a_node(f"more-{n}", {"pool": "large"}, gpu=8) for n in range(count)]
            question = {"groups": ["PodGroup/default/g"], "workload": more}
            result = await live_plans(stage).plan(msgspec.json.encode(question))
            assert msgspec.json.decode(result.body, type=PlanReply).gangs[0].verdict == verdict


async def test_a_topology_level_that_new_nodes_do_not_have_does_not_help() -> None:
    nodes = [a_node("n0", {RACK: "r0", "pool": "large"}, gpu=8)]
    async with Stage(*nodes, *a_gang("g", pods=2, requests=GPUS, topo=RACK)) as stage:
        await stage.lead()
        await stage.settled()
        without = await explained(stage, specs_of(a_group_of()))
        with_rack = await explained(
            stage, specs_of(a_group_of(labels={RACK: "r0", "pool": "large"}))
        )
        assert "no node group alone would make it fit" in without.answer
        assert "it would fit if node group large grew by 1 node" in with_rack.answer


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "is not a list of {name, max, template}"),
        ("- {name: a, max: 0, template: {}}", "[0]: max"),
        ("- {name: a, template: {}}", "max"),
        ("- {name: a, max: 1, templates: {}}", "templates"),
        ("- {name: a, max: 1, template: {status: {allocatable: {cpu: 1}}}}", "labels: is empty"),
        ("- {name: a, max: 1, template: {metadata: {labels: {a: b}}}}", "allocatable: is empty"),
        ("- {name: a, max: 1, template: {metadata: {labels: {a: b}}, status: {allocatable: {cpu: x}}}}", '"x"'),
        ("- {name: a, max: 1, template: {metadata: {labels: 1}}}", "labels"),
        ("a: [", "groups.yaml"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused(tmp_path, text, words) -> None:
    """The message names the file, the group and the field."""
    path = tmp_path / "groups.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as error:
        read_node_groups(str(path))
    assert words in str(error.value), error.value
    assert "groups.yaml" in str(error.value)


def test_a_file_that_is_not_there_and_a_name_that_comes_twice(tmp_path) -> None:
    with pytest.raises(BadInput, match=r"none\.yaml: No such file"):
        read_node_groups(str(tmp_path / "none.yaml"))
    with pytest.raises(BadInput, match="node group large: is there twice"):
        read_node_groups(a_file(tmp_path, a_group_of(), a_group_of()))
    (group,) = node_groups(read_node_groups(a_file(tmp_path, a_group_of())), "test")
    assert group.node.allocatable[GPU] == 8


async def test_the_example_in_the_document(tmp_path, capsys) -> None:
    """The file in docs/how-to/node-groups.md is read, and its output is that of `explain`."""
    text = (DOCS / "how-to/node-groups.md").read_text()
    path = tmp_path / "groups.yaml"
    path.write_text(text.partition("```yaml\n")[2].partition("```")[0])
    specs = read_node_groups(str(path))
    labels = {"pool": "gpu-large", "topology.kubernetes.io/zone": "z1"}
    nodes = [a_node(f"large-{n}", labels, gpu=8) for n in range(2)]
    taint = {"key": "nvidia.com/gpu", "operator": "Exists"}
    gang = a_gang("train", pods=5, requests=GPUS, tolerations=[taint])

    async def printed_for(name: str) -> str:
        async with Stage(*nodes, *gang) as stage:
            await stage.lead()
            await stage.settled()
            found = await explained(stage, specs, name)
        capsys.readouterr()
        print_explanation(found)
        return str(capsys.readouterr().out)

    await DOCUMENT.compare("an example", printed_for)


def test_plan_takes_node_groups_from_a_file_or_the_setting(tmp_path) -> None:
    """Exit 1, because the tree does not fit now; the growth that helps is the first hint. A wrong file: exit 2."""
    cluster, tree = tmp_path / "cluster.yaml", tmp_path / "tree.yaml"
    nodes = [a_node(f"n{n}", {"pool": "large"}, gpu=8) for n in range(2)]
    cluster.write_text(yaml.safe_dump_all(nodes))
    tree.write_text(yaml.safe_dump_all(a_gang("g", pods=5, requests=GPUS)))
    words = ("plan", "--cluster", str(cluster), "-f", str(tree), "-o", "json")
    path = a_file(tmp_path, a_group_of())
    for done in (
        run_command(*words, "--node-groups", path),
        run_command(*words, GANG_EXTENDER_NODE_GROUPS=path),
    ):
        assert done.returncode == 1, done.stderr
        (gang,) = msgspec.json.decode(done.stdout, type=PlanReply).gangs
        assert [(g.name, g.nodes, g.now, g.max) for g in gang.node_groups] == [("large", 3, 2, 8)]
        assert gang.help[0] == "3 more nodes of node group large, which has 2 of 8"
    wrong = run_command(*words, "--node-groups", str(cluster))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "is not a list of {name, max, template}" in wrong.stderr
