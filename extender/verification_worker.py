"""Composition root of the process that verifies the log in the background, a slice at a time.

`runtime.worker_process` runs `verify_slice` in it. The state of a pass stays in that process; when it dies, the next pass
begins at the first event. It reads the database as the service does and writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from extender.core.log.anchors import Anchor
from extender.ports.verification_ports import SliceResult
from extender.queries.verification.log_verification import LogVerification
from extender.runtime.log_keys import read_keys
from extender.store.log.postgres_event_log import PostgresEventLog
from extender.store.log_evidence import PostgresLogEvidence


class _Pass(msgspec.Struct):
    """The pass that is under way, and the loop that its connections belong to."""

    loop: asyncio.AbstractEventLoop
    log: PostgresEventLog
    evidence: PostgresLogEvidence
    work: LogVerification


_passes: list[_Pass] = []  # at most one


def verify_slice(
    url: str, key_file: str, anchors: Sequence[Anchor] | None, most: int
) -> SliceResult:
    """Verify the next events of a pass.

    Args:
        key_file: File with the keys of anchors and snapshots; may be empty.
        anchors: Begin a new pass with these; None: go on.

    Raises:
        CorruptLog: An event cannot be read by this version; begin a new pass.
        StoreUnavailable: No answer; begin a new pass.
    """
    if anchors is not None or not _passes:
        _end()
        keys = read_keys(key_file, "--anchor-key-file")
        loop = asyncio.new_event_loop()
        log, evidence = PostgresEventLog(url), PostgresLogEvidence(url, keys)
        work = LogVerification(log, evidence, anchors or (), keys)
        _passes.append(_Pass(loop, log, evidence, work))
    current = _passes[0]
    try:
        more = current.loop.run_until_complete(current.work.step(most))
    except BaseException:
        _end()
        raise
    verdict = current.work.verdict
    if not more:
        _end()
    return SliceResult(
        position=verdict.position,
        more=more,
        findings=verdict.findings,
        definitions=verdict.definitions,
        privileged_roles=verdict.privileged_roles,
    )


def _end() -> None:
    """End the pass that is under way, if there is one."""
    while _passes:
        ended = _passes.pop()
        ended.loop.run_until_complete(ended.log.close())
        ended.loop.run_until_complete(ended.evidence.close())
        ended.loop.run_until_complete(ended.loop.shutdown_default_executor())
        ended.loop.close()
