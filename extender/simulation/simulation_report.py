"""What a simulation shows: waits, utilisation, what was evicted and what starved, by namespace and size of the jobs."""

from __future__ import annotations

import bisect
import html
import io
import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final, Literal

import msgspec

from extender.core.log.events import CapacityMeasured, GangAdmitted, PreemptionPlanned
from extender.core.model.message_formatting import duration_text
from extender.core.model.quantities import CPU
from extender.simulation.controllers import Job
from extender.simulation.simulation import BEGAN_US, Outcome

SIZES: Final = (1, 8, 32, 128, 512)  # largest units of a class; above: the last class
# Of Student's distribution: 97.5 % are below, by the number of values; more of them than these change little.
T_95: Final = (
    math.inf, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
LEFT, RIGHT, TOP, BOTTOM = 60, 860, 24, 300  # of a plot, in its units
WIDTH, HEIGHT = RIGHT + 20, BOTTOM + 24
DASH: Final = 4
FONT: Final = 12
PIXELS: Final = 2  # of a unit of the plot, in a PNG
ANCHORS: Final = {"start": "ls", "middle": "ms", "end": "rs"}  # of Pillow
HOUR_S: Final = 3600.0
MILLICORES: Final = 1000  # of a CPU: the only resource that is not counted in whole units


class JobClass(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one namespace and size. Times in seconds; None: no job of the class was admitted.

    Attributes:
        size: Units of the counted resource of a job, such as `2-8`.
        jobs: Complete ones: all their pods were created.
        admitted: Of these, admitted at least once.
        ended: Of these, ended by themselves.
        wait_p50_s: From complete to admitted, of those that were admitted.
        starved: Those that still wait at the end, longer than every other job of the class had to.
        evictions: How often a job lost its minimum while it ran.
        lost_unit_hours: Units times hours of the runs that were lost so.
    """

    namespace: str
    size: str
    jobs: int
    admitted: int
    ended: int
    wait_p50_s: float | None
    wait_p95_s: float | None
    wait_max_s: float | None
    starved: int
    evictions: int
    lost_unit_hours: float


class LargestFree(msgspec.Struct, frozen=True, kw_only=True):
    """The largest free domain of the counted resource on a level, as the log has it: at its least, and at the end."""

    key: str  # topology key; empty: one node
    least: float
    last: float


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report; `digest` is the SHA-256 of the log, equal for equal seeds."""

    seed: int
    until_s: float
    counted: str
    capacity: float
    utilisation: float  # share of the capacity that bound pods used
    preemptions: int
    largest_free: tuple[LargestFree, ...]
    classes: tuple[JobClass, ...]
    events: int
    digest: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the unchanged and of the changed runs, each the mean over the seeds.

    Attributes:
        figure: Its name, with the unit.
        unchanged: Mean; None: no run has it.
        changed: The same of the changed runs.
        difference: Mean of the differences of the runs of one seed.
        interval: The 95 % confidence interval of this mean, by Student's distribution; None with one seed.
    """

    figure: str
    unchanged: float | None
    changed: float | None
    difference: float | None
    interval: tuple[float, float] | None


def compare(pairs: Sequence[tuple[Outcome, Outcome]]) -> tuple[Difference, ...]:
    """Return the differences of pairs of an unchanged and a changed run, of a seed each."""
    before, after = ([_figures(outcome) for outcome in side] for side in zip(*pairs, strict=True))
    differences = []
    for figure in before[0]:
        both = [
            (old[figure], new[figure])
            for old, new in zip(before, after, strict=True)
            if not math.isnan(old[figure]) and not math.isnan(new[figure])
        ]
        changes = [new - old for old, new in both]
        interval = None
        if len(changes) > 1:
            mean, half = fmean(changes), T_95[min(len(changes), len(T_95)) - 1]
            half *= stdev(changes) / math.sqrt(len(changes))
            interval = (mean - half, mean + half)
        differences.append(
            Difference(
                figure=figure,
                unchanged=fmean(old for old, _ in both) if both else None,
                changed=fmean(new for _, new in both) if both else None,
                difference=fmean(changes) if both else None,
                interval=interval,
            )
        )
    return tuple(differences)


def _figures(outcome: Outcome) -> dict[str, float]:
    """Return what is compared; not a number where a run does not have it."""
    shown = report(outcome, 0)
    waits = sorted(_waits(outcome))
    quantiles = {
        f"wait {name}, min": share / 60 if share is not None else math.nan
        for name, share in (("p50", _share(waits, 0.5)), ("p95", _share(waits, 0.95)), ("max", _share(waits, 1.0)))
    }  # fmt: skip
    mean = fmean(waits) / 60 if waits else math.nan
    unit = outcome.counted.rpartition("/")[2]
    return {
        "admitted": float(len(waits)),
        "ended": float(sum(each.ended for each in shown.classes)),
        "starved": float(sum(each.starved for each in shown.classes)),
        "wait mean, min": mean,
        **quantiles,
        "utilisation, %": 100 * shown.utilisation,
        "preemptions": float(shown.preemptions),
        "evictions": float(sum(each.evictions for each in shown.classes)),
        f"lost {unit}-hours": sum(each.lost_unit_hours for each in shown.classes),
    }


def _waits(outcome: Outcome) -> list[float]:
    return [
        max(0.0, placed_s - job.complete_s)
        for job, placed_s in zip(outcome.jobs, placements_s(outcome), strict=True)
        if placed_s is not None and job.complete_s is not None
    ]


def placements_s(outcome: Outcome) -> list[float | None]:
    """Return when each job was admitted; a lone pod is bound by kube-scheduler without an admission."""
    placed_s: list[float | None] = [None] * len(outcome.jobs)
    job_of_pod = {
        f"{job.namespace}/{pod}": number
        for number, job in enumerate(outcome.jobs)
        for pod in job.pods
    }
    for event in outcome.events():
        if isinstance(event.data, GangAdmitted) and event.data.assignments:
            number = job_of_pod.get(event.data.assignments[0].pod)
            if number is not None and placed_s[number] is None:
                placed_s[number] = (event.at_us - BEGAN_US) / 1e6
    return [
        job.bound_s if time_s is None else time_s
        for job, time_s in zip(outcome.jobs, placed_s, strict=True)
    ]


def report(outcome: Outcome, seed: int) -> SimulationReport:
    """Return the report of a simulation."""
    least: dict[str, int] = {}
    last: dict[str, int] = {}
    preemptions = 0
    unit = MILLICORES if outcome.counted == CPU else 1
    for event in outcome.events():
        data = event.data
        if isinstance(data, CapacityMeasured):
            for domain in data.largest_free:
                if domain.resource == outcome.counted:
                    least[domain.key] = min(domain.free, least.get(domain.key, domain.free))
                    last[domain.key] = domain.free
        preemptions += isinstance(data, PreemptionPlanned)
    classes: dict[tuple[str, int], list[tuple[Job, float | None]]] = {}
    for job, placed_s in zip(outcome.jobs, placements_s(outcome), strict=True):
        size = bisect.bisect_left(SIZES, job.size / unit)
        classes.setdefault((job.namespace, size), []).append((job, placed_s))
    whole = outcome.capacity * outcome.ended_s
    return SimulationReport(
        seed=seed,
        until_s=outcome.ended_s,
        counted=outcome.counted,
        capacity=outcome.capacity / unit,
        utilisation=outcome.used_unit_s / whole if whole else 0.0,
        preemptions=preemptions,
        largest_free=tuple(
            LargestFree(key=key, least=least[key] / unit, last=last[key] / unit)
            for key in sorted(least)
        ),
        classes=tuple(
            _class(namespace, size, jobs, outcome.ended_s, unit)
            for (namespace, size), jobs in sorted(classes.items())
        ),
        events=len(outcome.database.rows),
        digest=outcome.digest(),
    )


def _class(
    namespace: str, size: int, placed: Sequence[tuple[Job, float | None]], ended_s: float, unit: int
) -> JobClass:
    waits: list[float] = []
    still: list[float] = []
    jobs = [job for job, _ in placed]
    for job, placed_s in placed:
        assert job.complete_s is not None, f"{job.path} has arrived"
        if placed_s is None and job.pods:  # without pods nothing waits
            still.append(ended_s - job.complete_s)
        elif placed_s is not None:
            waits.append(max(0.0, placed_s - job.complete_s))
    waits.sort()
    longest = waits[-1] if waits else 0.0
    return JobClass(
        namespace=namespace,
        size=_size_text(size),
        jobs=len(jobs),
        admitted=len(waits),
        ended=sum(job.ended_s is not None for job in jobs),
        wait_p50_s=_share(waits, 0.5),
        wait_p95_s=_share(waits, 0.95),
        wait_max_s=_share(waits, 1.0),
        starved=sum(wait_s > longest for wait_s in still),
        evictions=sum(job.evictions for job in jobs),
        lost_unit_hours=round(sum(job.lost_unit_s for job in jobs) / unit / HOUR_S, 3),
    )


def _share(ordered: Sequence[float], share: float) -> float | None:
    """Return the least value that at least this share of some sorted values does not exceed."""
    if not ordered:
        return None
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)


def _size_text(number: int) -> str:
    """Return the bounds of a class.

    >>> [_size_text(number) for number in (0, 1, 5)]
    ['1', '2-8', '513+']
    """
    if number == len(SIZES):
        return f"{SIZES[-1] + 1}+"
    least = SIZES[number - 1] + 1 if number else SIZES[0]
    return str(least) if least == SIZES[number] else f"{least}-{SIZES[number]}"


class _Line(msgspec.Struct, frozen=True):
    """Polylines of one colour; points are (x, y) in units of the plot, as is everything that is drawn."""

    colour: str
    polylines: tuple[tuple[tuple[float, float], ...], ...]


class _Text(msgspec.Struct, frozen=True):
    """A text; its baseline starts, is centred or ends at a point."""

    x: float
    y: float
    text: str
    anchor: Literal["start", "middle", "end"] = "start"


def plotted(outcome: Outcome, suffix: str) -> bytes:
    """Return what is used and what waits over time as a file.

    Args:
        suffix: `.svg`; `.html`: a page with it; `.png`: as a picture, for which Pillow must be installed.
    """
    lines, texts = _drawn(outcome)
    if suffix == ".png":
        return _png(lines, texts)
    svg = _svg(lines, texts)
    if suffix == ".html":
        svg = f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>Simulation</title>\n{svg}</html>\n'
    return svg.encode()


def _drawn(outcome: Outcome) -> tuple[list[_Line], list[_Text]]:
    unit = MILLICORES if outcome.counted == CPU else 1
    changes: list[tuple[float, int]] = []
    for job, placed_s in zip(outcome.jobs, placements_s(outcome), strict=True):
        if job.complete_s is not None and job.pods:
            changes.append((job.complete_s, job.size))
            changes += [(placed_s, -job.size)] if placed_s is not None else []
    waiting, waits = [], 0
    for at_s, size in sorted(changes):
        waits += size
        waiting.append((at_s, waits))
    top = max(outcome.capacity, *(units for _, units in (*outcome.used, *waiting)), 1)

    def height(units: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * units / top

    def steps(values: Sequence[tuple[float, int]]) -> tuple[tuple[float, float], ...]:
        points, before = [(float(LEFT), float(BOTTOM))], 0
        for at_s, units in (*values, (outcome.ended_s, values[-1][1] if values else 0)):
            x = LEFT + (RIGHT - LEFT) * at_s / outcome.ended_s
            points += [(x, height(before)), (x, height(units))]
            before = units
        return tuple(points)

    capacity = height(outcome.capacity)
    lines = [
        _Line("black", (((LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)),)),
        _Line("grey", tuple(((x, capacity), (x + DASH, capacity)) for x in range(LEFT, RIGHT, 2 * DASH))),
        _Line("blue", (steps(outcome.used),)),
        _Line("red", (steps(waiting),)),
    ]  # fmt: skip
    title = (
        f"{outcome.counted}: used (blue), waiting for its first admission (red), all nodes (grey)"
    )
    texts = [
        _Text(LEFT, 14, title),
        _Text(LEFT - 6, TOP + 4, f"{top / unit:g}", "end"),
        _Text(LEFT - 6, BOTTOM + 4, "0", "end"),
    ]
    for quarter in range(5):
        x = LEFT + (RIGHT - LEFT) * quarter / 4
        texts.append(_Text(x, BOTTOM + 16, duration_text(outcome.ended_s * quarter / 4), "middle"))
    return lines, texts


def _svg(lines: Sequence[_Line], texts: Sequence[_Text]) -> str:
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="{FONT}">',
        *(
            f'<text x="{each.x:g}" y="{each.y:g}" text-anchor="{each.anchor}">{html.escape(each.text)}</text>'
            for each in texts
        ),
    ]
    for line in lines:
        path = "".join(
            "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in polyline) for polyline in line.polylines
        )
        elements.append(f'<path d="{path}" fill="none" stroke="{line.colour}"/>')
    return "\n".join((*elements, "</svg>\n"))


def _png(lines: Sequence[_Line], texts: Sequence[_Text]) -> bytes:
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (WIDTH * PIXELS, HEIGHT * PIXELS), "white")
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(FONT * PIXELS)  # of Pillow: the same text on each machine
    for each in texts:
        anchor = ANCHORS[each.anchor]
        draw.text((each.x * PIXELS, each.y * PIXELS), each.text, "black", font, anchor)
    for line in lines:
        for polyline in line.polylines:
            points = [(x * PIXELS, y * PIXELS) for x, y in polyline]
            draw.line(points, line.colour, PIXELS)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
