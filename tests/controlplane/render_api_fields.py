"""Write the table of all fields of the workload kinds, from the newest versions that the tests build (see `pin`).

    python -m tests.controlplane.render_api_fields GROVE

GROVE is a checkout of github.com/ai-dynamo/grove, which is no Go module; the others are read from the Go module cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

TARGET: Final = Path(__file__).parents[2] / "extender/core/workloads/fields/api_fields.txt"
WIDTH: Final = 118
ALIKE: Final = 0.75  # so much of a type of Kubernetes 1.37 must a CRD made with an older one have
ANY_KEY: Final = "*"  # the field of a map: all its values have one type
SMALL: Final = 3  # a type of so few fields must have the same
LEFT_OUT: Final = (
    "metrics",
    "headService",
    "serveService",
    "templateSpec",
    "status",
)  # large, and of other kinds
KUBERNETES: Final = "k8s.io/kubernetes@v1.37.2"
POD: Final = "io.k8s.api.core.v1."
BATCH: Final = "io.k8s.api.batch.v1."
APPS: Final = "io.k8s.api.apps.v1."
CRDS: Final = (  # module or folder, and the CRDs in it
    ("sigs.k8s.io/jobset@v0.12.0", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),
    ("sigs.k8s.io/lws@v0.9.0", "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
    ("sigs.k8s.io/lws@v0.9.0", "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml"),
    *(
        (
            "github.com/kubeflow/trainer/v2@v2.3.0",
            f"manifests/base/crds/trainer.kubeflow.org_{one}.yaml",
        )
        for one in ("trainjobs", "trainingruntimes", "clustertrainingruntimes")
    ),
    *(
        (
            "github.com/ray-project/kuberay/ray-operator@v1.6.2",
            f"config/crd/bases/ray.io_{one}.yaml",
        )
        for one in ("rayclusters", "rayjobs", "rayservices", "raycronjobs")
    ),
    *(
        (
            "github.com/kubeflow/training-operator@v1.9.3",
            f"manifests/base/crds/kubeflow.org_{one}.yaml",
        )
        for one in ("pytorchjobs", "tfjobs", "xgboostjobs", "paddlejobs", "jaxjobs")
    ),
    ("github.com/kubeflow/mpi-operator@v0.8.0", "manifests/base/kubeflow.org_mpijobs.yaml"),
)
GROVE: Final = "github.com/ai-dynamo/grove@v0.1.0-alpha.12-rc1"
GROVE_CRDS: Final = (
    "operator/api/core/v1alpha1/crds/grove.io_podcliquesets.yaml",
    "scheduler/api/core/v1alpha1/crds/scheduler.grove.io_podgangs.yaml",
)
Schema = Mapping[str, Any]


class Tables:
    """Types by name: fields, each with the name of its type or nothing."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self.types: dict[str, dict[str, str]] = {}

    def add_definition(self, name: str) -> str:
        """Add a type of Kubernetes and those of its fields; return its short name."""
        short = name.rpartition(".")[2]
        properties = self._definitions[name].get("properties")
        if not properties:
            return ""
        if short not in self.types:
            fields = self.types[short] = {}
            for field, value in properties.items():
                below = value.get("items") or value
                reference = below.get("$ref", "").rpartition("/")[2]
                fields[field] = self.add_definition(reference) if reference else ""
        return short

    def add_schema(self, name: str, schema: Schema) -> str:
        """Add the type of an object of a CRD; return its name, or that of an equal type, or nothing for any object."""
        schema = schema.get("items") or schema
        of_map = schema.get("additionalProperties")
        values = of_map if isinstance(of_map, dict) and of_map.get("properties") else None
        properties = {ANY_KEY: values} if values else schema.get("properties")
        if not properties:
            return ""
        if values is None and (
            known := next(
                (one for one in self.types if one != "ObjectMeta" and self._fits(schema, one)), ""
            )
        ):
            return known
        fields = {
            field: self.add_schema(f"{name}.{field}", value) if field not in LEFT_OUT else ""
            for field, value in properties.items()
        }
        if fields.keys() >= {"metadata", "spec"}:
            fields["metadata"] = "ObjectMeta"
        self.types[name] = fields
        return name

    def _fits(self, schema: Schema, short: str) -> bool:
        """Return whether a schema is that of a type, perhaps of an older version of Kubernetes."""
        schema = schema.get("items") or schema
        properties, fields = schema.get("properties"), self.types.get(short)
        if short == "ObjectMeta" or not properties or not fields:
            return short == "ObjectMeta" or not (properties or fields)
        if "containers" in properties or "containers" in fields:
            return "containers" in properties and "containers" in fields
        shared = properties.keys() & fields.keys()
        whole = max(len(properties), len(fields))
        same = len(shared) == whole or (whole > SMALL and len(shared) >= ALIKE * whole)
        return same and all(
            one in LEFT_OUT or self._fits(properties[one], fields[one]) for one in shared
        )


def crds(grove: Path) -> Iterator[tuple[str, Schema]]:
    """Yield the name of each kind and the schema of its objects."""
    cache = Path(subprocess.check_output(["go", "env", "GOMODCACHE"], text=True).strip())
    files = [cache / module / path for module, path in CRDS]
    files += [grove / path for path in GROVE_CRDS]
    for path in files:
        crd = yaml.load(path.read_text(), yaml.CSafeLoader)
        (version,) = (one for one in crd["spec"]["versions"] if one["storage"])
        yield crd["spec"]["names"]["kind"], version["schema"]["openAPIV3Schema"]


def main(grove: Path) -> None:
    """Write the table."""
    cache = Path(subprocess.check_output(["go", "env", "GOMODCACHE"], text=True).strip())
    swagger = cache / KUBERNETES / "api/openapi-spec/swagger.json"
    tables = Tables(json.loads(swagger.read_text())["definitions"])
    for name in ("Pod", "PodTemplateSpec"):
        tables.add_definition(POD + name)
    for name in ("Job", "CronJob"):
        tables.add_definition(BATCH + name)
    tables.add_definition(APPS + "StatefulSet")
    for kind, schema in crds(grove):
        fields = schema["properties"]
        spec = tables.add_schema(f"{kind}.spec", fields["spec"])
        tables.types[kind] = {"metadata": "ObjectMeta", "spec": spec} | {
            one: "" for one in fields if one not in ("metadata", "spec")
        }
    for short in [one for one in tables.types if one.endswith("Status")]:
        del tables.types[short]
    used = {of for fields in tables.types.values() for of in fields.values()}
    for name in [one for one in tables.types if "." in one and one not in used]:
        del tables.types[name]
    known = tables.types.keys()
    lines = []
    for short, fields in sorted(tables.types.items()):
        words = [f"{one}:{of}" if of in known else one for one, of in sorted(fields.items())]
        text = f"{short} = {' '.join(words)}"
        lines += textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    sources = sorted({KUBERNETES, GROVE, *(module for module, _ in CRDS)})
    TARGET.write_text(
        "# All fields of the workload kinds, made by `python -m tests.controlplane.render_api_fields`; not written by hand.\n"
        "# Below: the modules that they were read from; then a type with its fields in each line. `field:Type` has fields itself, and what is in\n"
        "# another one is not known.\n" + "\n".join(sources) + "\n\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
