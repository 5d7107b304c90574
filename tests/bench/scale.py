"""Speed and memory of `plan` on large clusters, and of the planner alone, beside an earlier commit in turns.

Each run is a process of its own, whose CPU seconds and largest resident memory the kernel counts. Both sides read the same files and must
answer the same bytes. Nodes are written as `kubectl get -o json` writes them, in some hundred classes of equal ones.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from extender.core.planner.plan_types import PlanGroup, PlanNode, PlanRequest, Refusal
from extender.core.planner.planning import plan
from tests.bench.figures import Figure, Scale
from tests.bench.planner import SHAPES, composite, leaf, make_nodes
from tests.support.service.manifest_builders import BLOCK, GPU, GROUP_LABEL, RACK, a_group, a_pod

ROOT = Path(__file__).resolve().parents[2]
COMPILED = ROOT / ".bench" / "compiled"
BASELINE = "8ba4cbdb"  # 2026-11-30, before the work that this bench is for
ZONE = "topology.kubernetes.io/zone"
SEED = 49
PER_RACK, RACKS_PER_BLOCK, BLOCKS_PER_ZONE = 25, 20, 10
MODELS = [
    (f"g{cpus}.{gib}", cpus, gib, ephemeral)
    for cpus in (64, 96, 128, 192)
    for gib in (512, 768, 1024, 2048)
    for ephemeral in (400, 800, 1600)
]
STARTED = "2026-11-30T06:00:00Z"

Object = dict[str, Any]


def a_large_node(number: int, chance: random.Random) -> Object:
    """Make a node with all that kubectl prints of one, but for its images."""
    name = f"node-{number:06}"
    rack = number // PER_RACK
    block = rack // RACKS_PER_BLOCK
    model, cpus, gib, ephemeral = chance.choice(MODELS)
    offer = {
        "cpu": str(cpus),
        "ephemeral-storage": f"{ephemeral}Gi",
        "hugepages-2Mi": "0",
        "memory": f"{gib}Gi",
        GPU: "8",
        "pods": "110",
    }
    conditions = [
        {
            "lastHeartbeatTime": STARTED,
            "lastTransitionTime": STARTED,
            "message": f"kubelet reports {reason}",
            "reason": reason,
            "status": "True" if kind == "Ready" else "False",
            "type": kind,
        }
        for kind, reason in (
            ("MemoryPressure", "KubeletHasSufficientMemory"),
            ("DiskPressure", "KubeletHasNoDiskPressure"),
            ("PIDPressure", "KubeletHasSufficientPID"),
            ("Ready", "KubeletReady"),
        )
    ]
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    taints = [{"effect": "NoSchedule", "key": GPU, "value": "present"}] if number % 3 else []
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "creationTimestamp": STARTED,
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": model,
                BLOCK: f"b{block:04}",
                RACK: f"r{rack:05}",
                ZONE: f"zone-{block // BLOCKS_PER_ZONE}",
            },
            "name": name,
            "resourceVersion": str(10_000_000 + number),
            "uid": f"00000000-0000-4000-8000-{number:012}",
        },
        "spec": {
            "podCIDR": f"{address}/26",
            "podCIDRs": [f"{address}/26"],
            "providerID": f"example://{name}",
            "taints": taints,
        },
        "status": {
            "addresses": [
                {"address": address, "type": "InternalIP"},
                {"address": name, "type": "Hostname"},
            ],
            "allocatable": offer,
            "capacity": offer,
            "conditions": conditions,
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": f"00000000-0000-4000-9000-{number:012}",
                "containerRuntimeVersion": "containerd://2.1.4",
                "kernelVersion": "6.8.0",
                "kubeletVersion": "v1.37.2",
                "machineID": f"{number:032}",
                "operatingSystem": "linux",
                "osImage": "Debian GNU/Linux 13",
            },
        },
    }


def a_running_pod(number: int) -> Object:
    """Make a pod that uses all GPUs of its node, with what kube-apiserver and the kubelet add to it."""
    needs = {"limits": {GPU: "8"}, "requests": {"cpu": "32", "memory": "128Gi", GPU: "8"}}
    name, volume = f"running-{number:06}", f"kube-api-access-{number:05}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "creationTimestamp": STARTED,
            "labels": {"app": f"app-{number % 500}"},
            "name": name,
            "namespace": f"team-{number % 50}",
            "resourceVersion": str(20_000_000 + number),
            "uid": f"00000000-0000-4000-a000-{number:012}",
        },
        "spec": {
            "containers": [
                {
                    "image": "registry.example/train:1",
                    "name": "main",
                    "resources": needs,
                    "volumeMounts": [
                        {
                            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
                            "name": volume,
                            "readOnly": True,
                        }
                    ],
                }
            ],
            "nodeName": f"node-{number:06}",
            "preemptionPolicy": "PreemptLowerPriority",
            "priority": number * 7919 % 100,
            "restartPolicy": "Never",
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"effect": "NoSchedule", "key": GPU, "operator": "Exists"},
                {
                    "effect": "NoExecute",
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "tolerationSeconds": 300,
                },
            ],
            "volumes": [{"name": volume, "projected": {"defaultMode": 420, "sources": []}}],
        },
        "status": {
            "conditions": [
                {"lastTransitionTime": STARTED, "status": "True", "type": kind}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "containerStatuses": [
                {
                    "allocatedResources": needs["requests"],
                    "containerID": f"containerd://{number:064}",
                    "name": "main",
                    "ready": True,
                    "resources": needs,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": STARTED}},
                }
            ],
            "phase": "Running",
            "podIP": f"10.{number >> 16 | 128}.{number >> 8 & 255}.{number & 255}",
            "startTime": STARTED,
        },
    }


def write_cluster(file: Path, nodes: int, *, full: bool = False) -> None:
    """Write a cluster as `kubectl get nodes,pods -A -o json` prints it; `full`: each node has a pod that uses all its GPUs."""
    chance = random.Random(SEED)
    objects: Iterator[Object] = (a_large_node(number, chance) for number in range(nodes))
    running = map(a_running_pod, range(nodes if full else 0))
    with file.open("wb") as out:
        out.write(b'{\n    "apiVersion": "v1",\n    "items": [\n')
        for number, each in enumerate(chain(objects, running)):
            text = msgspec.json.format(msgspec.json.encode(each), indent=4)
            indented = b"        " + text.replace(b"\n", b"\n        ")
            out.write(b",\n" + indented if number else indented)
        out.write(
            b'\n    ],\n    "kind": "List",\n    "metadata": {\n        "resourceVersion": ""\n    }\n}\n'
        )


def write_tree(file: Path, middle: int, leaves: int, pods: int, **spec: Any) -> None:
    """Write a tree of three levels within a zone, blocks and racks; pods of one GPU, or as in `spec`."""
    requests = spec.pop("requests", {"cpu": "4", "memory": "32Gi", GPU: "1"})
    objects = [a_group("root", gang=middle, composite=True, topo=ZONE, **spec)]
    for m in range(middle):
        objects.append(
            a_group(f"m{m}", gang=leaves, composite=True, parent="root", topo=BLOCK, **spec)
        )
        for n in range(leaves):
            name = f"m{m}-l{n}"
            objects.append(a_group(name, gang=pods, parent=f"m{m}", topo=RACK, **spec))
            objects += [
                a_pod(
                    f"{name}-{i}",
                    metadata={"labels": {GROUP_LABEL: name}},
                    requests=requests,
                    tolerations=[{"key": GPU, "operator": "Exists"}],
                    **spec,
                )
                for i in range(pods)
            ]
    file.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}))


# --- the planner alone: in a process of its own

LEAVES, MEMBERS = 128, 100


def fleet(size: int) -> tuple[PlanNode, ...]:
    """Return nodes in racks of 25, blocks of 500 and 5 zones."""
    nodes = make_nodes(size, racks=max(size // PER_RACK, 5))
    return tuple(
        msgspec.structs.replace(node, labels={**node.labels, "block": f"b{number // 500:03}"})
        for number, node in enumerate(nodes)
    )


def large_tree(pods: int) -> PlanGroup:
    """Return 128 leaves of so many pods, each in a rack, 16 of them in a block, all in a zone."""
    blocks = [
        composite(
            f"c{block}",
            *(leaf(f"l{block}-{n}", pods, topo=("rack",)) for n in range(LEAVES // 8)),
            topo=("block",),
        )
        for block in range(8)
    ]
    return composite("root", *blocks, topo=("zone",))


def plan_alone(case: str, size: int) -> None:
    """Plan once, with a table of the nodes that is made anew; print CPU milliseconds and a digest of the answer."""
    pods = MEMBERS if case == "fits" else PER_RACK * 8 + 1
    request = PlanRequest(
        root=large_tree(pods), nodes=fleet(size), shapes=SHAPES, explain=case == "explained"
    )
    began_s = time.process_time()
    verdict = plan(request)
    cpu_ms = (time.process_time() - began_s) * 1e3
    assert isinstance(verdict, Refusal) == (case != "fits"), verdict
    print(cpu_ms, hashlib.sha256(msgspec.json.encode(verdict)).hexdigest())


# --- measuring


class Run(msgspec.Struct, frozen=True):
    """What one process used and printed."""

    cpu_s: float
    peak_mb: float
    output: bytes


def run_process(source: Path, args: Sequence[str]) -> Run:
    """Run Python with the product of a checkout, and the bench of this one; what was imported before is compiled, as in an installation."""
    environ = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": f"{source}{os.pathsep}{ROOT}",
        "PYTHONPYCACHEPREFIX": str(COMPILED),
    }
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [sys.executable, *args], cwd=source, env=environ, stdout=out, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        output = out.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(args)}: exit {process.returncode}: {output[-2000:]!r}")
    return Run(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6, output)


def baseline(folder: Path) -> Path | None:
    """Return a folder with the product of the baseline; None where git does not have that commit."""
    archived = subprocess.run(
        ["git", "archive", BASELINE, "extender"], cwd=ROOT, capture_output=True, check=False
    )
    if archived.returncode:
        return None
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def in_turns(args: Sequence[str], before: Path | None, rounds: int) -> list[list[Run]]:
    """Run both sides in turns; ours first, then those of the baseline, if there is one."""
    sources = [ROOT] if before is None else [ROOT, before]
    for source in sources:
        run_process(source, ["-m", "compileall", "-q", "extender"])
    runs: list[list[Run]] = [[] for _ in sources]
    for turn in range(rounds):
        for side in list(range(len(sources)))[:: 1 if turn % 2 else -1]:
            runs[side].append(run_process(sources[side], args))
    return runs


def row(
    what: str, unit: str, target: str, runs: list[list[Run]], value: Callable[[Run], float]
) -> Figure:
    """Return a figure of all runs."""
    others = runs[1] if runs[1:] else []
    return Figure(
        bench="scale",
        what=what,
        unit=unit,
        better="lower",
        values=tuple(map(value, runs[0])),
        baseline_name=BASELINE if others else "",
        baseline=tuple(map(value, others)),
        target=target,
    )


def same_answers(runs: list[list[Run]], part: Callable[[bytes], bytes] = bytes) -> None:
    """Raise RuntimeError if two runs have answered differently."""
    if len({part(each.output) for side in runs for each in side}) > 1:
        raise RuntimeError(f"the answers differ from those of {BASELINE}")


def run(scale: Scale) -> Iterator[list[Figure]]:
    """Measure the commands, then the planner alone."""
    part = 50 if scale.quick else 1
    with tempfile.TemporaryDirectory(prefix="gxb-") as temporary:
        folder = Path(temporary)
        before = baseline(folder)
        for case, nodes, full, tree, goals in (
            ("plan", 50_000 // part, False, (10, 7, 8), ("4 s", "200 MB")),
            ("plan with preemption", 20_000 // part, True, (2, 2, 4), ("6 s", "")),
        ):
            if not scale.wants("scale", case):
                continue
            cluster, work = folder / "cluster.json", folder / "tree.json"
            write_cluster(cluster, nodes, full=full)
            more = {"priority": 1000, "requests": {"cpu": "32", GPU: "8"}} if full else {}
            write_tree(work, *tree, **more)
            command = ["-m", "extender", "plan", "--cluster", str(cluster), "-f", str(work)]
            runs = in_turns([*command, "-o", "json"], before, scale.rounds)
            same_answers(runs)
            pods = tree[0] * tree[1] * tree[2]
            name = f"{case}: {nodes:,} nodes, tree of {pods} in three levels"
            yield [
                row(f"{name}, CPU", "s", goals[0], runs, lambda each: each.cpu_s),
                row(f"{name}, memory", "MB", goals[1], runs, lambda each: each.peak_mb),
            ]
        for case, what, goal in (
            ("fits", "fits", "2,000 ms"),
            ("reason", "impossible with its reason", "200 ms"),
            ("explained", "impossible with its conflict and what would help", ""),
        ):
            if not scale.wants("scale", f"planner {case}"):
                continue
            size = 100_000 // (10 if scale.quick else 1)
            runs = in_turns(["-m", "tests.bench.scale", case, str(size)], before, scale.rounds)
            same_answers(runs, lambda output: output.split()[1])
            yield [
                row(
                    f"planner {case}: {size:,} nodes, {LEAVES} x {MEMBERS} in three levels, {what}",
                    "ms", goal, runs, lambda each: float(each.output.split()[0]),
                )
            ]  # fmt: skip


if __name__ == "__main__":
    plan_alone(sys.argv[1], int(sys.argv[2]))
