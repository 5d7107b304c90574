"""Hypothesis strategies for workloads of every kind: any combination of the fields that the table entries read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from extender.core.workloads.kind_table import BY_KIND, KINDS
from extender.core.workloads.tree_compiler import CompileRequest
from extender.core.workloads.tree_parts import ExistingGroup, LeafUse
from extender.core.workloads.tree_policy import DEFAULT_PROFILE, KindPolicy, NearRole, TreeProfile
from extender.core.workloads.workload_object import WorkloadObject

COMPILED = [one.kind for one in KINDS if one.parts is not None]
NAMES = st.sampled_from(["a", "b", "worker", "my-role", "long-name-" * 5 + "x"])
COUNTS = st.one_of(st.integers(0, 6), st.sampled_from([511, 512, 513, 2**31 - 1]))
PRIORITIES = st.sampled_from([""] * 9 + ["high"])
ANNOTATIONS = {
    "gang": st.sampled_from(["all", "per-job", "per-replicated-job", "some"]),
    "near": st.sampled_from(
        ["a=b~net/rack", "b=my-role~net/rack~net/block", "worker=leader~k", "a"]
    ),
    "topology": st.sampled_from(["leaf=net/rack", "root=net/block,leaf=net/rack", "root", ""]),
    "min": st.sampled_from(["1", "2", "a=1", "a=2,worker=1", "replica=2", "x"]),
    "workload": st.sampled_from(["plan", "Plan"]),
    "parent": st.sampled_from(["search", ""]),
}
PROFILES = st.sampled_from(["default", "default", "default", "own", "own", "gone"]).flatmap(
    lambda which: _PROFILES[which]
)
_PROFILES: dict[str, st.SearchStrategy[TreeProfile | None]] = {
    "default": st.just(DEFAULT_PROFILE),
    "gone": st.none(),
    "own": st.builds(
        lambda kind, policy: TreeProfile(name="p", kinds={kind: policy}),
        st.sampled_from(COMPILED),
        st.builds(
            KindPolicy,
            gang=st.sampled_from(["all", "per-replicated-job", "per-job"]),
            root_topology=st.sampled_from(["", "net/block"]),
            leaf_topology=st.sampled_from(["", "net/rack"]),
            near=st.sampled_from([(), (NearRole("leader", "worker", "net/rack"),)]),
            root_preferred=st.sampled_from([(), ("net/block", "net/row")]),
            leaf_preferred=st.sampled_from([(), ("net/rack", "net/block")]),
            read_topology=st.sampled_from([(), ("Kueue",)]),
            disruption_mode=st.sampled_from(["all", "single"]),
        ),
    ),
}


def _fields(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with most of these fields; null is a field that is not set."""
    return _drawn_fields(strategies)


