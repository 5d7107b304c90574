"""`events --follow`: facts as they come, straight from the database, until somebody presses Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import aclosing

import msgspec

from extender import settings as settings_module
from extender.cli.output import Output
from extender.core.events import Event
from extender.service.audit import line_of
from extender.service.feed import Feed
from extender.service.ports import EventFilter
from extender.wiring import store


async def follow_facts(
    database_url: str | None,
    data_dir: str | None,
    wanted: EventFilter,
    output: Output,
    *,
    from_now: bool,
) -> None:
    """Print one line per fact; outages of the database are waited for.

    Args:
        from_now: Begin at the end of the log instead of `wanted.after`.
    """
    settings = settings_module.load(database_url=database_url, data_dir=data_dir)
    async with store(settings, migrates=False) as opened:
        feed = Feed(opened.log, opened.audit)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, feed.stop)
        if from_now:
            wanted = msgspec.structs.replace(wanted, after=await feed.head())
        async with aclosing(feed.follow(wanted)) as batches:
            async for batch in batches:
                for event, body in batch.facts:
                    sys.stdout.write(_line(event, body, output))
                sys.stdout.flush()


def _line(event: Event, body: bytes, output: Output) -> str:
    if output is Output.json:
        return body.decode() + "\n"
    line = line_of(event)
    if output is Output.yaml:
        return "---\n" + msgspec.yaml.encode(line).decode()
    when = line.time[:19].replace("T", " ")
    return f"{line.position}  {when}  {line.gang or '-'}  {line.type}  {line.summary}\n"
