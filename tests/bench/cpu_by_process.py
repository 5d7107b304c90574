"""CPU for each member that is bound, by process: what does not change with other load, and what a rate on full processors follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.bench.figures import Figure, short
from tests.bench.machine import speed_text

# As it is shown -> names in `Stand.cpu_s`; who creates the load and looks on is none of them
PROCESSES: Mapping[str, tuple[str, ...]] = {
    "kube-apiserver": ("kube-apiserver",),
    "etcd": ("etcd",),
    "kube-scheduler": ("kube-scheduler",),
    "service": ("service", "service's children"),
    "PostgreSQL": ("postgres",),
}
OURS_ALONE = ("service", "PostgreSQL")  # not of the native gang
ALL = "all"
# what such a figure is called begins so, and ends with the process
PER_MEMBER = "CPU per member bound, "
HEAD = ("CPU per member bound: here / native, ms", *PROCESSES, ALL, "ratio", "machine speed")


def per_member_ms(cpu_s: Mapping[str, float], members: int) -> dict[str, float]:
    """Return CPU milliseconds for each member, by process and of all of them; without a service only of those that remain.

    Args:
        cpu_s: Name in `Stand.cpu_s` -> CPU seconds of a run.
        members: How many were bound in it.
    """
    used = {
        process: sum(cpu_s.get(name, 0.0) for name in names) / members * 1000
        for process, names in PROCESSES.items()
        if "service" in cpu_s or process not in OURS_ALONE
    }
    return used | {ALL: sum(used.values())}


def is_by_process(figure: Figure) -> bool:
    """Return whether a figure belongs into the table."""
    return figure.what.startswith(PER_MEMBER)


def cpu_rows(figures: Iterable[Figure]) -> list[tuple[str, ...]]:
    """Return the table as text, `HEAD` first: a row for each case, with here / native of each process and the ratio of all."""
    cases: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        case, _, process = figure.what.removeprefix(PER_MEMBER).rpartition(": ")
        cases.setdefault(case, {})[process] = figure
    return [HEAD, *(_row(case, by_process) for case, by_process in cases.items())]


def _row(case: str, by_process: Mapping[str, Figure]) -> tuple[str, ...]:
    cells = [_cell(by_process.get(process)) for process in (*PROCESSES, ALL)]
    total = by_process.get(ALL)
    ratio = f"{total.ratio:.2f} x" if total is not None and total.baseline else "-"
    speeds: Sequence[float] = total.machine_speed if total is not None else ()
    return (case, *cells, ratio, speed_text(speeds))


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"{short(figure.median)} / {short(figure.baseline_median) if figure.baseline else '-'}"
