"""Reads the node groups of a cluster autoscaler from a file, and makes nodes of their templates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec

from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.manifest_loader import build, complete
from extender.cluster.manifests.yaml_reader import Document, Value, read_bytes
from extender.cluster.read.field_problems import field_problems
from extender.core.model.errors import BadInput, several
from extender.queries.plan.node_groups import GROUPS_MAX, NodeGroup
from extender.queries.plan.plan_dto import NodeGroupSpec

FORM = "a list of {name, max, template}, see docs/how-to/node-groups.md"


def read_node_groups(path: str) -> tuple[NodeGroupSpec, ...]:
    """Return the node groups of a file; their templates were checked.

    Raises:
        BadInput: The file cannot be read, or has another form; names group, field and value.
    """
    try:
        body = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"node groups {path}: {error.strerror}") from error
    documents = read_bytes(body, f"node groups {path}")
    if len(documents) != 1 or not isinstance(documents[0].value, list):
        raise BadInput(f"node groups {path}: is not {FORM}")
    try:
        specs = msgspec.convert(documents[0].value, tuple[NodeGroupSpec, ...])
    except msgspec.ValidationError as error:
        problems = [
            f"node groups {path}: [{number}]: {problem}"
            for number, spec in enumerate(documents[0].value)
            for problem in field_problems(spec, NodeGroupSpec, lambda _: frozenset())
        ]
        raise several(tuple(problems) or (f"node groups {path}: is not {FORM}",)) from error
    node_groups(specs, f"node groups {path}")
    return specs


def node_groups(specs: Sequence[NodeGroupSpec], where: str) -> tuple[NodeGroup, ...]:
    """Return node groups with a node each, made of their templates.

    Raises:
        BadInput: A template is no node, has no label or no resources, or a name comes twice.
    """
    if len(specs) > GROUPS_MAX:
        raise BadInput(f"{where}: has {len(specs)} node groups, {GROUPS_MAX} at most")
    groups: dict[str, NodeGroup] = {}
    for spec in specs:
        place = f"{where}: node group {spec.name}"
        if spec.name in groups:
            raise BadInput(f"{place}: is there twice")
        metadata = spec.template.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise BadInput(f"{place}: template.metadata: {metadata!r} is not an object")
        named = {**metadata, "name": spec.name.lower()}
        obj = {"apiVersion": "v1", "kind": "Node", **spec.template, "metadata": named}
        document = Document(where=f"{place}: template", value=cast("Value", obj))
        (node,) = build(complete(entries_in((document,), Role.CLUSTER))).world.view.nodes.values()
        if not node.labels:
            raise BadInput(
                f"{place}: template.metadata.labels: is empty; nodes of the group are known by its labels"
            )
        if not node.allocatable.keys() - {"pods"}:
            raise BadInput(
                f"{place}: template.status.allocatable: is empty; write what a new node has"
            )
        groups[spec.name] = NodeGroup(name=spec.name, max=spec.max, node=node)
    return tuple(groups.values())
