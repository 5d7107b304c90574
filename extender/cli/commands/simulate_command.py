"""`simulate`: a cluster and what arrives in it, in virtual time."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from extender import settings as settings_module
from extender.cli.commands.history_commands import Folder, LogUrl
from extender.cli.options.list_options import SECOND_US, ValueForm, moment_us
from extender.cli.output.printing import Output, complain, console, print_table, print_value
from extender.core.model.errors import BadInput, merged_by_object
from extender.core.model.message_formatting import counted, did_you_mean, duration_text, rfc3339
from extender.runtime.system_clock import SystemClock

if TYPE_CHECKING:
    from extender.core.workloads.tree_policy import TreeProfile
    from extender.simulation.controllers import Job
    from extender.simulation.simulation import Outcome
    from extender.simulation.simulation_report import Difference, SimulationReport

UNTIL = "7d"
SINCE = "30d"
SEEDS_MAX = 30
PLOTS = (".svg", ".html", ".png")
UNTIL_MAX_S = 10 * 365 * 86_400  # more is a mistake, and takes days
IDENTITY = "simulation"
AT_ONCE = 500  # events of one append
WRITTEN_WITHIN_MS = 3_600_000
NAMED_MAX = 20  # malformed lines of a trace that are named; all are counted


class PastComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A simulation of the past of a log, unchanged and changed."""

    since: str  # RFC 3339
    until_s: float
    gangs: int
    nodes: int
    seeds: tuple[int, ...]
    notes: tuple[str, ...]  # what the log does not have
    differences: tuple[Difference, ...]


class _Changes(msgspec.Struct, frozen=True):
    """What is changed of the past, and which past: options that are for --from-log."""

    since: Annotated[
        str | None,
        typer.Option(
            help="With --from-log: from this time on, such as 3d before now; default: 30d."
        ),
    ] = None
    further: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="[N x]NODE",
            help="With --from-log: with more empty nodes like NODE, such as 8xNODE; repeatable.",
        ),
    ] = None
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="NODE|KEY=VALUE",
            help="With --from-log: without these nodes; repeatable.",
        ),
    ] = None
    replaced: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="With --from-log: with another value of a setting, such as hold_capacity_after_s=60; repeatable.",
        ),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="With --from-log: with the TreeProfiles of this file or folder in place of those of their names.",
        ),
    ] = None
    seeds: Annotated[
        int | None,
        typer.Option(
            help="With --from-log: run so many seeds, for intervals of the differences; default: 1.",
            min=1,
            max=SEEDS_MAX,
        ),
    ] = None

    def profiles(self) -> dict[str, TreeProfile]:
        """Return the TreeProfiles of --profile by name.

        Raises:
            BadInput: There is no such file, or none in it.
        """
        from extender.cluster import types as api
        from extender.cluster.manifests.manifest_entries import Role, read
        from extender.cluster.read.object_decoding import profile_of

        if self.profile is None:
            return {}
        objects = [entry.obj for entry in read([self.profile], Role.CLUSTER)]
        profiles = [profile_of(obj) for obj in objects if isinstance(obj, api.TreeProfile)]
        if not profiles:
            hint = "write one with the name that the workloads have as their tree label"
            raise BadInput(f"--profile {self.profile}: the files have no TreeProfile; {hint}")
        return {profile.name: profile for profile in profiles}

    def settings(self) -> settings_module.Settings:
        """Return the settings of the environment with those of --set.

        Raises:
            BadInput: A text is not NAME=VALUE, or the setting has no such value.
        """
        values: dict[str, object] = {}
        for text in self.replaced or ():
            name, equals, value = text.partition("=")
            name = name.strip().lower().replace("-", "_")
            names = [setting.name for setting in settings_module.all_settings()]
            if not equals or name not in names:
                hint = did_you_mean(name, names) if equals else ""
                problem = "there is no such setting" if equals else "is not NAME=VALUE"
                raise BadInput(f"--set {text}: {problem}{hint}; such as hold_capacity_after_s=60")
            values[name] = value
        try:
            return settings_module.load(None, **values)
        except BadInput as error:  # names the flag of `serve`
            message = str(error)
            for setting in settings_module.all_settings():
                if setting.name in values:
                    flag = rf"{re.escape(setting.flag)}(?![\w-])"
                    message = re.sub(flag, f"--set {setting.name}", message)
            raise BadInput(message) from error


