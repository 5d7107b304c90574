"""Jobs of a simulation from files: workloads and pods with annotations about when they arrive and how long they run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from extender.cluster import types as api
from extender.cluster.manifests.manifest_entries import (
    AnyEntry,
    Entry,
    Ident,
    SourceEntry,
    with_metadata,
)
from extender.cluster.manifests.workload_objects import with_leaf
from extender.cluster.read.object_decoding import key_of, parent_of
from extender.cluster.read.pod_conversion import group_named
from extender.cluster.types import Namespace
from extender.core.model.errors import BadInput, several
from extender.core.model.ids import GroupKey
from extender.core.model.message_formatting import did_you_mean, duration_s
from extender.core.model.pod_groups import composite_key
from extender.core.model.pods import RUNS_FOR
from extender.core.workloads.kinds.plain_pods_kind import is_plain
from extender.core.workloads.tree_policy import DEFAULT_PROFILE
from extender.core.workloads.workload_object import GROUP_LABEL, OFF, TREE_LABEL
from extender.simulation.arrivals import Arrival, NodeFailure
from extender.simulation.controllers import Job

ARRIVES_AFTER: Final = "gang-extender.dev/arrives-after"
ARRIVES_EVERY: Final = "gang-extender.dev/arrives-every"
_TREE_FIELD: Final = f"metadata.labels[{TREE_LABEL}]"
FAILURE_FIELDS: Final = 3
FAILURES_MAX: Final = 1_000_000  # on average: more is a mistake, and takes days
AWAY: Final = "1h"  # a node that has failed, by default
ARRIVALS_MAX: Final = 100_000  # of one workload: more is a mistake of the file
SPANS: Final = "a span such as 90m, 2h or 1d12h"
_RANGE: Final = re.compile(r"(?P<least>\w+)-(?P<most>\w+)", re.ASCII)


def span_s(text: str, field: str, forms: str = SPANS) -> float:
    """Return a span of time in seconds.

    >>> span_s("1d12h", "--until")
    129600.0

    Raises:
        BadInput: The text is none.
    """
    seconds = duration_s(text)
    if seconds is None:
        raise BadInput(f"{field}: {text[:40]!r} is not {forms}")
    return float(seconds)


class Duration(msgspec.Struct, frozen=True):
    """How long jobs run: between two spans, each as likely as another, or with a mean (an exponential distribution)."""

    least_s: float
    most_s: float
    is_mean: bool = False  # both are the mean

    @classmethod
    def read(cls, text: str, field: str) -> Duration:
        """Return a duration.

        >>> Duration.read("2h-6h", "--duration"), Duration.read("mean:1h", "--duration").is_mean
        (Duration(least_s=7200.0, most_s=21600.0, is_mean=False), True)

        Raises:
            BadInput: The text is none.
        """
        kind, colon, rest = text.partition(":")
        if colon and kind == "mean":
            mean_s = span_s(rest, field)
            return cls(mean_s, mean_s, is_mean=True)
        bounds = _RANGE.fullmatch(text)
        if bounds is None:
            fixed_s = span_s(text, field, f"{SPANS}, nor 2h-6h or mean:2h")
            return cls(fixed_s, fixed_s)
        least_s, most_s = span_s(bounds["least"], field), span_s(bounds["most"], field)
        if most_s < least_s:
            raise BadInput(f"{field}: {text!r}: the second span is shorter than the first")
        return cls(least_s, most_s)

    def draw(self, chance: Random) -> float:
        """Return one duration in seconds, at least one second."""
        if self.is_mean:
            return max(1.0, chance.expovariate(1.0) * self.least_s)
        return max(1.0, chance.uniform(self.least_s, self.most_s))


def jobs_of(
    entries: Sequence[AnyEntry], *, until_s: float, duration: Duration | None, seed: int
) -> tuple[tuple[AnyEntry, ...], tuple[Job, ...]]:
    """Return the objects that are there from the beginning, and the jobs.

    Args:
        until_s: End of the simulation: what arrives again and again does so until then.
        duration: Of jobs without an annotation; None: those do not end.

    Raises:
        BadInput: An annotation is wrong, or an object is not simulated; names all of them.
    """
    context: list[AnyEntry] = []
    units: dict[tuple[str, ...], list[AnyEntry]] = {}
    faults: list[str] = []
    parents = {
        key_of(entry.obj): parent_of(entry.obj)
        for entry in entries
        if isinstance(entry.obj, api.Group)
    }
    # roots first, as their annotations are those of the job; then groups before their pods
    for entry in sorted(entries, key=lambda each: _depth(each.obj, parents)):
        obj = entry.obj
        if isinstance(obj, api.Group):
            try:
                units.setdefault(_root(key_of(obj), parents), []).append(entry)
            except BadInput as fault:
                faults.append(f"{entry.where}: {obj.label}: {fault}")
        elif isinstance(entry, SourceEntry) and isinstance(obj, api.WorkloadManifest):
            units["workload", str(len(units))] = [entry]
        elif isinstance(entry, Entry) and isinstance(obj, api.Pod):
            try:
                units.setdefault(_unit_of(obj, len(units), parents), []).append(entry)
            except BadInput as fault:
                faults.append(f"{entry.where}: {fault}")
        else:
            context.append(entry)
    jobs: list[Job] = []
    for unit in units.values():
        try:
            jobs += _jobs(unit, until_s, duration, seed)
        except BadInput as fault:
            faults.append(f"{unit[0].where}: {unit[0].obj.label}: {fault}")
    faults += _repeated(jobs)
    if faults:
        raise several(tuple(faults))
    return tuple(context), tuple(jobs)


def with_profiles(
    entries: Sequence[AnyEntry], cluster: Iterable[AnyEntry]
) -> tuple[list[AnyEntry], list[str]]:
    """Return entries in which each workload has a TreeProfile, as `plan` assumes, and a warning for each that had none.

    A service leaves a workload without one alone, and its pods would be none of the simulation.

    Args:
        cluster: Of the files of the cluster; their namespaces count as well.
    """
    inherited = {
        entry.obj.metadata.name: entry.obj.metadata.labels.get(TREE_LABEL, "")
        for entry in (*cluster, *entries)
        if isinstance(entry.obj, Namespace)
    }
    covered: list[AnyEntry] = []
    warnings: list[str] = []
    for entry in entries:
        obj = entry.obj
        if not (isinstance(entry, SourceEntry) and isinstance(obj, api.WorkloadManifest)):
            covered.append(entry)
            continue
        labels, where = obj.metadata.labels, f"{entry.where}: {obj.label}: {_TREE_FIELD}"
        profile = labels.get(TREE_LABEL) or inherited.get(obj.metadata.namespace, "")
        if profile == OFF:
            warnings.append(f"{where}: is {OFF}, so its pods are not simulated; leave it out")
        elif not profile:
            profile = DEFAULT_PROFILE.name
            warnings.append(f"{where}: is not set; simulated as if it were {profile}")
            labelled = with_metadata(obj, labels={**labels, TREE_LABEL: profile})
            entry = msgspec.structs.replace(entry, obj=labelled)  # noqa: PLW2901 -- the same entry
        covered.append(entry)
    return covered, warnings


def job_of(arrival: Arrival) -> Job:
    """Return the job of an arrival of a trace."""
    return Job(
        namespace=arrival.namespace,
        name=arrival.name,
        at_s=arrival.at_s,
        runs_for_s=arrival.runs_for_s,
        arrival=arrival,
    )


def failures_of(
    text: str, nodes: Iterable[str], *, until_s: float, seed: int
) -> tuple[NodeFailure, ...]:
    """Return the failures of nodes.

    Args:
        text: The mean time between two failures of a node, such as `30d`, perhaps with how long it is away, `30d/2h`; or a
            file with a line for each failure: node, time from the beginning, how long; such as `node-1,2h,30m`.

    Raises:
        BadInput: The text is neither, or a line of the file is wrong.
    """
    field, path, names = "--node-failures", Path(text), frozenset(nodes)
    if path.is_file():
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{field} {path}: cannot be read: {error}") from error
        failures = []
        for number, line in enumerate(lines, 1):
            parts = [part.strip() for part in line.split(",")]
            if line.strip() and len(parts) != FAILURE_FIELDS:
                raise BadInput(f"{path}:{number}: {line[:80]!r} is not NODE,AT,FOR such as node-1,2h,30m")  # fmt: skip
            if line.strip() and parts[0] not in names:
                hint = did_you_mean(parts[0], names)
                raise BadInput(f"{path}:{number}: the cluster has no node {parts[0]!r}{hint}")
            if line.strip():
                at_s, for_s = (span_s(part, f"{path}:{number}") for part in parts[1:])
                failures.append(NodeFailure(node=parts[0], at_s=at_s, for_s=for_s))
        return tuple(failures)
    mean, _, away = text.partition("/")
    mean_s, away_s = duration_s(mean), duration_s(away or AWAY)
    if mean_s is None or away_s is None:
        raise BadInput(f"{field}: {text[:80]!r} is not {SPANS}, nor 30d/2h, nor a file")
    if not mean_s:
        raise BadInput(f"{field}: {text!r}: the mean time is not above 0")
    if until_s * len(names) > FAILURES_MAX * (mean_s + away_s):
        raise BadInput(f"{field}: {text!r}: the nodes would fail more than {FAILURES_MAX} times")
    failures = []
    for node in sorted(names):
        chance = Random(f"{seed} failures of {node}")  # noqa: S311 -- times, no secrets
        at_s = chance.expovariate(1 / mean_s)
        while at_s < until_s:
            failures.append(NodeFailure(node=node, at_s=at_s, for_s=away_s))
            at_s += away_s + chance.expovariate(1 / mean_s)
    return tuple(failures)


def _repeated(jobs: Iterable[Job]) -> Iterator[str]:
    """Yield a fault for each object of which another one has kind and name."""
    places: dict[Ident, str] = {}
    for entry in (entry for job in jobs for entry in job.objects):
        before = places.get(entry.ident)
        places.setdefault(entry.ident, entry.where)
        if before is not None:
            yield f"{entry.where}: {entry.obj.label}: is there already, from {before}; give it another name"


def _depth(obj: object, parents: Mapping[GroupKey, str]) -> int:
    """Return 0 for a root group, 1 for a group below one, 2 for everything else."""
    if not isinstance(obj, api.Group):
        return 2
    return 1 if parents[key_of(obj)] else 0


def _root(key: GroupKey, parents: Mapping[GroupKey, str]) -> tuple[str, ...]:
    """Return the unit of the root above a group.

    Raises:
        BadInput: A parent is not in the files, or the groups are a ring.
    """
    passed = [key]
    while parent := parents[key]:
        key = composite_key(key.namespace, parent)
        if key not in parents or key in passed:
            text = "is not in the files" if key not in parents else "is below itself"
            raise BadInput(f"its parent CompositePodGroup/{key.namespace}/{parent} {text}")
        passed.append(key)
    return "group", key.kind, key.namespace, key.name


def _unit_of(pod: api.Pod, number: int, parents: Mapping[GroupKey, str]) -> tuple[str, ...]:
    """Return what the pods of one job have in common; the number is that of a pod that is a job of its own."""
    labels, (namespace, name) = with_leaf(pod).metadata.labels, pod.key
    if is_plain(labels):
        return "plain", namespace, labels[GROUP_LABEL]
    group = group_named(pod)
    if group is None:
        return "pod", str(number)
    if group not in parents:
        text = "is not in the files; give the group, or the workload that makes both"
        raise BadInput(f"Pod/{namespace}/{name}: its PodGroup/{namespace}/{group.name} {text}")
    return _root(group, parents)


def _jobs(
    unit: Sequence[AnyEntry], until_s: float, duration: Duration | None, seed: int
) -> Iterator[Job]:
    first = unit[0]
    metadata = first.obj.metadata
    field = "metadata.annotations[{}]"
    notes = metadata.annotations
    after_s = span_s(notes.get(ARRIVES_AFTER, "0s"), field.format(ARRIVES_AFTER))
    runs = Duration.read(notes[RUNS_FOR], field.format(RUNS_FOR)) if RUNS_FOR in notes else duration
    plain = [_without_annotations(entry) for entry in unit]
    names = [metadata.name]
    times = [after_s]
    if ARRIVES_EVERY in notes:
        every_s = span_s(notes[ARRIVES_EVERY], field.format(ARRIVES_EVERY))
        copies = math.ceil((until_s - after_s) / every_s) if every_s else ARRIVALS_MAX + 1
        if copies > ARRIVALS_MAX or len(unit) > 1:
            text = (
                f"would arrive more than {ARRIVALS_MAX} times"
                if len(unit) == 1
                else "is for workloads and single pods"
            )
            raise BadInput(f"{field.format(ARRIVES_EVERY)}: {notes[ARRIVES_EVERY]!r} {text}")
        times = [after_s + number * every_s for number in range(max(copies, 0))]
        names = [f"{metadata.name}-{number}" for number in range(len(times))]
    for name, at_s in zip(names, times, strict=True):
        chance = Random(f"{seed} {metadata.namespace}/{name}")  # noqa: S311 -- durations, no secrets
        yield Job(
            namespace=metadata.namespace,
            name=name,
            at_s=at_s,
            runs_for_s=runs.draw(chance) if runs is not None else math.inf,
            objects=tuple(plain) if len(unit) > 1 else tuple(_named(plain, name)),
        )


def _without_annotations(entry: AnyEntry) -> AnyEntry:
    own = {ARRIVES_AFTER, ARRIVES_EVERY, RUNS_FOR}
    kept = {key: text for key, text in entry.obj.metadata.annotations.items() if key not in own}
    return msgspec.structs.replace(entry, obj=with_metadata(entry.obj, annotations=kept))


def _named(entries: Iterable[AnyEntry], name: str) -> Iterator[AnyEntry]:
    for entry in entries:
        yield msgspec.structs.replace(entry, obj=with_metadata(entry.obj, name=name, uid=""))
