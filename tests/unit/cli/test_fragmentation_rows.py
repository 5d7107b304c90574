"""`report fragmentation`: per level the largest free domain, and how many gangs of a shape fit at once."""

from __future__ import annotations

from extender.cli.commands.report_command import fragmentation_rows
from extender.core.model.nodes import Taint
from extender.queries.plan.moves_query import MovesInput, answer_moves
from extender.queries.plan.plan_dto import MovesQuestion
from extender.queries.plan.plan_query import PlanInput
from extender.queries.state.node_inventory import NodeInventoryReport, NodeLine
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import GPU, a_node, a_pod
from tests.unit.queries.plan.test_moves_of_objects import owned

NOT_READY = Taint(key="node.kubernetes.io/not-ready", value="", effect="NoSchedule")
RACK = "topology.example.com/rack"


def a_line(name, rack, used, *, unschedulable=False, taints=()):
    return NodeLine(
        node=name,
        labels={RACK: rack},
        taints=taints,
        unschedulable=unschedulable,
        deleting=False,
        allocatable={"cpu": 64_000, "nvidia.com/gpu": 4},
        ordinary={"nvidia.com/gpu": used},
        ordinary_pods=1,
        members={},
        member_pods=0,
    )


def test_shapes_of_a_node_and_of_a_rack():
    nodes = [
        a_line("a", "r0", 0),
        a_line("b", "r0", 0),
        a_line("c", "r1", 1),
        a_line("d", "r1", 0, unschedulable=True),
        a_line("e", "r1", 0, taints=(NOT_READY,)),
    ]
    report = NodeInventoryReport(not_current_reason="", topology_keys=[RACK], nodes=nodes)
    pods = [
        a_pod(f"p{i}", node=node, requests={GPU: 1}, metadata=owned("p"))
        for i, node in enumerate(("a", "c"))
    ]
    objects = [a_node(n.node, n.labels, gpu=4) for n in nodes if n.node != "d"]
    view = FakeCluster(*objects, *pods).view()

    def free(key, number):
        return answer_moves(
            view, MovesInput(plan=PlanInput(), asked=MovesQuestion(free=f"{key}={number}"))
        )

    rows = list(fragmentation_rows(report, free))
    assert [(row["level"], row["shape"], row["fits"]) for row in rows] == [
        ("node", "1 x 1", 11),
        ("node", "1 x 2", 5),
        ("node", "1 x 4", 2),
        (RACK, "1 x 4", 2),
        (RACK, "2 x 4", 1),
    ]
    assert {(row["level"], row["whole"], row["moves"]) for row in rows} == {
        ("node", None, ""),
        (RACK, 0, "1"),
    }
    assert {(row["level"], row["domain"], row["free"], row["total"]) for row in rows} == {
        ("node", "a", 4, 11),
        (RACK, "r0", 8, 11),
    }
