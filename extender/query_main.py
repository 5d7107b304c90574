"""The process that answers what the log alone can answer: its composition root, started by `http/web/query_process`.

It loads neither Kubernetes nor the command line, knows no state but the database's, and ends with the service.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

import msgspec
import uvloop

from extender.http.v1.event_api import EventApi
from extender.http.v1.history_api import HistoryApi
from extender.http.v1.report_api import ReportApi
from extender.http.v1.state_api import PastNodesApi, StateApi
from extender.http.web.query_process import QueryProcessOptions, QueryTurns, answering
from extender.queries.log.event_stream import EventStream
from extender.queries.state.historical_state import HistoricalState
from extender.runtime.system_clock import SystemClock
from extender.runtime.worker_process import NICE, begin_worker
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.queries.event_queries import PostgresEventQueries, create_reading_engine
from extender.store.queries.report_queries import PostgresReportQueries
from extender.store.snapshot_table import PostgresSnapshots
from extender.telemetry import set_up_logging

# Questions that are worked on at the same time. Each of them takes a processor, the database's or ours, which may be of
# one machine, and a call of kube-scheduler that finds none idle may wait some 4 ms for the kernel.
PROCESSORS = len(os.sched_getaffinity(0))
AT_ONCE = max(1, min(4, PROCESSORS // 2))
# On two, one for questions leaves no idle one beside kube-scheduler's call and us; see `Turns`.
REST = 2.0 if PROCESSORS <= 2 else 0.0  # noqa: PLR2004


def main() -> None:
    """Answer until the service ends, or SIGTERM."""
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=QueryProcessOptions)
    begin_worker(given.service)
    os.nice(NICE)
    set_up_logging(given.log_level, sys.stdout)
    uvloop.run(_answer(given.database_url, socket.socket(fileno=given.listening)))


async def _answer(url: str, listening: socket.socket) -> None:
    reading, clock = create_reading_engine(url, pool_size=AT_ONCE), SystemClock()
    audit, checkpoints = PostgresEventQueries(reading), PostgresSnapshots(reading)
    async with PostgresEventLog(url) as looking, PostgresEventLog(url) as followed:
        feed, as_of = (
            EventStream(followed, audit),
            HistoricalState(looking, checkpoints, audit, clock),
        )
        parts = (
            HistoryApi(audit, PostgresDecisionInputs(reading)),
            EventApi(audit, feed),
            StateApi(as_of),
            PastNodesApi(as_of),
            ReportApi(PostgresReportQueries(reading), clock),
        )
        gc.collect()
        gc.freeze()
        await answering(parts, listening, QueryTurns(AT_ONCE, REST), feed.stop)
    await reading.dispose()
