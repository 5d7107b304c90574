"""Convert the pod affinity, pod anti-affinity and topology spread of a pod to `PodRule` of the core, required or preferred.

Namespaces are not watched, so terms that select namespaces by label are reported as not modelled.
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
    PodPreference,
    PodRule,
    RuleKind,
)

_NO_POD = NodeSelectorRequirement("", "In")  # without values it holds for no label


def pod_rules(pod: api.Pod) -> tuple[tuple[PodRule, ...], tuple[str, ...]]:
    """Return the rules of a pod.

    Returns:
        The rules, sorted; and the texts of those that are not modelled, sorted.
    """
    affinity, rules = pod.spec.affinity, set[PodRule]()
    unmodelled = set[str]()
    for term in affinity.pod_anti_affinity.required:
        about = _about(pod, term)
        if about is None:
            unmodelled.add(f"{AVOIDS_PODS}{term.topology_key}")
        else:
            rules.add(PodRule("apart", (term.topology_key,), (about,)))
    if terms := affinity.pod_affinity.required:
        every = tuple(about for term in terms if (about := _about(pod, term)) is not None)
        if len(every) < len(terms):
            unmodelled.update(f"{NEEDS_PODS}{term.topology_key}" for term in terms)
        else:
            rules.add(PodRule("near", tuple(term.topology_key for term in terms), every))
    rules.update(_spread(pod, anyway=False))
    return tuple(sorted(rules, key=repr)), tuple(sorted(unmodelled))


def pod_preferences(pod: api.Pod) -> tuple[tuple[PodPreference, ...], tuple[str, ...]]:
    """Return the rules about other pods that a pod prefers, sorted; and the texts of those that are not modelled, sorted."""
    affinity, unseen = pod.spec.affinity, set[str]()
    preferred = [PodPreference(rule) for rule in _spread(pod, anyway=True)]
    both: tuple[tuple[RuleKind, tuple[api.WeightedPodAffinityTerm, ...]], ...] = (
        ("near", affinity.pod_affinity.preferred),
        ("apart", affinity.pod_anti_affinity.preferred),
    )
    for kind, terms in both:
        for weighted in terms:
            term = weighted.pod_affinity_term
            about = _about(pod, term)
            rule = PodRule(kind, (term.topology_key,), () if about is None else (about,))
            if about is None:
                unseen.add(f"preferred {rule.text} of namespaces that a label selects")
            elif weighted.weight:
                preferred.append(PodPreference(rule, weighted.weight))
    return tuple(sorted(preferred, key=repr)), tuple(sorted(unseen))


def _spread(pod: api.Pod, *, anyway: bool) -> Iterator[PodRule]:
    for constraint in pod.spec.topology_spread_constraints:
        if (constraint.when_unsatisfiable == "ScheduleAnyway") != anyway:
            continue
        own = _of_keys(pod.metadata.labels, constraint.match_label_keys, "In")
        labels = (*label_requirements(constraint.label_selector), *own)
        yield PodRule(
            kind="spread",
            keys=(constraint.topology_key,),
            about=(AboutPods((pod.metadata.namespace,), labels),),
            skew=constraint.max_skew,
            least_domains=constraint.min_domains or 1,
            honors_affinity=constraint.node_affinity_policy != "Ignore",
            honors_taints=constraint.node_taints_policy == "Honor",
        )


def _about(pod: api.Pod, term: api.PodAffinityTerm) -> AboutPods | None:
    """Return the pods that a term selects; None if it selects namespaces by label."""
    selector = term.namespace_selector
    if selector is not None and (selector.match_labels or selector.match_expressions):
        return None
    namespaces = tuple(sorted(set(term.namespaces)))
    if selector is not None:
        namespaces = ()
    elif not namespaces:
        namespaces = (pod.metadata.namespace,)
    pod_labels = pod.metadata.labels
    labels = (
        *label_requirements(term.label_selector),
        *_of_keys(pod_labels, term.match_label_keys, "In"),
        *_of_keys(pod_labels, term.mismatch_label_keys, "NotIn"),
    )
    return AboutPods(namespaces, tuple(dict.fromkeys(labels)))


def label_requirements(selector: api.LabelSelector | None) -> tuple[NodeSelectorRequirement, ...]:
    """Return the requirements of a selector; None selects no pod, an empty one every pod."""
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
    """Return requirements with the pod's own values, as the API server does; keys without a label are skipped."""
    return tuple(NodeSelectorRequirement(k, operator, (labels[k],)) for k in keys if k in labels)
