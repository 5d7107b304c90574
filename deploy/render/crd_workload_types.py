"""Workload of `gang-extender.dev/v1alpha1`: the templates of a tree, and the rules between them.

A recursive type cannot be written as a structural schema, so three composite levels are written
out. A rule compares a parent with a child, or the children of one parent; together the rules hold for
the whole tree. The exception is the uniqueness of names: see `_unique_names`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from deploy.render.crd_group_types import (
    FROZEN_POLICIES,
    OPTIONAL,
    ClaimList,
    CompositePolicy,
    Label,
    LeafConstraints,
    LeafPolicy,
    Policies,
    Rule,
    Segment,
    frozen,
    keyed_by,
)


class PodGroupTemplate(Policies, rename="camel", kw_only=True):
    """A leaf of the tree; only `gang.minCount` changes."""

    RULES: ClassVar = (frozen("resourceClaims"), *FROZEN_POLICIES)
    name: Label
    scheduling_policy: LeafPolicy
    scheduling_constraints: LeafConstraints = OPTIONAL
    resource_claims: ClaimList = OPTIONAL


def _same_names(field: str) -> Rule:
    """Return the rule that no template is added or removed; it compares names, so order does not matter."""
    rule = (
        f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field})"
        f" || (size(self.{field}) == size(oldSelf.{field})"
        f" && self.{field}.all(t, oldSelf.{field}.exists(o, o.name == t.name))))"
    )
    return Rule(rule, f"no item of {field} can be added or removed; recreate the workload")


def _size(field: str) -> str:
    return f"(has(self.{field}) ? size(self.{field}) : 0)"


def _or(owner: str, field: str, default: str) -> str:
    return f"(has({owner}.{field}) ? {owner}.{field} : {default})"


def _every_child(holds: str, lists: tuple[str, ...]) -> str:
    """Return the CEL expression that `holds` is true for every child template `t`."""
    return " && ".join(f"(!has(self.{name}) || self.{name}.all(t, {holds}))" for name in lists)


CHILDREN = Meta(max_length=8, extra_json_schema=keyed_by("name"))
LISTS = ("podGroupTemplates", "compositePodGroupTemplates")


def _unique_names(below: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return the rules that template names are unique among children, and among the children of two children.

    Other names are not compared: all pairs of 4,672 names exceed the cost that an API server allows
    for a rule.

    Args:
        below: Lists whose names are compared between composite children; empty if that costs too much.
    """
    leaves, inner = (f"self.{name}" for name in LISTS)
    children = (
        f"!has({leaves}) || !has({inner})"
        f" || !{inner}.exists(c, {leaves}.exists(t, t.name == c.name))"
    )
    cousins = [
        f"(a.name == b.name || !has(a.{list_a}) || !has(b.{list_b})"
        f" || !a.{list_a}.exists(x, b.{list_b}.exists(y, x.name == y.name)))"
        for list_a in below
        for list_b in below
    ]
    uncles = [
        f"(!has(a.{name}) || !a.{name}.exists(x, x.name == a.name || x.name == b.name))"
        for name in below
    ]
    message = "template names are unique in the whole Workload"
    if not below:
        return (Rule(children, message),)
    relatives = f"!has({inner}) || {inner}.all(a, {inner}.all(b, {' && '.join(cousins + uncles)}))"
    return (Rule(children, message), Rule(relatives, message))


def _composite_rules(lists: tuple[str, ...], below: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return the rules of a composite template.

    Args:
        lists: Fields of its children.
        below: As in `_unique_names`.
    """
    is_all = "has(t.disruptionMode) && has(t.disruptionMode.all)"
    alike = [
        Rule(
            _every_child(f"{_or('t', field, default)} == {_or('self', field, default)}", lists),
            f"all templates of one tree share one {field}",
        )
        for field, default in (("priorityClassName", "''"), ("priority", "0"))
    ]
    return (
        Rule(
            f"{' + '.join(_size(name) for name in lists)} > 0",
            "a composite template needs at least one child template",
        ),
        Rule(
            "!(has(self.disruptionMode) && has(self.disruptionMode.all))"
            f" || ({_every_child(is_all, lists)})",
            "a template that is disrupted as a whole (all) has only children that are all",
        ),
        *(_unique_names(below) if len(lists) > 1 else ()),
        *alike,
        *(_same_names(name) for name in lists),
        *FROZEN_POLICIES,
    )


class _CompositeTemplate(Policies, rename="camel", kw_only=True):
    """An inner node of the tree; only `gang.minGroupCount` and `gang.requiredGroups` change."""

    RULES: ClassVar = _composite_rules(LISTS, below=LISTS[:1])
    name: Label
    scheduling_policy: CompositePolicy
    pod_group_templates: Annotated[list[PodGroupTemplate], CHILDREN] = OPTIONAL


class TooDeep(Struct):
    """Never accepted: a fifth level."""

    name: Label


NO_CHILDREN = Meta(
    max_length=0,
    description="A template tree has at most 4 levels: this list must be empty.",
    extra_json_schema=keyed_by("name"),
)


class LowestComposite(_CompositeTemplate, rename="camel", kw_only=True):
    """A composite template whose children are leaves."""

    RULES: ClassVar = _composite_rules(LISTS[:1], below=())
    composite_pod_group_templates: Annotated[list[TooDeep], NO_CHILDREN] = OPTIONAL


class MiddleComposite(_CompositeTemplate, rename="camel", kw_only=True):
    """A composite template below the top."""

    RULES: ClassVar = _composite_rules(LISTS, below=())
    composite_pod_group_templates: Annotated[list[LowestComposite], CHILDREN] = OPTIONAL


class TopComposite(_CompositeTemplate, rename="camel", kw_only=True):
    """A composite template at the top of a tree."""

    composite_pod_group_templates: Annotated[list[MiddleComposite], CHILDREN] = OPTIONAL


class ControllerReference(Struct, rename="camel", kw_only=True):
    """The object the Workload was made for; a hint for tools."""

    api_group: Annotated[str, Meta(max_length=253)] = OPTIONAL
    kind: Segment
    name: Segment


def _all_alike(field: str, default: str) -> Rule:
    """Return the rule that the top templates share a field; other rules hold between a template and its children."""
    each = [
        f"(!has(self.{name}) || self.{name}.all(t, {_or('t', field, default)}"
        f" == {_or(f'self.{name}[0]', field, default)}))"
        for name in LISTS
    ]
    return Rule(" && ".join(each), f"all templates of one Workload share one {field}")


class WorkloadSpec(Struct, rename="camel", kw_only=True):
    """Templates of one tree (or of flat groups); never consulted for a running group."""

    RULES: ClassVar = (
        Rule(
            f"({_size(LISTS[0])} > 0) != ({_size(LISTS[1])} > 0)",
            "set podGroupTemplates or compositePodGroupTemplates, not both, not neither",
        ),
        *_unique_names(below=LISTS),
        _all_alike("priorityClassName", "''"),
        _all_alike("priority", "0"),
        frozen("controllerRef"),
        _same_names("podGroupTemplates"),
        _same_names("compositePodGroupTemplates"),
    )
    controller_ref: ControllerReference = OPTIONAL
    pod_group_templates: Annotated[list[PodGroupTemplate], CHILDREN] = OPTIONAL
    composite_pod_group_templates: Annotated[list[TopComposite], CHILDREN] = OPTIONAL
