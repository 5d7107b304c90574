"""Render the CustomResourceDefinitions of `gang-extender.dev` from their types.

    python -m deploy.render.render_crds > deploy/kubernetes/crds.yaml

Owns the structural schema that an API server requires: no references (every type is written out where
it is used, three composite levels deep), no titles, rules of a type as `x-kubernetes-validations`.
A test compares the file with the output.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import yaml

from deploy.render import crd_group_types, crd_profile_types, crd_workload_types
from extender.ports.written_names import SCHEDULED

GROUP = "gang-extender.dev"
VERSION = "v1alpha1"
HEADER = """\
# Generated from deploy/render/crd_*_types.py; do not edit:
#   python -m deploy.render.render_crds > deploy/kubernetes/crds.yaml
"""

Schema = dict[str, Any]  # JSON schema; it is built and printed, never read


class Column(msgspec.Struct, frozen=True):
    """A column of `kubectl get`."""

    name: str
    type: str
    path: str


class Kind(msgspec.Struct, frozen=True):
    """One kind of the group."""

    name: str
    short: str
    doc: str
    spec: type
    columns: tuple[Column, ...]
    status: type | None = None
    scope: str = "Namespaced"


AGE = Column("Age", "date", ".metadata.creationTimestamp")
PARENT = Column("Parent", "string", ".spec.parentCompositePodGroupName")


def _scheduled(condition: str) -> Column:
    return Column("Scheduled", "string", f'.status.conditions[?(@.type=="{condition}")].status')


KINDS = (
    Kind(
        name="Workload",
        short="gwl",
        doc="Workload holds the templates from which a controller makes the groups of a tree.",
        spec=crd_workload_types.WorkloadSpec,
        columns=(
            Column("Controller", "string", ".spec.controllerRef.kind"),
            Column("Name of controller", "string", ".spec.controllerRef.name"),
            AGE,
        ),
    ),
    Kind(
        name="PodGroup",
        short="gpg",
        doc="PodGroup is a leaf of a tree: pods that are scheduled together.",
        spec=crd_group_types.PodGroupSpec,
        status=crd_group_types.GroupStatus,
        columns=(
            Column("Minimum", "integer", ".spec.schedulingPolicy.gang.minCount"),
            PARENT,
            _scheduled(SCHEDULED["PodGroup"]),
            AGE,
        ),
    ),
    Kind(
        name="CompositePodGroup",
        short="gcpg",
        doc="CompositePodGroup is an inner node of a tree: groups that are scheduled together.",
        spec=crd_group_types.CompositePodGroupSpec,
        status=crd_group_types.GroupStatus,
        columns=(
            Column("Minimum", "integer", ".spec.schedulingPolicy.gang.minGroupCount"),
            PARENT,
            _scheduled(SCHEDULED["CompositePodGroup"]),
            AGE,
        ),
    ),
    Kind(
        name="TreeProfile",
        short="gtp",
        doc="TreeProfile is how trees are made from workloads whose label gang-extender.dev/tree names it.",
        spec=crd_profile_types.TreeProfileSpec,
        scope="Cluster",
        # a column shows one value: that of the kind with most choices
        columns=(Column("JobSet gang", "string", '.spec.kinds[?(@.kind=="JobSet")].gang'), AGE),
    ),
)


def structural_schema(of: type) -> Schema:
    """Return the schema of a type with every reference written out and every rule attached."""
    (top,), named = msgspec.json.schema_components([of])
    return _written_out(top, named)


def _written_out(schema: Schema, named: dict[str, Schema]) -> Schema:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        rules = _rules_of(name)
        merged = {**named[name], **{k: v for k, v in schema.items() if k != "$ref"}}
        if rules:
            merged["x-kubernetes-validations"] = [msgspec.to_builtins(rule) for rule in rules]
        return _written_out(merged, named)
    out = {key: value for key, value in schema.items() if key != "title"}
    if "items" in out:
        out["items"] = _written_out(out["items"], named)
    if "properties" in out:
        out["properties"] = {
            name: _written_out(field, named) for name, field in out["properties"].items()
        }
    for key in ("properties", "required"):
        if not out.get(key, True):
            del out[key]
    return out


def _rules_of(name: str) -> tuple[crd_group_types.Rule, ...]:
    """Return the rules of a type by its name; a schema refers to a type by name only."""
    for module in (crd_group_types, crd_workload_types, crd_profile_types):
        if hasattr(module, name):
            rules: tuple[crd_group_types.Rule, ...] = getattr(getattr(module, name), "RULES", ())
            return rules
    raise LookupError(name)


def definition(kind: Kind) -> Schema:
    """Return the CustomResourceDefinition of a kind."""
    singular = kind.name.lower()
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": structural_schema(kind.spec),
    }
    version: Schema = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": column.name, "type": column.type, "jsonPath": column.path}
            for column in kind.columns
        ],
    }
    if kind.status is not None:
        properties["status"] = structural_schema(kind.status)
        version["subresources"] = {"status": {}}
    version["schema"] = {
        "openAPIV3Schema": {
            "description": kind.doc,
            "type": "object",
            "required": ["spec"],
            "properties": properties,
        }
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": kind.scope,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": f"{singular}s",
                "singular": singular,
                "shortNames": [kind.short],
                "categories": ["gang"],
            },
            "versions": [version],
        },
    }


class _Dumper(yaml.SafeDumper):
    """Writes no YAML anchors, so that every schema can be read in its place."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def render() -> str:
    """Return the text of `deploy/kubernetes/crds.yaml`."""
    documents = [definition(kind) for kind in KINDS]
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=100)
    return f"{HEADER}---\n{text}"


if __name__ == "__main__":
    sys.stdout.write(render())
