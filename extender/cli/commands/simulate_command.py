"""`simulate`: a cluster and what arrives in it, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from extender import settings as settings_module
from extender.cli.commands.history_commands import Folder
from extender.cli.options.list_options import ValueForm
from extender.cli.output.printing import Output, complain, console, print_table, print_value
from extender.core.model.errors import BadInput, merged_by_object
from extender.core.model.message_formatting import counted, duration_text

if TYPE_CHECKING:
    from extender.simulation.controllers import Job
    from extender.simulation.simulation import Outcome
    from extender.simulation.simulation_report import SimulationReport

UNTIL = "7d"
UNTIL_MAX_S = 10 * 365 * 86_400  # more is a mistake, and takes days
IDENTITY = "simulation"
AT_ONCE = 500  # events of one append
WRITTEN_WITHIN_MS = 3_600_000
NAMED_MAX = 20  # malformed lines of a trace that are named; all are counted


def simulate(
    cluster: Annotated[
        list[str],
        typer.Option("--cluster", help="Nodes and other objects. File or folder; repeatable."),
    ],
    workloads: Annotated[
        list[str],
        typer.Option(
            "--workloads",
            help="What arrives: workloads and pods with gang-extender.dev/arrives-after, arrives-every and runs-for, or a public trace (.csv of Philly or Alibaba, .json of Batsim, .swf). File or folder; repeatable.",
        ),
    ],
    until: Annotated[str, typer.Option(help="How long is simulated: 90m, 12h, 30d.")] = UNTIL,
    duration: Annotated[
        str | None,
        typer.Option(
            help="How long workloads without runs-for run: 2h, 2h-6h or mean:2h; unset: without an end."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is left to chance.")] = 1,
    data_dir: Folder = None,
    output: ValueForm = Output.table,
) -> None:
    """Simulate a cluster in virtual time: waits, utilisation, evictions and what starves, by namespace and size.

    The service is the one of `serve`, with the settings of the environment; time passes only while nothing is to be done.
    With --data-dir the log is written to a new embedded database, which `events`, `history` and `report` read,
    and which a service on it reads for `explain --at`.
    """
    from extender.cluster.manifests.manifest_entries import Role, read
    from extender.cluster.manifests.manifest_loader import complete
    from extender.simulation.job_files import Duration, jobs_of, span_s, with_profiles
    from extender.simulation.simulation import Scenario
    from extender.simulation.simulation import simulate as run
    from extender.simulation.simulation_report import report
    from extender.simulation.trace_readers import is_trace

    until_s = span_s(until, "--until")
    if not 0 < until_s <= UNTIL_MAX_S:
        raise BadInput(f"--until: {until!r} is not between 1s and {duration_text(UNTIL_MAX_S)}")
    drawn = Duration.read(duration, "--duration") if duration is not None else None
    folder = Path(data_dir) if data_dir is not None else None
    if folder is not None and folder.exists() and not folder.is_dir():
        raise BadInput(f"--data-dir {data_dir}: is no folder; name one that is not there yet")
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise BadInput(f"--data-dir {data_dir}: is not empty; a simulation begins a new log")
    traces = [name for name in workloads if is_trace(Path(name))]
    objects = read(cluster, Role.CLUSTER)
    files = read([name for name in workloads if name not in traces], Role.WANTED)
    arriving, unlabelled = with_profiles(files, objects)
    context, jobs = jobs_of(arriving, until_s=until_s, duration=drawn, seed=seed)
    jobs += tuple(job for name in traces for job in _jobs_of_trace(Path(name), until_s))
    existing = (*objects, *context)
    notes = tuple(f"{entry.where}: {text}" for entry in arriving for text in entry.notes)
    for warning in merged_by_object((*complete(existing).warnings, *notes, *unlabelled)):
        complain(f"warning: {warning}")
    if not traces and len(context) == len(arriving):
        raise BadInput(
            f"--workloads {workloads[0]}: the files have no workload and no pod, so nothing arrives"
        )
    outcome = run(
        Scenario(
            cluster=existing,
            jobs=jobs,
            until_s=until_s,
            seed=seed,
            settings=settings_module.load(),
        )
    )
    shown = report(outcome, seed)
    if data_dir is not None:
        asyncio.run(_write(outcome, data_dir))
    if output is not Output.table:
        print_value(shown, output)
        return
    _print(shown)


def _jobs_of_trace(path: Path, until_s: float) -> Iterator[Job]:
    """Yield the jobs of a trace that arrive in time; what is no arrival is named on stderr, and counted.

    Raises:
        BadInput: It is no trace.
    """
    from extender.simulation.job_files import job_of
    from extender.simulation.trace_readers import read_trace

    trace = read_trace(path)
    for text in trace.malformed[:NAMED_MAX]:
        complain(text)
    left_out = {"malformed": len(trace.malformed)} if trace.malformed else {}
    left_out |= trace.left_out
    late = sum(arrival.at_s >= until_s for arrival in trace.arrivals)
    left_out |= {"arrive after --until": late} if late else {}
    total = len(trace.arrivals) + len(trace.malformed) + sum(trace.left_out.values())
    for reason, count in left_out.items():
        complain(f"{path}: {count} of {total} left out: {reason}")
    for arrival in trace.arrivals:
        if arrival.at_s < until_s:
            yield job_of(arrival)


async def _write(outcome: Outcome, data_dir: str) -> None:
    """Write the log of a simulation, and what follows from it, to a new database."""
    from extender.composition import store
    from extender.control.monitors.read_model_projector import project_all

    settings = settings_module.load_for_log(None, data_dir)
    events = outcome.events()
    async with store(settings, migrates=True) as opened:
        grant = await opened.log.take(
            holder=IDENTITY, address="", ttl_ms=WRITTEN_WITHIN_MS, above=events[0].epoch - 1
        )
        for first in range(0, len(events), AT_ONCE):
            await opened.log.append(grant, events[first : first + AT_ONCE])
        for stored in outcome.database.inputs.values():
            await opened.inputs.save(stored)
        await project_all(opened.projection, events[-1].position)
        while await opened.reference_index.note(AT_ONCE) == AT_ONCE:
            pass
        await opened.log.release(grant)


def _print(shown: SimulationReport) -> None:
    rows = [
        (
            each.namespace,
            each.size,
            str(each.jobs),
            str(each.admitted),
            str(each.ended),
            *(
                "" if wait is None else duration_text(wait)
                for wait in (each.wait_p50_s, each.wait_p95_s, each.wait_max_s)
            ),
            str(each.starved),
            str(each.evictions),
            f"{each.lost_unit_hours:.1f}",
        )
        for each in shown.classes
    ]
    unit = shown.counted.rpartition("/")[2]
    print_table(
        ("namespace", unit, "jobs", "admitted", "ended", "wait p50", "p95", "max", "starved", "evictions", f"lost {unit}-hours"),
        rows,
        empty=f"nothing arrived within {duration_text(shown.until_s)}",
    )  # fmt: skip
    lines = [
        "",
        f"{duration_text(shown.until_s)} with seed {shown.seed}: {shown.utilisation:.1%} of {shown.capacity:g} {shown.counted} used, "
        f"{counted(shown.preemptions, 'preemption')}, {counted(shown.events, 'event')}, log {shown.digest[:16]}",
    ]
    lines += [
        f"largest free {free.key or 'node'}: {free.least:g} at its least, {free.last:g} at the end"
        for free in shown.largest_free
    ]
    for line in lines:
        console(wrap=False).print(line)
