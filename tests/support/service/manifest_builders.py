"""Objects for tests, as Kubernetes manifests: fleets, gangs, and the trees of `vectors.yaml`.

Everything is a plain dict that an API server would take; `a_world` turns a list of them into what
the service sees. A call states the claim of a test: `a_fleet("2 blocks x 4 racks x 8 nodes")`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from extender.cluster.manifests.manifest_entries import Role, entries_in
from extender.cluster.manifests.manifest_loader import Manifest, Memory, build, complete
from extender.cluster.manifests.yaml_reader import Document

Object = dict[str, Any]

OURS = "gang-extender.dev/v1alpha1"
GROUP_LABEL = "gang-extender.dev/pod-group"
SLOT = "example.com/slot"  # the one resource of vectors
GPU = "nvidia.com/gpu"
BLOCK, RACK = "topology.example.com/block", "topology.example.com/rack"


def an_object(
    kind: str, name: str, version: str = OURS, namespace: str = "default", **rest: Any
) -> Object:
    """Make any object; `rest` is spec, status and so on; `metadata` is merged."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    metadata |= rest.pop("metadata", {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def a_node(name: str, labels: Mapping[str, str] | None = None, **resources: str | int) -> Object:
    """Make a node; amounts by resource, `gpu` for short; 64 CPUs, 256 GiB and 110 pods by default."""
    resources = {GPU if key == "gpu" else key: value for key, value in resources.items()}
    allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110", **resources}
    return an_object(
        "Node",
        name,
        "v1",
        "",
        metadata={"labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        status={"allocatable": allocatable},
    )


def a_fleet(text: str, **resources: str | int) -> list[Object]:
    """Make nodes from words such as "2 blocks x 4 racks x 8 nodes"; 8 GPUs each by default.

    A level called `racks` becomes the label topology.example.com/rack with values b0-r0, b0-r1...
    """
    levels = [(int(n), word.removesuffix("s")) for n, word in re.findall(r"(\d+)\s+([a-z]+)", text)]
    assert levels, text
    assert levels[-1][1] == "node", text
    fleet = []
    for numbers in itertools.product(*(range(count) for count, _ in levels)):
        path = [f"{word[0]}{n}" for n, (_, word) in zip(numbers, levels, strict=True)]
        labels = {
            f"topology.example.com/{word}": "-".join(path[: depth + 1])
            for depth, (_, word) in enumerate(levels[:-1])
        }
        fleet.append(a_node("-".join(path), labels, **({"gpu": 8} | resources)))
    return fleet


def resources_of(requests: Mapping[str, str | int]) -> Object:
    """Return requests with the limits that devices have."""
    limits = {name: amount for name, amount in requests.items() if "/" in name}
    return {"requests": dict(requests), **({"limits": limits} if limits else {})}


def a_pod(
    name: str,
    group: str = "",
    *,
    node: str = "",
    requests: Mapping[str, str | int] | None = None,
    namespace: str = "default",
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    """Make a pod of one container, pending, or running on `node`; 1 CPU by default."""
    metadata = dict(metadata or {})
    if group:
        metadata["labels"] = {GROUP_LABEL: group, **metadata.get("labels", {})}
    resources = resources_of({"cpu": "1"} if requests is None else requests)
    where = {"nodeName": node} if node else {}
    phase = {"phase": "Running"} if node else {}
    return an_object(
        "Pod",
        name,
        "v1",
        namespace,
        metadata=metadata,
        spec={"containers": [{"name": "main", "resources": resources}], **where, **spec},
        status={**phase, **(status or {})},
    )


def a_group(
    name: str,
    *,
    gang: int | None = None,
    composite: bool = False,
    parent: str = "",
    topo: str = "",
    whole: bool = False,
    workload: str = "w",
    version: str = OURS,
    namespace: str = "default",
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    """Make a PodGroup or CompositePodGroup; basic when `gang` is None, disrupted whole by `whole`."""
    field = "minGroupCount" if composite else "minCount"
    policy: Object = {"basic": {}} if gang is None else {"gang": {field: gang}}
    body: Object = {"schedulingPolicy": policy}
    if parent:
        body["parentCompositePodGroupName"] = parent
    if parent or composite:
        body["workloadRef"] = {"workloadName": workload, "templateName": "t"}
    if topo:
        body["schedulingConstraints"] = {"topology": [{"key": topo}]}
    if whole:
        body["disruptionMode"] = {"all": {}}
    kind = "CompositePodGroup" if composite else "PodGroup"
    return an_object(
        kind, name, version, namespace, metadata=dict(metadata or {}), spec={**body, **spec}
    )


def a_gang(
    name: str = "gang",
    *,
    pods: int = 8,
    minimum: int | None = None,
    requests: Mapping[str, str | int] | None = None,
    topo: str = "",
    **spec: Any,
) -> list[Object]:
    """Make a flat gang: one PodGroup and its pods `<name>-0`..., all of them needed by default."""
    group = a_group(name, gang=pods if minimum is None else minimum, topo=topo)
    return [
        group,
        *(a_pod(f"{name}-{n}", name, requests=requests or {GPU: 1}, **spec) for n in range(pods)),
    ]


def a_budget(
    name: str, labels: Mapping[str, str], *, allowed: int | None = 0, **spec: Any
) -> Object:
    """Make a PodDisruptionBudget of pods with some labels; `allowed` None: not counted yet."""
    spec = {"selector": {"matchLabels": dict(labels)}, **spec}
    status = {} if allowed is None else {"disruptionsAllowed": allowed}
    return an_object("PodDisruptionBudget", name, "policy/v1", spec=spec, status=status)


# --- vectors.yaml


def vector_objects(vector: Mapping[str, Any]) -> list[Object]:
    """Make everything of a `place` or `preempt` entry: nodes, what runs there, and the tree."""
    tree = vector["tree"]
    priority = vector.get("pri", 0)
    policy = "Never" if vector.get("never") else "PreemptLowerPriority"
    ours = vector_tree(tree, priority=priority, preemptionPolicy=policy)
    running = _running(vector.get("run", ()))
    used: dict[str, int] = {}
    for thing in (*ours, *running):
        node = thing["spec"].get("nodeName") if thing["kind"] == "Pod" else None
        if node:
            size = thing["spec"]["containers"][0]["resources"]["requests"][SLOT]
            used[node] = used.get(node, 0) + size
    nodes, fillers = [], []
    for name, about in vector["nodes"].items():
        labels = {key: str(value) for key, value in about.items() if key not in {"f", "c"}}
        capacity = about.get("c", about["f"] + used.get(name, 0))
        nodes.append(a_node(name, labels, **{SLOT: capacity}))
        foreign = capacity - about["f"] - used.get(name, 0)
        if foreign > 0:
            fillers.append(
                a_pod(f"filler-{name}", node=name, requests={SLOT: foreign}, priority=PRIORITY_MAX)
            )
    return [*nodes, *fillers, *running, *ours]


PRIORITY_MAX = 1_000_000_000  # of pods that no vector may evict


def vector_tree(tree: Mapping[str, Any], parent: str = "", **spec: Any) -> list[Object]:
    """Make the groups and pods of a tree as a vector writes it, root first.

    `gang` or `basic`, `topo`, `kids`, `pods` (a count or sizes), `at` (nodes of bound members),
    `sel` (node selector of its pods); pods are called `<leaf>-<n>`, bound ones `<leaf>-at-<n>`.
    """
    name = _dns(tree["n"])
    composite = "kids" in tree
    gang = None if tree.get("basic") else tree["gang"]
    group = a_group(
        name, gang=gang, composite=composite, parent=parent, topo=tree.get("topo", ""),
        whole=bool(tree.get("all")), **spec,
    )  # fmt: skip
    if composite:
        kids = [thing for kid in tree["kids"] for thing in vector_tree(kid, name, **spec)]
        return [group, *kids]
    more = dict(spec)
    if "sel" in tree:
        more["nodeSelector"] = tree["sel"]
    bound = [
        a_pod(f"{name}-at-{n}", name, node=node, requests={SLOT: 1}, **more)
        for n, node in enumerate(tree.get("at", ()))
    ]
    wanted = tree.get("pods", 0)
    sizes: Sequence[int] = [1] * wanted if isinstance(wanted, int) else wanted
    pending = [
        a_pod(f"{name}-{n}", name, requests={SLOT: size}, **more) for n, size in enumerate(sizes)
    ]
    return [group, *bound, *pending]


def _running(run: Iterable[Mapping[str, Any]]) -> list[Object]:
    """Make the victims-to-be of a preempt entry and the groups on their paths."""
    groups: dict[str, Object] = {}
    pods = []
    for about in run:
        parent = ""
        steps = [step.split("/") for step in about.get("path", "").split()]
        for depth, (word, mode) in enumerate(steps):
            name, leaf = _dns(word), depth == len(steps) - 1
            made = a_group(
                name, gang=1, composite=not leaf, parent=parent, whole=mode == "a",
                priority=about["pri"],
            )  # fmt: skip
            groups.setdefault(name, made)
            parent = name
        labels = {"protected": _dns(about["p"])} if about.get("pdb") else {}
        if about.get("pdb"):
            pods.append(a_budget(_dns(about["p"]), labels))
        pods.append(
            a_pod(
                _dns(about["p"]), parent, node=about["nd"], requests={SLOT: about.get("sz", 1)},
                priority=about["pri"], metadata={"labels": labels},
            )
        )  # fmt: skip
    return [*groups.values(), *pods]


def _dns(name: str) -> str:
    return name.lower().replace("_", "-")


# --- from manifests to what the service sees


def a_manifest(
    cluster: Iterable[Object], wanted: Iterable[Object] = (), memory: Memory | None = None
) -> Manifest:
    """Build what `load` builds from files, from objects; creation times follow the order, and those in the memory."""
    entries = [
        entry
        for things, role in ((cluster, Role.CLUSTER), (wanted, Role.WANTED))
        for entry in entries_in(
            (Document(where=f"object {n}", value=thing) for n, thing in enumerate(things, 1)), role
        )
    ]
    return build(complete(entries, memory))


def a_world(*objects: Object) -> Any:
    """Build a `World` of objects."""
    return a_manifest(objects).world
