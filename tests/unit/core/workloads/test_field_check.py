"""The table of fields: it has every field that is read here, and what it does not have is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import inspect

from extender.core.workloads.fields.field_check import _NOT_USED, field_notes, types, version_of
from extender.core.workloads.kind_table import KINDS, OBJECT_KINDS
from extender.core.workloads.kinds.podcliqueset_podgangs import PODCLIQUESET_SPEC
from tests.support.planning.controller_records import record

RECORDS = (Path(__file__).parents[3] / "golden" / "controllers").glob("*/*.json")


def fields_read(kind: inspect.Type, of: str, path: str):
    """Yield the path of each field of a type that the table does not have."""
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from fields_read(one, of, path)
    elif isinstance(kind, inspect.DictType):
        yield from fields_read(kind.value_type, types().get(of, {}).get("*", ""), path)
    elif isinstance(kind, inspect.VarTupleType | inspect.ListType):
        yield from fields_read(kind.item_type, of, path)
    elif isinstance(kind, inspect.StructType) and of:
        for field in kind.fields:
            if field.encode_name not in types()[of]:
                yield f"{path}.{field.encode_name}"
            else:
                below = types()[of][field.encode_name]
                yield from fields_read(field.type, below, f"{path}.{field.encode_name}")


READ = {one.kind: one.spec_type for one in KINDS if one.spec_type} | {
    "PodCliqueSet": PODCLIQUESET_SPEC
}
LATER = {  # of a version that is not released
    "JobSet": ["spec.scheduling"],
    "LeaderWorkerSet": ["spec.scheduling"],
    "DisaggregatedSet": ["spec.roles.spec.scheduling", "spec.scheduling"],
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_the_table_has_the_fields_that_are_read(kind):
    unknown = fields_read(inspect.type_info(READ[kind]), types()[kind]["spec"], "spec")
    assert sorted(unknown) == LATER.get(kind, [])


def test_the_types_of_the_table_exist():
    for name, fields in types().items():
        assert {of for of in fields.values() if of} <= types().keys(), name
    for name, fields in _NOT_USED.items():
        assert fields.keys() <= types()[name].keys()
    assert types().keys() >= {
        "Pod",
        "PodSpec",
        "CronJob",
        "RayJob",
        "RayService",
        *(kind.kind for kind in OBJECT_KINDS),
    }
    assert version_of("LeaderWorkerSet") == "LWS v0.9.0"


@pytest.mark.parametrize("name", sorted(f"{one.parent.name}/{one.name}" for one in RECORDS))
def test_objects_of_real_controllers_have_no_unknown_field(name):
    for thing in record(name).items:
        assert [*field_notes(thing["kind"], thing)] == []


@pytest.mark.parametrize(
    ("kind", "thing", "texts"),
    [
        ("Job", {"spec": {"paralelism": 2, "template": {"spec": {"nodeSelecter": {}, "containers": [{"resuorces": {}}]}}}},
         ["unknown spec.paralelism: there is no such field in Kubernetes v1.37.2, so it is not used; did you mean parallelism?",
          "unknown spec.template.spec.nodeSelecter: there is no such field in Kubernetes v1.37.2, so it is not used; "
          "did you mean nodeSelector?",
          "unknown spec.template.spec.containers[0].resuorces: there is no such field in Kubernetes v1.37.2, so it is not used; "
          "did you mean resources?"]),
        ("Job", {"spce": {}, "spec": {"parallelism": None, "selecter": None}},
         ["unknown spce: there is no such field in Kubernetes v1.37.2, so it is not used; did you mean spec?"]),
        ("JobSet", {"spec": {"volumeClaimPolicies": [{"templates": []}], "placementPolicy": {}, "slices": 2}},
         ["unused spec.volumeClaimPolicies: is not used: the nodes that the volumes of its claims can be used on are not known",
          "constraint spec.placementPolicy: there is no such field in JobSet v0.12.0, so it is not used",
          "unknown spec.slices: there is no such field in JobSet v0.12.0, so it is not used"]),
        ("PodGang", {"spec": {"podgroups": [{"topologyConstraint": {"spreadConstraint": {}}}]}},
         ["constraint spec.podgroups[0].topologyConstraint.spreadConstraint: there is no such field in Grove v0.1.0-alpha.12-rc1, "
          "so it is not used; did you mean packConstraint?"]),
        ("PyTorchJob", {"spec": {"pytorchReplicaSpecs": {"Worker": {"replica": 2}}, "runPolicy": {"schedulingPolicy": {"minAvailable": 2}}}},
         ["unknown spec.pytorchReplicaSpecs.Worker.replica: there is no such field in training-operator v1.9.3, so it is not used; "
          "did you mean replicas?",
          "unused spec.runPolicy.schedulingPolicy.minAvailable: is not used: the gang has all pods; for fewer write the annotation "
          "gang-extender.dev/min"]),
        ("Service", {"spec": {"x": 1}}, []),
    ],
)  # fmt: skip
def test_fields_that_are_not_used_are_named(kind, thing, texts):
    assert [f"{note.kind} {note}" for note in field_notes(kind, thing)] == texts
