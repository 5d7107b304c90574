"""Workloads that start in steps: the trees that are planned for each step, and what all of them use together.

The controller makes the pods of a later step when an earlier one has ended, or is ready and runs on. Each step is planned
with what runs then, as one gang, on the cluster without what has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from extender.core.model.cluster_view import ClusterView, with_pod
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.pod_groups import Group, Tree
from extender.core.model.pods import Pod
from extender.core.workloads.tree_parts import PartStep

# of composites whose children start one after the other
Steps = Mapping[GroupKey, tuple[PartStep, ...]]
Usage = Mapping[str, int]  # resource -> amount


class GroupOrigin(msgspec.Struct, frozen=True, gc=False):
    """The workload that a group was made from, and the role of the group in it."""

    workload: str  # Kind/namespace/name
    role: str  # what the user calls it, such as the name of a ReplicatedJob; may be empty
    steps: tuple[PartStep, ...] = ()  # of a composite whose children start one after the other
    apart: tuple[str, ...] = ()  # of a root: the roots of the workload that never run beside it
    # by what its minimum is lowered: the text before the number and that behind it; empty: the workload has nothing for it
    lowered_by: tuple[str, str] = ("", "")


class RefusedWorkload(msgspec.Struct, frozen=True, gc=False):
    """A workload that no tree can be made from."""

    kind: str
    namespace: str
    name: str
    text: str  # names file, object, field and value, and what would help

    @property
    def label(self) -> str:
        """Return `Kind/namespace/name`."""
        return f"{self.kind}/{self.namespace}/{self.name}"


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a tree: what starts, and whether it fits beside what runs then."""

    step: str  # what the user calls it
    after: str  # the condition on which it starts; empty: it is the first
    verdict: str
    groups: tuple[str, ...]  # that run then, those that were started before and run on included


class TreeStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a tree: the tree as it is then, and the pods that are not there."""

    name: str
    after: str
    tree: Tree
    absent: frozenset[PodUid]
    groups: tuple[str, ...]  # the children that run, of the composites with steps


def steps_in(tree: Tree, origins: Mapping[GroupKey, GroupOrigin]) -> Steps:
    """Return the composites of a tree whose children start one after the other, with the steps whose groups exist."""
    by_group = {}
    for key, children in tree.children.items():
        origin = origins.get(key)
        names = {child.key.name for child in children}
        steps = [step for step in origin.steps if step.child in names] if origin is not None else []
        if len(steps) > 1:
            by_group[key] = tuple(steps)
    return by_group


def tree_steps(tree: Tree, steps: Steps) -> Iterable[TreeStep]:
    """Yield the steps of a tree; of several composites with steps, each is at its step of the same number, or at its last.

    In the tree of a step the children that run are a gang: if one of them has no place, the step never runs.
    """
    for number in range(max(map(len, steps.values()))):
        now = {key: of[min(number, len(of) - 1)] for key, of in steps.items()}
        names = dict.fromkeys(step.name for key, step in now.items() if number < len(steps[key]))
        conditions = dict.fromkeys(step.after for step in now.values() if step.after)
        step_tree = _tree_at(tree, now)
        members = {pod.uid for pod in step_tree.pods}
        yield TreeStep(
            name=" and ".join(names),
            after=" and ".join(conditions),
            tree=step_tree,
            absent=frozenset(pod.uid for pod in tree.pods if pod.uid not in members),
            groups=tuple(name for step in now.values() for name in step.runs),
        )


def _tree_at(tree: Tree, now: Mapping[GroupKey, PartStep]) -> Tree:
    """Return a tree with what runs of it, where composites have steps; these are gangs of all that runs."""
    groups: list[Group] = []
    children: dict[GroupKey, tuple[Group, ...]] = {}

    def runs(group: Group, names: Collection[str]) -> bool:
        below = tree.children.get(group.key, ())
        return group.key.name in names or any(runs(child, names) for child in below)

    def add(group: Group, names: Collection[str]) -> Group:
        """Add a group of which all runs, or of its children those with some names; return it."""
        step = now.get(group.key)
        names = names if step is None else step.runs
        below = tree.children.get(group.key, ())
        if names:
            below = tuple(child for child in below if runs(child, names))
            group = replace(group, basic=False, minimum=len(below), required=())
        groups.append(group)
        if group.key.kind == "CompositePodGroup":
            kept = [add(child, () if child.key.name in names else names) for child in below]
            children[group.key] = tuple(kept)
        return group

    root = add(tree.root, ())
    keys = {group.key for group in groups}
    members = {key: pods for key, pods in tree.members.items() if key in keys}
    return replace(tree, root=root, groups=tuple(groups), children=children, members=members)


def with_largest_use(
    view: ClusterView,
    runs: Sequence[Collection[PodUid]],
    nodes: Mapping[PodUid, NodeName],
    *,
    static: bool,
) -> ClusterView:
    """Return the cluster with the pods of a tree on their nodes, so that on each node the most counts that any step uses there.

    A later tree that fits beside it fits beside each of its steps.

    Args:
        runs: The pods that run in each step.
        static: They are not evicted for later trees.
    """
    used: dict[NodeName, Counter[str]] = {}
    for uids in sorted(runs, key=len, reverse=True):
        by_node: dict[NodeName, list[Pod]] = {}
        for uid in uids:
            if uid in nodes:
                by_node.setdefault(nodes[uid], []).append(view.pods[uid])
        for node, pods in by_node.items():
            before = used.setdefault(node, Counter())
            needs: Counter[str] = Counter()
            for pod in pods:
                needs.update(dict(pod.shape.requests))
            more = needs - before
            if not before:
                for pod in pods:
                    stays = pod.static or static
                    view = with_pod(view, replace(pod, node=node, static=stays))
            elif more:
                view = with_pod(view, _placeholder(pods[0], node, more))
            used[node] = before | needs
    return view


def _placeholder(like: Pod, node: NodeName, requests: Usage) -> Pod:
    """Return a pod that uses what one step uses beyond the others on a node."""
    shape = replace(like.shape, requests=tuple(sorted(requests.items())))
    return replace(
        like,
        uid=PodUid(f"{like.uid} on {node}"),
        name=f"{like.name}-on-{node}",
        group=None,
        labels={},
        shape=shape,
        node=node,
        static=True,
    )