def simulate(
    *,
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", help="Nodes and other objects. File or folder; repeatable."),
    ] = None,
    workloads: Annotated[
        list[str] | None,
        typer.Option(
            "--workloads",
            help="What arrives: workloads and pods with gang-extender.dev/arrives-after, arrives-every and runs-for, or a public trace (.csv of Philly or Alibaba, .json of Batsim, .swf). File or folder; repeatable.",
        ),
    ] = None,
    from_log: Annotated[
        bool,
        typer.Option(
            "--from-log",
            help="Simulate the nodes and gangs of the log, unchanged and with --with, --without, --set and --profile, and compare.",
        ),
    ] = False,
    changes: _Changes,
    until: Annotated[
        str | None,
        typer.Option(
            help="How long is simulated: 90m, 12h, 30d; default: 7d, with --from-log up to now."
        ),
    ] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            help="How long workloads without runs-for run: 2h, 2h-6h or mean:2h; unset: without an end."
        ),
    ] = None,
    node_failures: Annotated[
        str | None,
        typer.Option(
            metavar="MEAN[/FOR]|FILE",
            help="Let nodes fail: mean time between two failures of a node and how long it is away, such as 30d/2h, or a file of lines NODE,AT,FOR.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw what is used and what waits over time into this file: .svg, .html or .png."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is left to chance.")] = 1,
    data_dir: Folder = None,
    database_url: LogUrl = None,
    output: ValueForm = Output.table,
) -> None:
    """Simulate a cluster in virtual time: waits, utilisation, evictions and what starves, by namespace and size.

    The service is the one of `serve`, with the settings of the environment; time passes only while nothing is to be done.
    With --data-dir the log is written to a new embedded database, which `events`, `history` and `report` read,
    and which a service on it reads for `explain --at`. With --from-log it is the folder of the log that is read.
    """
    if from_log:
        names = ("--cluster", "--workloads", "--duration", "--node-failures", "--plot")
        values = (cluster, workloads, duration, node_failures, plot)
        for option in (name for name, value in zip(names, values, strict=True) if value):
            raise BadInput(f"--from-log: takes nodes and gangs from the log, so not with {option}")
        seeds = range(seed, seed + (changes.seeds or 1))
        _simulate_past(changes, until, seeds, (database_url, data_dir), output)
        return
    _check_only_of_a_log(changes, database_url)
    if not (cluster and workloads):
        raise BadInput("give --cluster and --workloads, or --from-log")
    if plot is not None:
        _check_plot(plot)
    files = _Files(tuple(cluster), tuple(workloads), until or UNTIL, duration, node_failures, plot)
    _simulate_files(files, seed, data_dir, output)


def _check_only_of_a_log(changes: _Changes, url: str | None) -> None:
    files = "change the files of --cluster, or the variables of the settings"
    for option, value, hint in (
        ("--with", changes.further, files),
        ("--without", changes.without, files),
        ("--set", changes.replaced, files),
        ("--profile", changes.profile, "give its TreeProfiles in the files of --cluster"),
        ("--since", changes.since, "give --until"),
        ("--seeds", changes.seeds, "give another --seed for another run"),
        ("--database-url", url and "", "--data-dir is where a new log is written"),
    ):
        if value is not None and value != []:
            shown = value[0] if isinstance(value, list) else value
            raise BadInput(f"{f'{option} {shown}'.rstrip()}: is for --from-log; {hint}")


def _check_plot(plot: Path) -> None:
    """Refuse a file that cannot be written, before the simulation, which may take long."""
    if plot.suffix not in PLOTS:
        raise BadInput(f"--plot {plot}: ends with none of {', '.join(PLOTS)}")
    if plot.suffix == ".png" and find_spec("PIL") is None:
        raise BadInput(
            f"--plot {plot}: needs Pillow, which is not installed: pip install 'gang-extender[png]', or name an .svg"
        )
    if plot.is_dir():
        raise BadInput(f"--plot {plot}: is a folder; name a file")
    if not plot.parent.is_dir():
        raise BadInput(f"--plot {plot}: there is no folder {plot.parent}")
    if not os.access(plot if plot.exists() else plot.parent, os.W_OK):
        raise BadInput(f"--plot {plot}: cannot be written")


class _Files(msgspec.Struct, frozen=True):
    """What is simulated of files: the values of the options."""

    cluster: tuple[str, ...]
    workloads: tuple[str, ...]
    until: str
    duration: str | None
    node_failures: str | None
    plot: Path | None


def _simulate_files(files: _Files, seed: int, data_dir: str | None, output: Output) -> None:
    from extender.cluster.manifests.manifest_entries import Role, read
    from extender.cluster.manifests.manifest_loader import complete
    from extender.simulation.job_files import Duration, failures_of, jobs_of, span_s, with_profiles
    from extender.simulation.simulation import Scenario
    from extender.simulation.simulation import simulate as run
    from extender.simulation.simulation_report import plotted, report
    from extender.simulation.trace_readers import is_trace

    workloads, until = files.workloads, files.until
    until_s = span_s(until, "--until")
    if not 0 < until_s <= UNTIL_MAX_S:
        raise BadInput(f"--until: {until!r} is not between 1s and {duration_text(UNTIL_MAX_S)}")
    drawn = None if files.duration is None else Duration.read(files.duration, "--duration")
    folder = Path(data_dir) if data_dir is not None else None
    if folder is not None and folder.exists() and not folder.is_dir():
        raise BadInput(f"--data-dir {data_dir}: is no folder; name one that is not there yet")
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise BadInput(f"--data-dir {data_dir}: is not empty; a simulation begins a new log")
    traces = [name for name in workloads if is_trace(Path(name))]
    objects = read(files.cluster, Role.CLUSTER)
    arriving_entries = read([name for name in workloads if name not in traces], Role.WANTED)
    arriving, unlabelled = with_profiles(arriving_entries, objects)
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
    nodes = [entry.obj.metadata.name for entry in existing if entry.ident[0] == "Node"]
    outcome = run(
        Scenario(
            failures=failures_of(files.node_failures, nodes, until_s=until_s, seed=seed)
            if files.node_failures is not None
            else (),
            cluster=existing,
            jobs=jobs,
            until_s=until_s,
            seed=seed,
            settings=settings_module.load(),
        )
    )
    shown = report(outcome, seed)
    if files.plot is not None:
        files.plot.write_bytes(plotted(outcome, files.plot.suffix))
    if data_dir is not None:
        asyncio.run(_write(outcome, data_dir))
    if output is not Output.table:
        print_value(shown, output)
        return
    _print(shown)


def _jobs_of_trace(path: Path, until_s: float) -> Iterator[Job]:
    """Yield the jobs of a trace that arrive in time; what is no arrival is named on stderr, and counted."""
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


def _simulate_past(
    changes: _Changes,
    until: str | None,
    seeds: range,
    source: tuple[str | None, str | None],
    output: Output,
) -> None:
    """Print how the past would have gone with changes, beside the past as it is simulated without them."""
    from extender.composition import recorded_decisions
    from extender.simulation.job_files import span_s
    from extender.simulation.past_jobs import Past, read_past
    from extender.simulation.simulation import Scenario
    from extender.simulation.simulation import simulate as run
    from extender.simulation.simulation_report import compare

    now_us, since = SystemClock().now_us(), changes.since or SINCE
    since_us = moment_us(since, "--since", now_us)
    until_s = span_s(until, "--until") if until is not None else (now_us - since_us) / SECOND_US
    if until is not None and until_s <= 0:
        raise BadInput(f"--until: {until!r} is not above 0")
    until_us = min(now_us, since_us + int(min(until_s, UNTIL_MAX_S) * SECOND_US))
    if not 0 < until_us - since_us <= UNTIL_MAX_S * SECOND_US:
        raise BadInput(f"--since {since}: is not between {duration_text(UNTIL_MAX_S)} ago and now")
    changed, unchanged = changes.settings(), settings_module.load()
    profiles = changes.profiles()

    async def read_log() -> Past:
        settings = settings_module.load_for_log(*source)
        async with recorded_decisions(settings) as (reader, inputs):
            return await read_past(reader, inputs, since_us, until_us, profiles)

    past = asyncio.run(read_log())
    for note in past.notes:
        complain(f"note: {note}")
    clusters = past.cluster(), past.cluster(changes.without or (), changes.further or ())
    until_s = (until_us - since_us) / SECOND_US
    pairs = []
    for seed in seeds:
        before, after = (
            run(Scenario(cluster=nodes, jobs=past.jobs(seed, changed=is_changed), until_s=until_s, seed=seed, settings=settings))
            for nodes, settings, is_changed in zip(clusters, (unchanged, changed), (False, True), strict=True)
        )  # fmt: skip
        pairs.append((before, after))
    differences = compare(pairs)
    if output is not Output.table:
        print_value(
            PastComparison(
                since=rfc3339(since_us),
                until_s=until_s,
                gangs=len(past.gangs),
                nodes=len(past.nodes),
                seeds=tuple(seeds),
                notes=past.notes,
                differences=differences,
            ),
            output,
        )
        return

    def text(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    rows = [
        (
            each.figure,
            text(each.unchanged),
            text(each.changed),
            "" if each.difference is None else f"{each.difference:+.1f}",
            "" if each.interval is None else "{:+.1f} to {:+.1f}".format(*each.interval),
        )
        for each in differences
    ]
    print_table(("figure", "unchanged", "changed", "difference", "95 % interval"), rows, empty="")
    console(wrap=False).print(
        f"\n{duration_text(until_s)} from {rfc3339(since_us)[:19]}Z: {counted(len(past.gangs), 'gang')}, "
        f"{counted(len(past.nodes), 'node')}, {counted(len(seeds), 'seed')} from {seeds[0]}"
    )


async def _write(outcome: Outcome, data_dir: str) -> None:
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
        await project_all(opened.read_models, events[-1].position)
        while await opened.read_models.index(AT_ONCE) == AT_ONCE:
            pass
        await opened.log.release(grant)


def _print(shown: SimulationReport) -> None:
    rows = [
        (
            each.namespace,
            each.size,
            str(each.jobs),
            str(each.admitted),
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
        ("namespace", unit, "jobs", "admitted", "wait p50", "p95", "max", "starved", "evicted", "lost"),
        rows,
        empty=f"nothing arrived within {duration_text(shown.until_s)}",
    )  # fmt: skip
    lines = [
        "",
        f"{duration_text(shown.until_s)} with seed {shown.seed}: {shown.utilisation:.1%} of {shown.capacity:g} {shown.counted} used, "
        f"{counted(shown.preemptions, 'preemption')}",
        f"{counted(sum(each.ended for each in shown.classes), 'job')} ended, "
        f"{sum(each.lost_unit_hours for each in shown.classes):.1f} {unit}-hours of evicted runs lost",
        f"{counted(shown.events, 'event')}, log {shown.digest[:16]}",
    ]
    lines += [
        f"largest free {free.key or 'node'}: {free.least:g} at its least, {free.last:g} at the end"
        for free in shown.largest_free
    ]
    for line in lines:
        console(wrap=False).print(line)
