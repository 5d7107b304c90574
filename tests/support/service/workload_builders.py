"""Workloads for tests, as Kubernetes manifests that users write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extender.cluster.manifests.manifest_loader import Manifest
from extender.core.model.pod_groups import Tree, build_forest
from tests.support.service.manifest_builders import GPU, Object, an_object, resources_of

TREE = "gang-extender.dev/tree"
DEFAULT = {TREE: "default"}


def a_template(requests: Mapping[str, str | int] | None = None, **spec: Any) -> Object:
    """Make a pod template of one container; 1 CPU by default."""
    resources = resources_of({"cpu": "1"} if requests is None else requests)
    return {"spec": {"containers": [{"name": "main", "resources": resources}], **spec}}


def a_job(
    name: str = "fit",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    template: Object | None = None,
    status: Object | None = None,
    **spec: Any,
) -> Object:
    """Make a Job with the tree label; `spec` has parallelism and so on."""
    head = {
        "labels": dict(DEFAULT if labels is None else labels),
        "annotations": dict(annotations or {}),
        **(metadata or {}),
    }
    body = {"template": template or a_template(restartPolicy="Never"), **spec}
    return an_object("Job", name, "batch/v1", metadata=head, spec=body, status=status or {})


def a_replicated_job(
    name: str, replicas: Any = None, *, template: Object | None = None, **spec: Any
) -> Object:
    """Make an entry of replicatedJobs; `spec` is that of its Jobs."""
    count = {} if replicas is None else {"replicas": replicas}
    body = {"template": template or a_template({GPU: 1}), **spec}
    return {"name": name, **count, "template": {"spec": body}}


def a_jobset(
    *jobs: Object,
    name: str = "train",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    status: Object | None = None,
    **spec: Any,
) -> Object:
    """Make a JobSet with the tree label: a driver, and 2 slices of 2 workers, where no jobs are given."""
    jobs = jobs or (
        a_replicated_job("driver"),
        a_replicated_job("worker", 2, parallelism=2, completions=2),
    )
    head = {
        "labels": dict(DEFAULT if labels is None else labels),
        "annotations": dict(annotations or {}),
        **(metadata or {}),
    }
    body = {"replicatedJobs": list(jobs), **spec}
    version = "jobset.x-k8s.io/v1alpha2"
    return an_object("JobSet", name, version, metadata=head, spec=body, status=status or {})


def a_profile(name: str, *kinds: Object) -> Object:
    """Make a TreeProfile."""
    spec = {"kinds": list(kinds)}
    return an_object("TreeProfile", name, namespace="", spec=spec)


def a_namespace(name: str, *, tree: str) -> Object:
    """Make a namespace with the tree label."""
    return an_object("Namespace", name, "v1", "", metadata={"labels": {TREE: tree}})


# --- what was made of them


def the_tree(found: Manifest) -> Tree:
    """Return the only tree of a manifest; it is complete and valid."""
    view = found.world.view
    forest = build_forest(view.groups, {k: pods.values() for k, pods in view.members.items()})
    assert not forest.orphans
    (tree,) = forest.trees.values()
    assert tree.problems == ()
    return tree


def pods_by_group(found: Manifest) -> dict[str, tuple[int, int]]:
    """Return of each group its minimum (0: basic) and its pods, by the name without the piece of the UID."""
    view = found.world.view
    return {
        key.name.rpartition("-")[0]: (
            0 if group.basic else group.minimum,
            len(view.members.get(key, ())),
        )
        for key, group in view.groups.items()
    }
