"""Required rules of a pod about other pods: from the object of the API to `PodRule` of the core.

What depends on the labels of namespaces, which nobody here watches, is named as not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from extender.cluster import types as api
from extender.core.model.pods import (
    AVOIDS_PODS,
    NEEDS_PODS,
    AboutPods,
    NodeSelectorRequirement,
    Operator,
    PodRule,
)

_NO_POD = NodeSelectorRequirement("", "In")  # without values it holds for no label


def pod_rules(found: api.Pod) -> tuple[tuple[PodRule, ...], tuple[str, ...]]:
    """Read the rules of a pod.

    Returns:
        The rules, sorted, and in words those that cannot be evaluated.
    """
    affinity, rules = found.spec.affinity, set[PodRule]()
    unseen = set[str]()
    for term in affinity.pod_anti_affinity.required:
        about = _about(found, term)
        if about is None:
            unseen.add(f"{AVOIDS_PODS}{term.topology_key}")
        else:
            rules.add(PodRule("apart", (term.topology_key,), (about,)))
    if near := affinity.pod_affinity.required:
        every = tuple(about for term in near if (about := _about(found, term)) is not None)
        if len(every) < len(near):
            unseen.update(f"{NEEDS_PODS}{term.topology_key}" for term in near)
        else:
            rules.add(PodRule("near", tuple(term.topology_key for term in near), every))
    rules.update(_spread(found))
    return tuple(sorted(rules, key=repr)), tuple(sorted(unseen))


def _spread(found: api.Pod) -> Iterator[PodRule]:
    for one in found.spec.topology_spread_constraints:
        if one.when_unsatisfiable == "ScheduleAnyway":
            continue
        own = _of_keys(found.metadata.labels, one.match_label_keys, "In")
        labels = (*label_requirements(one.label_selector), *own)
        yield PodRule(
            kind="spread",
            keys=(one.topology_key,),
            about=(AboutPods((found.metadata.namespace,), labels),),
            skew=one.max_skew,
            least_domains=one.min_domains or 1,
            honors_affinity=one.node_affinity_policy != "Ignore",
            honors_taints=one.node_taints_policy == "Honor",
        )


def _about(found: api.Pod, term: api.PodAffinityTerm) -> AboutPods | None:
    """Say which pods a term is about; None where that depends on labels of namespaces."""
    chosen = term.namespace_selector
    if chosen is not None and (chosen.match_labels or chosen.match_expressions):
        return None
    namespaces = tuple(sorted(set(term.namespaces)))
    if chosen is not None:
        namespaces = ()
    elif not namespaces:
        namespaces = (found.metadata.namespace,)
    mine = found.metadata.labels
    labels = (
        *label_requirements(term.label_selector),
        *_of_keys(mine, term.match_label_keys, "In"),
        *_of_keys(mine, term.mismatch_label_keys, "NotIn"),
    )
    return AboutPods(namespaces, tuple(dict.fromkeys(labels)))


def label_requirements(selector: api.LabelSelector | None) -> tuple[NodeSelectorRequirement, ...]:
    """Convert a selector; none at all is about no pod, an empty one about every pod."""
    if selector is None:
        return (_NO_POD,)
    equal = (
        NodeSelectorRequirement(k, "In", (v,)) for k, v in sorted(selector.match_labels.items())
    )
    more = (
        NodeSelectorRequirement(r.key, r.operator, r.values) for r in selector.match_expressions
    )
    return (*equal, *more)


def _of_keys(
    labels: Mapping[str, str], keys: tuple[str, ...], operator: Operator
) -> tuple[NodeSelectorRequirement, ...]:
    """Demand the pod's own values, as the API server does; a key that it lacks says nothing."""
    return tuple(NodeSelectorRequirement(k, operator, (labels[k],)) for k in keys if k in labels)
