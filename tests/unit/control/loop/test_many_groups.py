"""A composite with 1,000 groups, which --max-children allows."""

from __future__ import annotations

import msgspec

from extender.core.log.events import GangAdmitted, GangInvalid
from extender.core.model.cluster_view import forest_after, forest_of
from extender.core.model.pod_groups import CHILDREN_MAX
from tests.support.service.fakes import FakeCluster, Stage
from tests.support.service.manifest_builders import GPU, a_group, a_node, a_pod

GROUPS = 1000


def a_thousand_groups(max_children: int) -> FakeCluster:
    """Make 125 nodes with eight GPUs, and a composite of 1,000 groups of one pod with one GPU."""
    cluster = FakeCluster()
    cluster.seen = msgspec.structs.replace(cluster.seen, max_children=max_children)
    cluster.add(
        *(a_node(f"n{n}", gpu=8) for n in range(GROUPS // 8)),
        a_group("all", composite=True, gang=GROUPS),
        *(a_group(f"g{n}", gang=1, parent="all") for n in range(GROUPS)),
        *(a_pod(f"g{n}-0", f"g{n}", requests={GPU: 1}) for n in range(GROUPS)),
    )
    return cluster


async def test_all_of_them_are_admitted_at_once():
    """Every group gets its pod; the tree is planned in the planner process, because it has more than 50 groups."""
    async with Stage(cluster=a_thousand_groups(GROUPS)) as stage:
        await stage.lead()
        await stage.one_pass()
        (admitted,) = stage.event_data(GangAdmitted)
        assert len(admitted.assignments) == GROUPS
        assert len({a.group for a in admitted.assignments}) == GROUPS
        assert admitted.exhausted


async def test_the_default_refuses_them_and_names_the_setting():
    """The tree is invalid; the text has how to raise the limit."""
    async with Stage(cluster=a_thousand_groups(CHILDREN_MAX)) as stage:
        await stage.lead()
        await stage.one_pass()
        (invalid,) = stage.event_data(GangInvalid)
        assert invalid.problems == (
            "B16: CompositePodGroup/default/all has more than 512 child groups: raise --max-children of "
            "serve (GANG_EXTENDER_MAX_CHILDREN), or make several trees of it",
        )


def test_the_limit_holds_for_trees_that_change():
    """A tree that is built again after a change is judged by the same limit."""
    cluster = FakeCluster()
    cluster.seen = msgspec.structs.replace(cluster.seen, max_children=2)
    cluster.add(*(a_group(f"g{n}", gang=1, parent="all") for n in range(2)))
    cluster.add(a_group("all", composite=True, gang=2))
    before, forest = cluster.seen, forest_of(cluster.seen)
    (tree,) = forest.trees.values()
    assert tree.problems == ()
    cluster.add(a_group("one-more", gang=1, parent="all"))
    (tree,) = forest_after(before, forest, cluster.seen).trees.values()
    assert [problem.rule for problem in tree.problems] == ["B16"]
