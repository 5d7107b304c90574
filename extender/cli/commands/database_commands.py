"""`db migrate`, `db project`, `db prune`: the schema, the interval tables and the stored inputs of the database."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from extender import settings as settings_module
from extender.cli.commands.history_commands import Folder, LogPlace, Url
from extender.cli.options.list_options import ValueForm
from extender.cli.output.printing import Output, console, print_value
from extender.core.model.errors import BadInput
from extender.core.model.message_formatting import parse_time
from extender.runtime.system_clock import SystemClock

if TYPE_CHECKING:
    from extender.composition import Store
    from extender.store.decision_inputs import PruneResult


def migrate(database_url: Url = None, data_dir: Folder = None) -> None:
    """Migrate the database to the schema of this version."""
    from extender.composition import database
    from extender.store import schema_migration

    settings = settings_module.load_for_log(database_url, data_dir)

    async def run() -> str:
        async with database(settings) as url:
            return await schema_migration.upgrade(url)

    print(f"the database has schema {asyncio.run(run())}")


def project(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Fill the interval tables again from the whole log, with the role of `db migrate`.")] = False,
    database_url: Url = None,
    data_dir: Folder = None,
) -> None:  # fmt: skip
    """Bring the interval tables and the snapshots up to the end of the log.

    A running leader does this continuously. Use the command after an upgrade whose notes require it, or when no replica
    leads. With --rebuild, queries read the old rows until all new ones are committed.
    """
    from extender.composition import database
    from extender.control.monitors.read_model_projector import project_all
    from extender.snapshots.state_loader import backfill_snapshots
    from extender.store.projections import rebuild_projection

    async def replace_rows() -> None:
        settings = settings_module.load_for_log(database_url, data_dir)
        async with database(settings, creates=False) as url:
            await rebuild_projection(url)

    async def question(opened: Store) -> tuple[int, int]:
        end = (await opened.log.head()).position
        reached = await project_all(opened.read_models, end)
        every = opened.snapshots.stretch(end)
        snapshot_count = await backfill_snapshots(
            opened.log, opened.snapshots, until=end, every=every
        )
        return reached, snapshot_count

    if rebuild:
        asyncio.run(replace_rows())
    reached, snapshot_count = LogPlace(None, database_url, data_dir).ask(question)
    print(f"projected up to position {reached}; {snapshot_count} snapshots made")


def prune(
    before: Annotated[str | None, typer.Option(help="Delete inputs of decisions older than this RFC 3339 time with offset.")] = None,
    days: Annotated[int | None, typer.Option(help="Delete inputs of decisions older than this number of days.", min=1)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")] = False,
    database_url: Url = None,
    data_dir: Folder = None,
    output: ValueForm = Output.table,
) -> None:  # fmt: skip
    """Delete the stored inputs of old decisions, the largest part of the database; the log stays complete.

    Gangs that still exist keep the inputs of their decisions. The decisions stay in the log with their reasons; only
    `decision replay` and the numbers of `history --decisions` need the inputs. Needs the database role of `db migrate`.
    """
    if (before is None) == (days is None):
        raise BadInput("give either --before TIME or --days NUMBER")
    now_us = SystemClock().now_us()
    until_us = parse_time(before, "--before") if before else now_us - (days or 0) * 86_400_000_000
    if until_us > now_us:
        raise BadInput(f"--before {before} is in the future")
    until = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=until_us)
    from extender.composition import database
    from extender.store.decision_inputs import prune as prune_store

    settings = settings_module.load_for_log(database_url, data_dir)

    async def run() -> PruneResult:
        async with database(settings, creates=False) as url:
            return await prune_store(url, until, dry_run=dry_run)

    result = asyncio.run(run())
    if output is not Output.table:
        print_value(result, output)
        return
    done = "would be deleted" if dry_run else "deleted"
    console().print(
        f"{result.inputs:,} inputs and {result.parts:,} parts ({result.bytes / 1e6:,.1f} MB) of decisions before "
        f"{result.before[:19]}Z {done}; {result.inputs_kept:,} inputs with {result.parts_kept:,} parts stay"
    )
