"""Public traces as arrivals: Philly, Alibaba GPU 2023 and disaggregated DLRM 2025, Batsim, Standard Workload Format.

No trace is a part of this project: the user names a file. A line that cannot be an arrival is named with its place,
column and value; a line that is well formed and asks for nothing is counted with the reason.
"""

from __future__ import annotations

import csv
import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from extender.core.model.errors import BadInput
from extender.simulation.arrivals import (
    Arrival,
    Arrivals,
    ArrivingGroup,
    check,
    in_order,
    wrong_value,
)

GPU: Final = "nvidia.com/gpu"
RDMA: Final = "rdma-percent"  # of the network bandwidth of a node
GPUS_PER_POD_MAX: Final = 8  # of the nodes of these clusters
MIB: Final = 1 << 20
GIB: Final = 1 << 30
CORE: Final = 1000  # millicores
SWF_FIELDS: Final = 18
UNKNOWN: Final = -1.0  # of a field in the Standard Workload Format
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")

Row = Mapping[str, str]
T = TypeVar("T")


class _Trace:
    """A file that is being read: what came of its lines so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrivals: list[Arrival] = []
        self.malformed: list[str] = []
        self.left_out: Counter[str] = Counter()
        self._places: dict[tuple[str, str], str] = {}  # by namespace and name of an arrival

    def place(self, line: int) -> str:
        return f"{self.path.name}:{line}"

    def add(self, place: str, make: Callable[[], Arrival | str]) -> None:
        """Add an arrival, or why a line is none."""
        try:
            arrival = make()
            if isinstance(arrival, str):
                self.left_out[arrival] += 1
            else:
                self.arrivals.append(self._with_own_name(check(arrival, place), place))
        except BadInput as error:
            self.malformed.append(str(error))

    def _with_own_name(self, arrival: Arrival, place: str) -> Arrival:
        key = arrival.namespace, arrival.name
        before = self._places.setdefault(key, place)
        if before is not place:
            raise BadInput(
                wrong_value(
                    place, "name", "/".join(key), f"is the name of another one, of {before}"
                )
            )
        return arrival

    def rows(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield place and columns of each line of a CSV file; a line with another number of columns is malformed."""
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey="", restval="")
            columns = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            for row in reader:
                place = self.place(reader.line_num)
                if "" in row or None in row.values():
                    values = ",".join(str(value) for value in row.values())
                    self.malformed.append(wrong_value(place, "line", values, f"has more than the {len(columns)} columns of the header"))  # fmt: skip
                    continue
                yield place, row

    def read(
        self, lines: Iterable[tuple[str, T]], make: Callable[[str, T], Arrival | str]
    ) -> Arrivals:
        """Return the arrivals of lines, each given with its place."""
        for place, line in lines:
            self.add(place, functools.partial(make, place, line))
        return self.result()

    def result(self) -> Arrivals:
        return in_order(self.arrivals, self.malformed, dict(self.left_out))


def is_trace(path: Path) -> bool:
    """Return whether a file is read as a trace and not as manifests: by its name, and JSON by the keys of Batsim."""
    if path.suffix == ".json" and path.is_file():
        return (
            b'"profiles"' in (beginning := path.read_bytes()) and b'"apiVersion"' not in beginning
        )
    return path.suffix in (".csv", ".swf") and not path.is_dir()


def read_trace(path: Path) -> Arrivals:
    """Return the arrivals of a trace, whose form is recognised by its beginning.

    Args:
        path: A CSV file with the columns of Philly (timestamp, duration, num_gpus, cluster), of the pods of Alibaba GPU 2023
            or of disaggregated DLRM 2025; JSON of Batsim; or a file in the Standard Workload Format.

    Raises:
        BadInput: There is no such file, it has none of these forms, or it is no text.
    """
    try:
        return _read(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from error


def _read(path: Path) -> Arrivals:
    with path.open(encoding="utf-8-sig") as file:
        beginning = file.read(4096).lstrip()
    if beginning.startswith("{"):
        return _batsim(path)
    first = beginning.partition("\n")[0]
    columns = {column.strip() for column in first.split(",")}
    for needed, read in _BY_COLUMNS.items():
        if needed <= columns:
            return read(path)
    if first.startswith(";") or len(first.split()) == SWF_FIELDS:
        return _standard_workload_format(path)
    forms = " or ".join(", ".join(sorted(needed)) for needed in _BY_COLUMNS)
    raise BadInput(
        f"{path}: is no trace that can be read; its first line is {first[:80]!r}. It can be CSV with the columns "
        f"{forms}; JSON of Batsim; or the Standard Workload Format, with {SWF_FIELDS} fields a line"
    )


# --- values of fields


def _number(row: Row, field: str, place: str, *, whole: bool = False) -> float:
    """Return a field that is a number from 0.

    Raises:
        BadInput: It is none; with place, field and value.
    """
    text = row[field].strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0) or (whole and number != int(number)):
        kind = "whole number" if whole else "number"
        raise BadInput(wrong_value(place, field, text, f"is not a {kind} from 0"))
    return number


