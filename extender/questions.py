"""The process that answers what the log alone can answer: its composition root, started by `http/apart`.

It loads neither Kubernetes nor the command line, knows no state but the database's, and ends with the service.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

import msgspec
import uvloop

from extender.http.apart import Given, Turns, answering
from extender.http.audit import AuditApi
from extender.http.events import EventsApi
from extender.http.reports import ReportApi
from extender.http.state import PastNodesApi, StateApi
from extender.service.aside import NICE
from extender.service.asof import AsOf
from extender.service.clock import SystemClock
from extender.service.feed import Feed
from extender.service.planning import begin_worker
from extender.store.audit_reader import PostgresAuditReader, create_reading_engine
from extender.store.checkpoints import PostgresCheckpoints
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.event_log import PostgresEventLog
from extender.store.report_reader import PostgresReportReader
from extender.telemetry import set_up_logging

# Questions that are worked on at the same time. Each of them takes a processor, the database's or ours, which may be of
# one machine, and a call of kube-scheduler that finds none idle may wait some 4 ms for the kernel.
PROCESSORS = len(os.sched_getaffinity(0))
AT_ONCE = max(1, min(4, PROCESSORS // 2))
# On two, one for questions leaves no idle one beside kube-scheduler's call and us; see `Turns`.
REST = 2.0 if PROCESSORS <= 2 else 0.0  # noqa: PLR2004


def main() -> None:
    """Answer until the service ends, or SIGTERM."""
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=Given)
    begin_worker(given.service)
    os.nice(NICE)
    set_up_logging(given.log_level, sys.stdout)
    uvloop.run(_answer(given.database_url, socket.socket(fileno=given.listening)))


async def _answer(url: str, listening: socket.socket) -> None:
    reading, clock = create_reading_engine(url, pool_size=AT_ONCE), SystemClock()
    audit, checkpoints = PostgresAuditReader(reading), PostgresCheckpoints(reading)
    async with PostgresEventLog(url) as looking, PostgresEventLog(url) as followed:
        feed, as_of = Feed(followed, audit), AsOf(looking, checkpoints, audit, clock)
        parts = (
            AuditApi(audit, PostgresDecisionInputs(reading)),
            EventsApi(audit, feed),
            StateApi(as_of),
            PastNodesApi(as_of),
            ReportApi(PostgresReportReader(reading), clock),
        )
        gc.collect()
        gc.freeze()
        await answering(parts, listening, Turns(AT_ONCE, REST), feed.stop)
    await reading.dispose()
