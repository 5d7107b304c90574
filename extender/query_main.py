"""Composition root of the query process, which `http/web/query_process` starts.

It imports neither Kubernetes nor the command line, has no state but the database, and ends with the service.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys

import msgspec
import uvloop

from extender.core.model.errors import StoreUnavailable
from extender.http.v1.event_api import EventApi
from extender.http.v1.explain_api import PastExplainApi
from extender.http.v1.history_api import HistoryApi, ReportApi
from extender.http.v1.state_api import PastNodesApi, StateApi
from extender.http.web.query_process import QueryProcessOptions, QueryTurns, serve_queries
from extender.queries.explain.past_explanation import PastExplanations
from extender.queries.log.event_stream import EventStream
from extender.queries.state.historical_state import HistoricalState
from extender.runtime.database_clock import DatabaseClock
from extender.runtime.log_keys import LogKeys, read_keys
from extender.runtime.periodic import PeriodicTask
from extender.runtime.system_clock import SystemClock
from extender.runtime.worker_process import NICE, initialize_worker, name_process
from extender.store.decision_inputs import PostgresDecisionInputs
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.queries.event_queries import PostgresEventQueries, reading_pool
from extender.store.queries.report_queries import PostgresReportQueries
from extender.store.snapshot_table import PostgresSnapshots
from extender.telemetry import set_up_logging

PROCESS_NAME = "gx-queries"
# Maximum number of concurrent queries. Each uses a processor, here or for the database on the same machine, and a call
# of kube-scheduler that finds no idle processor may wait some 4 ms.
PROCESSORS = len(os.sched_getaffinity(0))
AT_ONCE = max(1, min(4, PROCESSORS // 2))
SYNC_EVERY_S = 10.0
# With two processors, a query leaves no idle one beside kube-scheduler and the service; see `QueryTurns`.
REST = 2.0 if PROCESSORS <= 2 else 0.0  # noqa: PLR2004


def main() -> None:
    """Answer queries with the options on standard input."""
    answer(sys.stdin.buffer.read())


def answer(options: bytes) -> None:
    """Answer queries until the service ends, or until SIGTERM."""
    given = msgspec.json.decode(options, type=QueryProcessOptions)
    initialize_worker(given.service)
    name_process(PROCESS_NAME)
    os.nice(NICE)
    set_up_logging(given.log_level, sys.stdout, given.log_format)
    keys = read_keys(given.anchor_key_file, "--anchor-key-file")
    uvloop.run(_answer(given, keys, socket.socket(fileno=given.listening)))


async def _answer(given: QueryProcessOptions, keys: LogKeys, listening: socket.socket) -> None:
    url = given.database_url
    reading = reading_pool(url, size=AT_ONCE)
    audit, snapshots = PostgresEventQueries(reading), PostgresSnapshots(reading, keys)
    async with PostgresEventLog(url) as history_log, PostgresEventLog(url) as followed_log:
        clock = DatabaseClock(SystemClock(), history_log.time_us)
        keeping = PeriodicTask(
            name="clock",
            work=clock.sync,
            every_s=SYNC_EVERY_S,
            expected=(StoreUnavailable,),
            failure="the clock of the database was not read",
        )
        synchronizing = asyncio.create_task(keeping.run(), name="clock")
        feed, as_of = (
            EventStream(followed_log, audit),
            HistoricalState(history_log, snapshots, audit),
        )
        parts = (
            HistoryApi(audit, PostgresDecisionInputs(reading)),
            EventApi(audit, feed),
            StateApi(as_of),
            PastNodesApi(as_of),
            PastExplainApi(PastExplanations(as_of, audit)),
            ReportApi(PostgresReportQueries(reading), audit, clock),
        )
        gc.collect()
        gc.freeze()
        await serve_queries(parts, listening, QueryTurns(AT_ONCE, REST), feed.stop, given.key)
        synchronizing.cancel()
    await reading.close()
