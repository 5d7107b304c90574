"""`events --follow`: new events from the database or from a running service, until Ctrl-C or after a number of events."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing

import msgspec

from extender import settings as settings_module
from extender.cli.connection.service_client import finder
from extender.cli.output.list_table import ListForm, clock_text
from extender.cli.output.printing import complain
from extender.ports.query_ports import EventFilter
from extender.queries.log.event_stream import EventStream
from extender.queries.log.gang_history import gang_of_name


class _EventFields(msgspec.Struct):
    """The fields of an event that are printed."""

    position: int
    time: str
    type: str
    gang: str
    summary: str


_DECODER = msgspec.json.Decoder(_EventFields)


async def follow_events(
    database_url: str | None,
    data_dir: str | None,
    event_filter: EventFilter,
    output: ListForm,
    *,
    from_now: bool,
    count: int | None,
) -> None:
    """Print one line per event of the database, until Ctrl-C; waits while the database does not answer.

    Args:
        database_url: The database; None: the embedded one.
        data_dir: Folder of the embedded database.
        event_filter: Which events; `gang` may be a name alone.
        output: Form of the lines.
        from_now: Begin at the end of the log instead of `event_filter.after`.
        count: End after so many events; None: never.
    """
    from extender.composition import store

    settings = settings_module.load(database_url=database_url, data_dir=data_dir)
    async with store(settings, migrates=False) as opened:
        feed = EventStream(opened.log, opened.audit)
        gang = await gang_of_name(opened.audit, event_filter.gang, expected=True)
        event_filter = msgspec.structs.replace(event_filter, gang=gang)
        _until_interrupted(feed.stop)
        if from_now:
            event_filter = msgspec.structs.replace(event_filter, after=await feed.head())
        async with aclosing(feed.follow(event_filter)) as batches:
            printed = 0
            async for batch in batches:
                left = None if count is None else count - printed
                for _, body in batch.events[:left]:
                    sys.stdout.write(line_of_body(body, output))
                    printed += 1
                sys.stdout.flush()
                if printed == count:
                    return


async def follow_services(
    servers: Sequence[str],
    query: Sequence[tuple[str, str]],
    output: ListForm,
    count: int | None,
) -> None:
    """Print one line per event of a service, until Ctrl-C; when it is lost, continue at the next one.

    Args:
        servers: URLs of replicas, or of a load balancer; none: the service in the cluster of --context.
        query: Parameters of GET /v1/events.
        output: Form of the lines.
        count: End after so many events; None: never.

    Raises:
        BadInput: None of them answers at the beginning, or one rejects the query.
        PositionGone: The log ends before the position of the stream.
    """
    from extender.cli.connection.sse_client import Stream

    stream = Stream(servers or (None,), query, finder(), complain=complain)
    _until_interrupted(stream.stop)
    async with aclosing(stream.events()) as events:
        printed = 0
        async for body in events:
            sys.stdout.write(line_of_body(body, output))
            sys.stdout.flush()
            printed += 1
            if printed == count:
                return


def _until_interrupted(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def line_of_body(body: bytes, output: ListForm) -> str:
    """Return the printed form of an event; `body` is its JSON (`EventLine`)."""
    if output is ListForm.json:
        return body.decode() + "\n"
    if output is ListForm.yaml:
        return "---\n" + msgspec.yaml.encode(msgspec.json.decode(body)).decode()
    line = _DECODER.decode(body)
    if output is ListForm.name:
        return f"{line.position}\n"
    return f"{line.position}  {clock_text(line.time)}  {line.gang or '-'}  {line.type}  {line.summary}\n"