def _optional(row: Row, field: str, place: str) -> float | None:
    """Return a field that is a number from 0, or None where it is empty."""
    return _number(row, field, place) if row[field].strip() else None


def _name(text: str, place: str, field: str) -> str:
    """Return a text as a name of Kubernetes.

    >>> _name("App_0", "x:1", "app_name")
    'app-0'
    """
    name = _NOT_IN_NAMES.sub("-", text.strip().lower()).strip("-")
    if not name:
        raise BadInput(
            wrong_value(place, field, text, "has no letter and no digit, so it is no name")
        )
    return name[:50].rstrip("-")


def _requests(**amounts: float) -> dict[str, int]:
    """Return requests of a pod without those of nothing, rounded up."""
    names = {"gpu": GPU, "rdma": RDMA, "disk": "ephemeral-storage"}
    return {names.get(name, name): math.ceil(amount) for name, amount in amounts.items() if amount}


# --- one function for each form


def _philly(path: Path) -> Arrivals:
    """Read the jobs of Philly as Sia has them; a gang has pods of equally many GPUs, at most those of a node."""
    trace = _Trace(path)

    def job(place: str, row: Row) -> Arrival | str:
        gpus = int(_number(row, "num_gpus", place, whole=True))
        cluster = _name(row["cluster"], place, "cluster")
        try:
            at_s = (datetime.fromisoformat(row["timestamp"]) - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001 -- the trace has no offset
        except (ValueError, TypeError) as error:
            problem = "is not a time like 2017-10-09 07:01:55"
            raise BadInput(wrong_value(place, "timestamp", row["timestamp"], problem)) from error
        runs_for_s = _number(row, "duration", place)
        if not gpus:
            return "num_gpus is 0"
        each = max(n for n in range(1, GPUS_PER_POD_MAX + 1) if gpus % n == 0)
        group = ArrivingGroup(
            name="workers", pods=gpus // each, minimum=gpus // each, requests=_requests(gpu=each)
        )
        name = f"job-{place.rpartition(':')[2]}"
        return Arrival(
            at_s=at_s, namespace=cluster, name=name, groups=(group,), runs_for_s=runs_for_s
        )

    return _from_zero(trace.read(trace.rows(), job))


def _alibaba_pods(path: Path) -> Arrivals:
    """Read the pods of Alibaba GPU 2023, each alone; a share of a GPU is a whole one here, and types of GPUs are not asked for."""
    trace = _Trace(path)

    def pod(place: str, row: Row) -> Arrival | str:
        began = _number(row, "creation_time", place)
        started = _optional(row, "scheduled_time", place)
        ended = _optional(row, "deletion_time", place)
        from_s = began if started is None else started
        if ended is not None and ended < from_s:
            raise BadInput(wrong_value(place, "deletion_time", row["deletion_time"], f"is before {from_s:g}, when it was started"))  # fmt: skip
        requests = _requests(
            cpu=_number(row, "cpu_milli", place), memory=_number(row, "memory_mib", place) * MIB,
            gpu=_number(row, "num_gpu", place, whole=True),
        )  # fmt: skip
        if not requests:
            return "it requests nothing"
        return Arrival(
            at_s=began, namespace=_name(row.get("qos", "") or "pods", place, "qos"), name=_name(row["name"], place, "name"),
            groups=(ArrivingGroup(name="pod", pods=1, minimum=1, requests=requests),),
            runs_for_s=math.inf if ended is None else ended - from_s,
        )  # fmt: skip

    return _from_zero(trace.read(trace.rows(), pod))


class _Service:
    """A service of the DLRM trace: when its instances of each shape came and went."""

    def __init__(self) -> None:
        self.place = ""
        self.changes: dict[tuple[str, tuple[tuple[str, int], ...]], list[tuple[float, int]]] = (
            defaultdict(list)
        )
        self.last = 0.0

    def groups(self) -> tuple[ArrivingGroup, ...]:
        """Return a group for each role and shape, with the most instances that were there at once."""
        count: Counter[str] = Counter()
        groups = []
        for (role, requests), changes in sorted(self.changes.items()):
            most = now = 0
            for _, change in sorted(changes):  # of one moment, those that go before those that come
                now += change
                most = max(most, now)
            name = f"{role}-{count[role]}"
            count[role] += 1
            groups.append(
                ArrivingGroup(name=name, pods=most, minimum=most, requests=dict(requests))
            )
        return tuple(group for group in groups if group.pods)


def _alibaba_services(path: Path) -> Arrivals:
    """Read the services of disaggregated DLRM 2025: a tree of two roles each, CN (CPU) and HN (GPU).

    A service arrives with its first instance, with a group for each shape of a role and the most instances of it that were
    there at once, and ends with its last instance; it does not end where one has no end in the trace.
    """
    trace = _Trace(path)
    services: dict[str, _Service] = defaultdict(_Service)

    def instance(place: str, row: Row) -> None:
        role = _name(row["role"], place, "role")
        service = services[_name(row["app_name"], place, "app_name")]
        requests = _requests(
            cpu=_number(row, "cpu_request", place) * CORE, memory=_number(row, "memory_request", place) * GIB,
            gpu=_number(row, "gpu_request", place), rdma=_number(row, "rdma_request", place),
            disk=_number(row, "disk_request", place) * GIB,
        )  # fmt: skip
        came = _optional(row, "creation_time", place) or 0.0
        went = _optional(row, "deletion_time", place)
        if went is not None and went < came:
            raise BadInput(wrong_value(place, "deletion_time", row["deletion_time"], f"is before {came:g}, when it was created"))  # fmt: skip
        changes = service.changes[role, tuple(sorted(requests.items()))]
        changes.append((came, 1))
        if went is not None:
            changes.append((went, -1))
        service.last = max(service.last, math.inf if went is None else went)
        service.place = service.place or place

    for place, row in trace.rows():
        try:
            instance(place, row)
        except BadInput as error:
            trace.malformed.append(str(error))
    for name, service in services.items():
        if not service.changes:
            continue  # each of its lines is malformed
        came = min(at for changes in service.changes.values() for at, _ in changes)
        trace.add(
            service.place,
            lambda name=name, service=service, came=came: Arrival(  # type: ignore[misc]
                at_s=came,
                namespace="dlrm",
                name=name,
                groups=service.groups(),
                runs_for_s=service.last - came,
            ),
        )
    return trace.result()


class _Batsim(msgspec.Struct):
    jobs: list[Any]
    profiles: dict[str, Any]


def _batsim(path: Path) -> Arrivals:
    """Read the jobs of Batsim, each with a pod of a core for each resource; only delays have a run time without a platform."""
    trace = _Trace(path)
    try:
        whole = msgspec.json.decode(path.read_bytes(), type=_Batsim)
    except msgspec.MsgspecError as error:
        raise BadInput(f"{path}: is not JSON of Batsim with jobs and profiles: {error}") from error
    jobs, profiles = whole.jobs, whole.profiles

    def delay_s(profile: str, place: str, within: tuple[str, ...] = ()) -> float | None:
        """Return the run time of a profile; None: it depends on the platform."""
        if not isinstance(profiles.get(profile), dict):
            raise BadInput(
                wrong_value(place, "profile", profile, "is not among the profiles of the file")
            )
        if profile in within:
            raise BadInput(wrong_value(place, "profile", profile, "is composed of itself"))
        fields, where = profiles[profile], f"{path.name}: profiles.{profile}"
        if fields.get("type") == "delay":
            return _number({"delay": str(fields.get("delay", ""))}, "delay", where)
        if fields.get("type") == "composed":
            composed = fields.get("seq", [])
            if not isinstance(composed, list):
                raise BadInput(wrong_value(where, "seq", composed, "is not a list of profiles"))
            parts = [delay_s(str(part), place, (*within, profile)) for part in composed]
            delays = [part for part in parts if part is not None]
            times = _number({"repeat": str(fields.get("repeat", 1))}, "repeat", where)
            return sum(delays) * times if len(delays) == len(parts) else None
        return None

    def job(place: str, entry: Any) -> Arrival | str:  # noqa: ANN401 -- of a file
        if not isinstance(entry, dict):
            raise BadInput(wrong_value(place, "job", entry, "is not an object"))
        row = {name: str(value) for name, value in entry.items()}
        missing = {"id", "subtime", "res", "profile"} - row.keys()
        if missing:
            raise BadInput(wrong_value(place, min(missing), "", "is missing"))
        pods = int(_number(row, "res", place, whole=True))
        runs_for_s = delay_s(row["profile"], place)
        if runs_for_s is None:
            return "the run time of its profile depends on a platform"
        walltime = row.get("walltime", "-1")
        most_s = math.inf if walltime.startswith("-1") else _number(row, "walltime", place)
        group = ArrivingGroup(name="tasks", pods=pods, minimum=pods, requests=_requests(cpu=CORE))
        return Arrival(
            at_s=_number(row, "subtime", place), namespace="batsim", name=_name(f"job-{row['id']}", place, "id"), groups=(group,),
            runs_for_s=min(runs_for_s, most_s),
        )  # fmt: skip

    entries = ((f"{path.name}: jobs[{number}]", entry) for number, entry in enumerate(jobs))
    return trace.read(entries, job)


def _standard_workload_format(path: Path) -> Arrivals:
    """Read the Standard Workload Format, version 2: a pod of a core for each processor, a namespace for each queue."""
    trace = _Trace(path)

    def job(place: str, fields: list[str]) -> Arrival | str:
        if len(fields) != SWF_FIELDS:
            raise BadInput(wrong_value(place, "line", " ".join(fields)[:80], f"has {len(fields)} fields, not {SWF_FIELDS}"))  # fmt: skip
        submit, run, allocated, requested, memory_kb, queue = (
            _swf(fields, number, place) for number in (2, 4, 5, 8, 10, 15)
        )
        pods = int(requested if requested > 0 else allocated)
        if run < 0:
            return "its run time (field 4) is unknown: it never ran"
        if pods <= 0:
            return "its processors (fields 5 and 8) are unknown"
        requests = _requests(cpu=CORE, memory=max(memory_kb, 0) * 1024)
        group = ArrivingGroup(name="tasks", pods=pods, minimum=pods, requests=requests)
        return Arrival(
            at_s=submit, namespace=f"queue-{int(queue)}" if queue >= 0 else "queue-unknown",
            name=_name(f"job-{fields[0]}", place, "field 1"), groups=(group,), runs_for_s=run,
        )  # fmt: skip

    with path.open(encoding="utf-8-sig") as file:
        lines = (
            (trace.place(number), line.split())
            for number, line in enumerate(file, 1)
            if line.strip() and not line.startswith(";")
        )
        return trace.read(lines, job)


def _swf(fields: list[str], number: int, place: str) -> float:
    """Return a field by its number in the format, from 1; -1 is unknown."""
    text = fields[number - 1]
    return (
        UNKNOWN
        if text.startswith("-1")
        else _number({f"field {number}": text}, f"field {number}", place)
    )


def _from_zero(arrivals: Arrivals) -> Arrivals:
    """Return arrivals whose first one is at 0."""
    first = min((arrival.at_s for arrival in arrivals.arrivals), default=0.0)
    moved = [msgspec.structs.replace(a, at_s=a.at_s - first) for a in arrivals.arrivals]
    return in_order(moved, list(arrivals.malformed), arrivals.left_out)


_BY_COLUMNS: Final[dict[frozenset[str], Callable[[Path], Arrivals]]] = {
    frozenset({"timestamp", "duration", "num_gpus", "cluster"}): _philly,
    frozenset({"name", "cpu_milli", "memory_mib", "num_gpu", "creation_time", "deletion_time", "scheduled_time"}): _alibaba_pods,
    frozenset({"app_name", "role", "cpu_request", "gpu_request", "rdma_request", "memory_request", "disk_request", "creation_time", "deletion_time"}): _alibaba_services,
}  # fmt: skip
