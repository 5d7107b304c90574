"""What the real controllers made once (tests/golden/controllers), to be submitted again and compared.

Objects are compared by everything that a controller decides and that is the same each time: kind, name, owner, labels,
annotations, gates, and the groups of a PodGang. What is drawn at random, and UIDs, are replaced by words.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tests.controlplane.api import Api, Object
from tests.controlplane.objects import KINDS, path_of

RECORDS = Path(__file__).parents[2] / "golden/controllers"
# Values that hold a hash of an object with times or UIDs, or a random piece.
DRAWN = {
    "controller-revision-hash",
    "grove.io/pod-template-hash",
    "ray.io/worker-group-replica-name",
}
OURS = "gang-extender.dev/"
SUFFIX = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")


def read_record(name: str) -> list[Object]:
    """Read a record such as "jobset/any-order": the workload first."""
    text = (RECORDS / f"{name}.json").read_bytes()
    items: list[Object] = msgspec.json.decode(text)["items"]
    return items


def submitted(record: Iterable[Object]) -> Object:
    """Return the workload of a record as a user submits it."""
    workload = copy.deepcopy(next(iter(record)))
    metadata = workload["metadata"]
    uid = metadata["uid"]
    workload["metadata"] = {key: metadata[key] for key in ("name", "namespace")}
    if annotations := metadata.get("annotations"):
        workload["metadata"]["annotations"] = annotations
    workload.pop("status", None)
    if workload["kind"] == "Job":  # the API server has filled these in
        for key in ("selector", "manualSelector"):
            workload["spec"].pop(key, None)
        labels = workload["spec"]["template"]["metadata"].pop("labels")
        kept = {k: v for k, v in labels.items() if uid not in v and not k.endswith("job-name")}
        workload["spec"]["template"]["metadata"]["labels"] = kept
    return workload


def shape_of(items: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line of text per object, in order, without what differs between two runs."""
    items = list(items)
    words = {one["metadata"]["uid"]: f"<uid of {_name(one)}>" for one in items}
    return sorted(_line(one, words) for one in items)


async def seen(
    api: Api, kinds: Iterable[tuple[str, str]], namespace: str = "default"
) -> list[Object]:
    """Return all objects of some kinds, given as (apiVersion, kind), that are not being deleted."""
    found = []
    for version, kind in sorted(set(kinds)):
        sample = {"apiVersion": version, "kind": kind, "metadata": {"namespace": namespace}}
        listed = (await api.get(path_of(sample)))["items"]
        found += [
            {"apiVersion": version, "kind": kind} | one
            for one in listed
            if "deletionTimestamp" not in one["metadata"]
        ]
    return found


def kinds_of(record: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the kinds in a record, without those that only exist in a cluster with certain gates."""
    return {(one["apiVersion"], one["kind"]) for one in record if one["kind"] in KINDS}


def _name(one: Mapping[str, Any]) -> str:
    """Return kind and name; an asterisk stands for what is drawn at random."""
    metadata = one["metadata"]
    ordinal = "statefulset.kubernetes.io/pod-name" in metadata.get("labels", {})
    drawn = metadata.get("generateName") if not ordinal else None
    return f"{one['kind']} {drawn}*" if drawn else f"{one['kind']} {metadata['name']}"


def _line(one: Mapping[str, Any], words: Mapping[str, str]) -> str:
    metadata = one["metadata"]
    owner = next(iter(metadata.get("ownerReferences", ())), None)
    gates = [gate["name"] for gate in one["spec"].get("schedulingGates", ())]
    parts = {
        "owner": words.get(owner["uid"], owner["kind"]) if owner else "",
        "labels": _values(metadata.get("labels", {}), words),
        "annotations": _values(metadata.get("annotations", {}), words),
        "gates": [name for name in gates if not name.startswith(OURS)],
    }
    if one.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        parts["phase"] = one["status"]["phase"]
    if one["kind"] == "PodGang":
        parts["groups"] = [
            [
                group["name"],
                group["minReplicas"],
                [_drawn(r["name"]) for r in group["podReferences"]],
            ]
            for group in one["spec"]["podgroups"]
        ]
        parts["conditions"] = [
            [c["type"], c["status"], c["reason"]]
            for c in one.get("status", {}).get("conditions", ())
        ]
    return f"{_name(one)} {msgspec.json.encode(parts, order='sorted').decode()}"


def _drawn(name: str) -> str:
    return SUFFIX.sub("-*", name)


def _values(values: Mapping[str, str], words: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for key, value in values.items():
        if not key.startswith(OURS):
            found[key] = "*" if key in DRAWN else words.get(value, value)
    return found