@st.composite
def _drawn_fields(draw: st.DrawFn, strategies: dict[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    found = {}
    for key, strategy in strategies.items():
        choice = draw(st.integers(0, 7))
        if choice > 1:
            found[key] = draw(strategy)
        elif choice:
            found[key] = None
    return found


def _named(name: str, **strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda item, found: {**item, name: found}, _fields(**strategies), NAMES)


def _items(
    item: st.SearchStrategy[dict[str, Any]], key: str, most: int = 3
) -> st.SearchStrategy[Any]:
    some = st.lists(item, min_size=1, max_size=most, unique_by=lambda one: one[key])
    return st.integers(0, 9).flatmap(lambda choice: some if choice else st.just([]))


def _templates() -> st.SearchStrategy[dict[str, Any]]:
    leaf = st.sampled_from(
        ["job", "replicated-job", "role", "subgroup", "leader-and-subgroups", "x"]
    )
    return _fields(
        metadata=_fields(labels=_fields(**{"gang-extender.dev/leaf": leaf}).map(_without_null)),
        spec=_fields(priorityClassName=PRIORITIES),
    )


def _without_null(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if value is not None}


def _with_a_container(template: dict[str, Any]) -> dict[str, Any]:
    """Return a pod template that the operators of Kubeflow accept."""
    names = ("pytorch", "tensorflow", "xgboost", "paddle", "jax")
    containers = [{"name": name} for name in names]
    return {**template, "spec": {**(template.get("spec") or {}), "containers": containers}}


def _jobs() -> dict[str, st.SearchStrategy[Any]]:
    return {"parallelism": COUNTS, "completions": COUNTS, "template": _templates()}


def _job_sets() -> st.SearchStrategy[dict[str, Any]]:
    after = st.lists(_named("name", status=st.sampled_from(["Ready", "Complete"])), max_size=2)
    step = st.sampled_from(["dataset-initializer", "trainer"])
    labels = _fields(**{"trainer.kubeflow.org/trainjob-ancestor-step": step}).map(_without_null)
    job = _fields(metadata=_fields(labels=labels), spec=_fields(**_jobs()))
    replicated = _named("name", replicas=COUNTS, template=job, dependsOn=after)
    order = st.sampled_from(["AnyOrder", "InOrder"])
    return _fields(
        replicatedJobs=_items(replicated, "name"), startupPolicy=_fields(startupPolicyOrder=order)
    )


def _leader_workers() -> st.SearchStrategy[dict[str, Any]]:
    kind = st.sampled_from(["LeaderWorker", "LeaderExcluded"])
    templates = _fields(
        size=COUNTS,
        leaderTemplate=_templates(),
        workerTemplate=_templates(),
        subGroupPolicy=_fields(subGroupSize=COUNTS, subGroupPolicyType=kind),
    )
    return _fields(
        replicas=COUNTS,
        leaderWorkerTemplate=templates,
        startupPolicy=st.sampled_from(["LeaderCreated", "LeaderReady"]),
    )


def _pack() -> st.SearchStrategy[dict[str, Any]]:
    keys = st.sampled_from(["net/rack", "", "", "", "", "", "not a key"])
    return _fields(packConstraint=_fields(required=keys, preferred=keys))


def _replica_specs(
    field: str, roles: tuple[str, ...], **more: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    template = _templates().map(_with_a_container)
    replicas = _fields(replicas=COUNTS, template=template)
    return _fields(**{field: _fields(**dict.fromkeys((*roles, "worker"), replicas))}, **more)


SPECS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "Job": _fields(**_jobs()),
    "JobSet": _job_sets(),
    "LeaderWorkerSet": _leader_workers(),
    "DisaggregatedSet": _fields(roles=_items(_named("name", spec=_leader_workers()), "name", 2)),
    "PodGang": _fields(
        podgroups=_items(
            _named(
                "name",
                minReplicas=COUNTS,
                topologyConstraint=_pack(),
                podReferences=st.lists(st.just({"namespace": "team", "name": "x"}), max_size=2),
            ),
            "name",
        ),
        topologyConstraintGroupConfigs=_items(
            _named("name", podGroupNames=st.lists(NAMES, max_size=2), topologyConstraint=_pack()),
            "name",
        ),
        topologyConstraint=_pack(),
        priorityClassName=PRIORITIES,
    ),
    "RayCluster": _fields(
        headGroupSpec=_fields(template=_templates()),
        workerGroupSpecs=_items(
            _named(
                "groupName",
                minReplicas=COUNTS,
                replicas=COUNTS,
                maxReplicas=COUNTS,
                numOfHosts=st.integers(1, 4),
                suspend=st.booleans(),
                template=_templates(),
            ),
            "groupName",
        ),
    ),
    "StatefulSet": _fields(
        replicas=COUNTS,
        podManagementPolicy=st.sampled_from(["OrderedReady", "Parallel"]),
        template=_templates(),
    ),
    "MPIJob": _replica_specs(
        "mpiReplicaSpecs",
        ("Launcher", "Worker"),
        launcherCreationPolicy=st.sampled_from(["AtStartup", "WaitForWorkersReady"]),
    ),
    "PyTorchJob": _replica_specs(
        "pytorchReplicaSpecs",
        ("Master", "Worker"),
        elasticPolicy=_fields(minReplicas=COUNTS, maxReplicas=COUNTS),
        runPolicy=_fields(suspend=st.booleans()),
    ),
    "TFJob": _replica_specs("tfReplicaSpecs", ("Chief", "PS", "Worker")),
    "XGBoostJob": _replica_specs("xgbReplicaSpecs", ("Master", "Worker")),
    "PaddleJob": _replica_specs("paddleReplicaSpecs", ("Master", "Worker")),
    "JAXJob": _replica_specs("jaxReplicaSpecs", ("Worker",)),
    "PlainPods": st.fixed_dictionaries(
        {
            "totals": st.lists(
                st.sampled_from(["1", "3", "0", "x", ""]), min_size=1, max_size=2, unique=True
            ),
            "priorityClassNames": st.lists(
                st.sampled_from(["", "high"]), min_size=1, max_size=2, unique=True
            ),
        },
        optional={"annotations": st.just(["gang-extender.dev/topology"])},
    ),
}
# What follows the name of a workload in the leaves of the kinds that go by them.
_RESTS = [
    *(
        f"-{index}-{revision}{part}"
        for index in (0, 1, 9)
        for revision in ("old", "new")
        for part in ("", "-leader", "-s0")
    ),
    *(f"-r{revision}-{role}-0-t" for revision in (1, 2) for role in ("a", "my-role", "gone")),
    *(f"-ray-{group}" for group in ("a", "worker", "a-xyz12", "worker-abcde")),
]


@st.composite
def _status(draw: st.DrawFn) -> dict[str, Any]:
    return draw(
        _fields(
            succeeded=st.integers(0, 7),
            active=st.integers(0, 7),
            replicaStatuses=_fields(Worker=_fields(succeeded=st.integers(0, 7))),
            failedIndexes=st.sampled_from(["", "0", "1-2,5"]),
            conditions=st.lists(
                st.fixed_dictionaries(
                    {
                        "type": st.sampled_from(["Complete", "Failed", "Suspended"]),
                        "status": st.sampled_from(["True", "False"]),
                    }
                ),
                max_size=2,
            ),
        )
    )


def _workload(
    kind: str, name: str, spec: dict[str, Any], status: dict[str, Any], annotations: dict[str, str]
) -> WorkloadObject:
    found = BY_KIND[kind]
    return WorkloadObject(
        api_version=f"{found.group}/{found.versions[0]}" if found.versions else "v1",
        kind=kind,
        namespace="team",
        name=name,
        uid="6f2f0f4a-1",
        spec=spec,
        status=status,
        annotations={f"gang-extender.dev/{key}": value for key, value in annotations.items()},
    )


def _uses(name: str, found: Iterable[tuple[str, int, int]]) -> tuple[LeafUse, ...]:
    by_name = {
        f"{name}{rest}"[:63]: LeafUse(name=f"{name}{rest}"[:63], pods=pods, finished=finished)
        for rest, pods, finished in found
    }
    return tuple(by_name[one] for one in sorted(by_name))


@st.composite
def requests(draw: st.DrawFn, kinds: Iterable[str] = tuple(COMPILED)) -> CompileRequest:
    """Return an input of the compiler."""
    kind, name = draw(st.sampled_from(list(kinds))), draw(NAMES)
    annotations = (
        draw(st.fixed_dictionaries({}, optional=ANNOTATIONS))
        if draw(st.integers(0, 3)) == 0
        else {}
    )
    used = draw(
        st.lists(
            st.tuples(st.sampled_from(_RESTS), st.integers(0, 3), st.integers(0, 2)), max_size=4
        )
    )
    existing = draw(st.integers(0, 2)) == 0 and draw(
        st.lists(
            st.builds(
                ExistingGroup,
                kind=st.sampled_from(["PodGroup", "CompositePodGroup"]),
                name=st.sampled_from(_RESTS).map(lambda rest: f"{name}{rest}"[:63]),
                basic=st.booleans(),
                minimum=st.integers(1, 5),
                required=st.sampled_from([(), ("a",), (f"{name}-a-x", f"{name}-b")]),
            ),
            max_size=3,
            unique_by=lambda one: (one.kind, one.name),
        )
    )
    return CompileRequest(
        workload=_workload(kind, name, draw(SPECS[kind]), draw(_status()), annotations),
        profile=draw(PROFILES),
        profile_name="p",
        requested=draw(st.booleans()),
        uses=_uses(name, used),
        existing=tuple(sorted(existing or (), key=lambda one: (one.kind, one.name))),
    )
