"""Warnings about valid trees with unusual settings (W1 to W8, B11, E11, X10: docs/reference/groups.md).

The trees are scheduled all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from immutables import Map

from extender.core.admit.plan_request import rank_problem
from extender.core.model.cluster_view import ClusterView
from extender.core.model.ids import GroupKey, NodeName
from extender.core.model.message_formatting import EMPTY, did_you_mean, domain_text, join_names
from extender.core.model.nodes import WIDTH, Node
from extender.core.model.pod_groups import PROBLEMS_NAMED_MAX, Blueprint, Group, Tree, composite_key
from extender.core.workloads.workload_object import MANAGED_BY

COMPARED_MAX = 16  # names of a tree that are compared with a misspelt one: a comparison is slow


def template_mismatches(view: ClusterView, tree: Tree) -> Mapping[GroupKey, str]:
    """Return a text for each group that differs from the template of its Workload (B11).

    There is none for a Workload that does not exist: groups are self-contained (A.4).
    """
    by_key = {group.key: group for group in tree.groups}
    texts: dict[GroupKey, str] = {}
    for group in tree.groups:
        if group.workload is None:
            continue
        templates = view.blueprints.get((group.key.namespace, group.workload))
        if templates is None:
            continue
        above = (
            by_key.get(composite_key(group.key.namespace, group.parent)) if group.parent else None
        )
        text = _mismatch(group, above, {t.name: t for t in templates})
        if text:
            texts[group.key] = text
    return texts


def _mismatch(group: Group, above: Group | None, templates: Mapping[str, Blueprint]) -> str:
    name = group.template or ""
    template = templates.get(name)
    where = f'Workload "{group.workload}"'
    if template is None:
        return f'{group.key} names template "{name}", which {where} does not have'
    if template.kind != group.key.kind:
        return f'{group.key} names template "{name}", which is for a {template.kind} in {where}'
    parent = above.template or "" if above is not None else ""
    if template.parent != parent:
        return (
            f'{group.key} of template "{name}" stands below template "{parent or "none"}", '
            f'in {where} it stands below "{template.parent or "none"}"'
        )
    return ""


class NodeLabels:
    """Topology keys of the nodes of a view; each key and each pair of keys is evaluated once."""

    def __init__(self, nodes: Map[NodeName, Node]) -> None:
        self.nodes = nodes
        self.absent = functools.cache(self._absent)
        self.nesting = functools.cache(self._nesting)
        self.is_wider = functools.cache(self._is_wider)
        self.repeated = functools.cache(self._repeated)
        self._pairs = functools.cache(self._distinct_pairs)

    def has(self, key: str) -> bool:
        """Return whether some node has the label `key`."""
        return key in self._every_key

    def _absent(self, key: str) -> str:
        """Return a text about a key that no node has, with the nearest key that nodes have."""
        return f"topology key {key} is on no node (W3){did_you_mean(key, self._every_key)}"

    def _nesting(self, outer: str, inner: str) -> str:
        """Return the warning about one key below another, or an empty string."""
        if self.is_wider(inner, outer):
            return (
                f"topology key {inner} is wider than {outer} above it, "
                "so it asks for nothing more; put the wider key higher (W2)"
            )
        around = self._pairs(outer, inner)[1]
        twice = sorted(narrow for narrow, values in around.items() if len(values) > 1)
        if twice:
            return (
                f"value {twice[0] or EMPTY} of {inner} stands under several values of {outer}; "
                "each counts as a domain of its own there (W4)"
            )
        return ""

    def _is_wider(self, key: str, other: str) -> bool:
        """Return whether each domain of `other` is in one of `key`, and some of these have several."""
        inside, around = self._pairs(other, key)
        return all(len(values) == 1 for values in inside.values()) and any(
            len(values) > 1 for values in around.values()
        )

    def _repeated(self, key: str) -> tuple[str, str]:
        """Return the wider key under several values of which a value of a key is found, and a text; empty: there is none."""
        repetitions = ((wider, self._twice(wider, key)) for wider in sorted(self._wider_keys(key)))
        return next((pair for pair in repetitions if pair[1]), ("", ""))

    @functools.cached_property
    def _every_key(self) -> set[str]:
        return set[str]().union(*(node.labels for node in self.nodes.values()))

    def _distinct_pairs(
        self, outer: str, inner: str
    ) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
        """Return the values of the inner key by value of the outer one, and the other way round."""
        inside: dict[str, set[str]] = {}
        around: dict[str, set[str]] = {}
        pairs = {(node.labels.get(outer), node.labels.get(inner)) for node in self.nodes.values()}
        for wide, narrow in pairs:
            if wide is not None and narrow is not None:
                inside.setdefault(wide, set()).add(narrow)
                around.setdefault(narrow, set()).add(wide)
        return inside, around

    def _wider_keys(self, key: str) -> Iterable[str]:
        """Yield keys of nodes that name wider places, by their last word, or perhaps do: those of the same prefix."""
        prefix, _, word = key.rpartition("/")
        rank = WIDTH.get(word)
        for other in self._every_key:
            its_prefix, _, its_word = other.rpartition("/")
            its_rank = WIDTH.get(its_word)
            if rank is not None and its_rank is not None:
                if its_rank < rank:
                    yield other
            elif other != key and (its_rank is not None or (prefix and prefix == its_prefix)):
                yield other

    def _twice(self, wider: str, key: str) -> str:
        """Return that a value of a key is under several values of one that is wider, or an empty string."""
        inside, around = self._pairs(wider, key)
        widths = WIDTH.get(wider.rpartition("/")[2]), WIDTH.get(key.rpartition("/")[2])
        if None in widths and not any(len(values) > 1 for values in inside.values()):
            return ""  # nothing shows that it is wider
        twice = sorted(value for value, values in around.items() if len(values) > 1)
        if not twice or (None in widths and 2 * len(twice) > len(around)):
            return ""
        places = join_names([domain_text(wider, value) for value in sorted(around[twice[0]])])
        return (
            f"value {twice[0] or EMPTY} of {key} is on nodes of several values of {wider} ({places}), and counts as one domain: "
            f"where these are different places, give them different values, or constrain a group above by {wider} (W4)"
        )


def collect_warnings(
    view: ClusterView, tree: Tree, labels: NodeLabels | None = None
) -> Mapping[GroupKey, tuple[str, ...]]:
    """Return warnings per group of a tree. The structure of a tree that was made from a workload causes none.

    Args:
        tree: The tree; if it breaks a rule, only the warnings of its group objects are returned.
        labels: The cache for the nodes of `view`, shared between calls.
    """
    if tree.problems:
        return {group.key: group.warnings for group in tree.groups if group.warnings}
    labels = labels or NodeLabels(view.nodes)
    by_group: dict[GroupKey, tuple[str, ...]] = {}
    above: dict[GroupKey, tuple[str, ...]] = {}
    basic = _basic_leaves(tree)
    for group in tree.groups:  # parents come before their children
        wider = above.get(group.key, ())
        warnings = [*group.warnings]
        if len(tree.children.get(group.key, ())) == 1 and group.managed_by != MANAGED_BY:
            warnings.append(f"{group.key} has one child group; it could be left out (W1)")
        warnings += _keys(group, wider, labels)
        warnings += _nearness(tree, group, labels)
        warnings += _slices(group, wider, labels)
        warnings += _lost_members(group)
        warnings += _soft_rules(tree, group)
        if problem := rank_problem(tree.members.get(group.key, ())):
            warnings.append(
                f"{group.key}: {problem}, so it has no rank order (W8); give each pod an index of its own, or none"
            )
        if group.key in basic:
            warnings.append(basic[group.key])
        if group.basic and group.disruption_mode == "all":
            each = "pod" if group.key.kind == "PodGroup" else "child group"
            warnings.append(
                f"{group.key} is basic and disrupted as a whole (all): each {each} is placed by itself, and all of "
                "them are evicted together; meant for a gang, and refused by Kubernetes 1.38 in built-in groups (E11)"
            )
        for child in tree.children.get(group.key, ()):
            above[child.key] = (*wider, *group.constraints.domain_keys)
        if warnings:
            by_group[group.key] = tuple(warnings)
    return by_group


def _basic_leaves(tree: Tree) -> Mapping[GroupKey, str]:
    """Return a text for each basic leaf below a gang, for at most `PROBLEMS_NAMED_MAX` leaves of one composite.

    Source:
        X10: upstream contradicts itself. LeaderWorkerSet makes such trees; since 1.38 a Workload with them is
        refused, and kube-scheduler's own group scheduling refuses such trees of built-in groups as a whole.
    """
    return {
        leaf.key: f"{leaf.key} is basic below {parent.key}, which is a gang and counts it from its first placed pod "
        "on; Kubernetes 1.38 refuses such a tree of built-in groups: give the leaf a gang policy with minCount 1 (X10)"
        for parent in tree.groups
        if not parent.basic
        for leaf in [
            child
            for child in tree.children.get(parent.key, ())
            if child.basic and child.key.kind == "PodGroup" and child.managed_by != MANAGED_BY
        ][:PROBLEMS_NAMED_MAX]
    }


def _keys(group: Group, above: tuple[str, ...], labels: NodeLabels) -> Iterable[str]:
    yield from _preferred_keys(group, above, labels)
    for key in group.constraints.domain_keys:
        if not labels.has(key):
            yield f"{group.key}: {labels.absent(key)}"
            continue
        for outer in above:
            text = labels.nesting(outer, key) if outer != key else ""
            if text:
                yield f"{group.key}: {text}"
        wider, text = labels.repeated(key)
        if text and wider not in above and wider not in group.constraints.domain_keys:
            yield f"{group.key}: {text}"


def _preferred_keys(group: Group, above: tuple[str, ...], labels: NodeLabels) -> Iterable[str]:
    required = (*group.constraints.domain_keys, *above)
    for position, key in enumerate(group.constraints.preferred):
        name = f"preferred topology key {key}"
        if not labels.has(key):
            yield f"{group.key}: {labels.absent(key)}"
        elif key in required:
            yield f"{group.key}: {name} is required, too, so it asks for nothing more; leave it out (W2)"
        elif narrow := next((other for other in required if labels.is_wider(key, other)), ""):
            yield f"{group.key}: {name} is wider than {narrow}, which is required, so it asks for nothing more; leave it out (W2)"
        else:
            later = (
                k for k in group.constraints.preferred[position + 1 :] if labels.is_wider(key, k)
            )
            if narrow := next(later, ""):
                yield f"{group.key}: {name} is wider than {narrow}, which is named after it; name the narrowest first (W2)"


def _nearness(tree: Tree, group: Group, labels: NodeLabels) -> Iterable[str]:
    for near in group.constraints.near:
        if tree.partner(group, near) is None:
            names = tree.partner_names(group)
            help_ = "there is none to name: leave it out"
            if names:
                help_ = f"name one by its metadata.name ({join_names(names)}), or leave it out"
            yield (
                f"{group.key}: near {near.group}: the tree has no such group that is neither above nor below this one, so it asks "
                f"for nothing; {help_} (W5){did_you_mean(near.group, names[:COMPARED_MAX])}"
            )
        elif not labels.has(near.key):
            yield f"{group.key}: {labels.absent(near.key)}"


def _slices(group: Group, above: tuple[str, ...], labels: NodeLabels) -> Iterable[str]:
    required = (*group.constraints.domain_keys, *above)
    for position, level in enumerate(group.constraints.slices):
        larger = group.constraints.slices[:position]
        if not labels.has(level.key):
            yield f"{group.key}: {labels.absent(level.key)}"
        elif narrow := next(
            (k for k in required if k == level.key or labels.is_wider(level.key, k)), ""
        ):
            yield (
                f"{group.key}: slices of {level.size} by {level.key}: the whole group is in one {narrow}, so they ask for nothing "
                "more; leave them out (W2)"
            )
        elif around := next((o for o in larger if labels.is_wider(level.key, o.key)), None):
            yield (
                f"{group.key}: slices of {level.size} by {level.key}: each slice of {around.size} is in one {around.key}, so they ask "
                f"for nothing more; give {level.key} the larger size, or leave it out (W2)"
            )


def _lost_members(group: Group) -> Iterable[str]:
    choice = group.constraints.lost_members
    if choice != "Wait" and not (group.constraints.topology or group.constraints.slices):
        yield (
            f"{group.key}: lostMembers {choice}: the group has no required topology key and no slices, so it asks for nothing; name one in "
            "schedulingConstraints.topology, or leave it out (W6)"
        )


def _soft_rules(tree: Tree, group: Group) -> Iterable[str]:
    texts: dict[str, None] = {}
    for soft in {id(s): s for pod in tree.members.get(group.key, ()) if (s := pod.shape.soft)}.values():  # fmt: skip
        texts |= dict.fromkeys(soft.unseen)
        for preference in soft.pods:
            if any(preference.rule.match(pod.namespace, pod.labels) for pod in tree.pods):
                texts[f"preferred {preference.rule.text} among the members of its tree"] = None
    for text in texts:
        yield (
            f"{group.key}: {text} is not taken into account (W7); make it required where it must hold"
        )
