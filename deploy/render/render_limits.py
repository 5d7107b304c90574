"""Render the admission policy that limits what users put into groups.

    python -m deploy.render.render_limits > deploy/kubernetes/group-limits.yaml

Owns the limits and their reasons. A group that is over a limit already can still be changed otherwise, and deleted: only
a value that gets worse is refused. A test compares the file with the output.
"""

from __future__ import annotations

import functools
import sys
from typing import Final

from deploy.render import confinement_expressions as cel
from deploy.render.crd_group_types import SUBDOMAIN_PATTERN
from deploy.render.render_validating import Policy, Rule, Validation, policy_text
from deploy.render.tree_policy_expressions import labels_of, text, texts
from extender.core.model.pod_groups import CHILDREN_MAX
from extender.ports.written_names import PARENT_ANNOTATIONS

MIN_COUNT_MAX: Final = 10_000  # pods; two for each of the 5,000 nodes that a cluster may have
ANNOTATIONS_MAX: Final = 16_384  # characters of all keys and values; etcd allows 262,144 bytes
SYSTEM_CLASSES: Final = "system-"  # prefix of the names that Kubernetes reserves
_limit: Final = functools.partial(Validation, forbidden=False)
HEADER = """\
# Generated from deploy/render/render_limits.py; do not edit:
#   python -m deploy.render.render_limits > deploy/kubernetes/group-limits.yaml
#
# What users may put into groups, ours and the built-in ones; how many groups a namespace may have is for a
# ResourceQuota (quota-example.yaml). Other limits: change the numbers here, or do not apply this file.
"""


def render() -> str:
    """Return the text of `deploy/kubernetes/group-limits.yaml`."""
    return HEADER + policy_text(_policy())


def _policy() -> Policy:
    annotations, old = "variables.annotations", "variables.oldAnnotations"
    is_update = "request.operation == 'UPDATE'"
    return Policy(
        name="gang-extender-group-limits",
        comment="Every group costs memory and time of all namespaces: counts that no cluster has, annotations of any size.",
        rules=(
            Rule(
                ("gang-extender.dev", "scheduling.k8s.io"),
                ("podgroups", "compositepodgroups"),
                ("CREATE", "UPDATE"),
            ),
        ),
        conditions={
            "not-being-deleted": "!has(object.metadata.deletionTimestamp)",
            "changes-more-than-finalizers": f"!({is_update}) || object.spec != oldObject.spec\n"
            f"|| {labels_of('object', 'annotations')} != {labels_of('oldObject', 'annotations')}",
        },
        variables={
            "exempt": cel.is_exempt(),
            "annotations": labels_of("object", "annotations"),
            "oldAnnotations": f"{is_update} ? {labels_of('oldObject', 'annotations')} : {{}}",
            "pods": _minimum("object", "minCount"),
            "oldPods": f"{is_update} ? {_minimum('oldObject', 'minCount')} : 0",
            "groups": _minimum("object", "minGroupCount"),
            "oldGroups": f"{is_update} ? {_minimum('oldObject', 'minGroupCount')} : 0",
            "characters": _characters(annotations),
            "oldCharacters": _characters(old),
        },
        validations=(
            _limit(
                f"variables.pods <= {MIN_COUNT_MAX} || variables.pods <= variables.oldPods",
                f"spec.schedulingPolicy.gang.minCount is at most {MIN_COUNT_MAX}",
            ),
            _limit(
                f"variables.groups <= {CHILDREN_MAX} || variables.groups <= variables.oldGroups",
                f"spec.schedulingPolicy.gang.minGroupCount is at most {CHILDREN_MAX}, the most child groups of a group",
            ),
            _limit(
                f"variables.exempt || {is_update} || !has(object.spec.priorityClassName)\n"
                f"|| !object.spec.priorityClassName.startsWith({text(SYSTEM_CLASSES)})",
                f"spec.priorityClassName begins with {SYSTEM_CLASSES}, which groups have only in exempt namespaces",
            ),
            _limit(
                f"variables.characters <= {ANNOTATIONS_MAX} || variables.characters <= variables.oldCharacters",
                f"metadata.annotations have at most {ANNOTATIONS_MAX} characters together",
            ),
            _limit(
                f"{texts(PARENT_ANNOTATIONS)}.all(key, !(key in {annotations}) || {annotations}[key] == ''\n"
                f"|| {annotations}[key].matches(r'{SUBDOMAIN_PATTERN}')\n"
                f"|| (key in {old} && {old}[key] == {annotations}[key]))",
                f"the annotation {PARENT_ANNOTATIONS[0]} is the name of a CompositePodGroup in the same namespace",
            ),
        ),
    )


def _minimum(expression: str, field: str) -> str:
    """Return a minimum of a group; 0 where it has none."""
    path = f"{expression}.spec.schedulingPolicy"
    return (
        f"(has({path}) && has({path}.gang) && has({path}.gang.{field}) ? {path}.gang.{field} : 0)"
    )


def _characters(annotations: str) -> str:
    return f"size({annotations}.map(key, key + {annotations}[key]).join(''))"


if __name__ == "__main__":
    sys.stdout.write(render())
