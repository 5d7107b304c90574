"""Records each stretch for which one callback keeps the event loop of a service: thread CPU time, and what it was.

`python -m tests.support.service.slice_recorder FILE serve ...` runs the command line with it, on asyncio's own loop:
the handles of uvloop cannot be wrapped. FILE gets one line of JSON for each stretch of at least `SLICE_REPORTED_MS`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TextIO

SLICE_REPORTED_MS = 2.0


def what_runs(callback: Any) -> str:
    """Return the task and the innermost coroutine that a callback continues, or its own name."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", callback))
    names = []
    here: Any = task.get_coro()
    while here is not None:
        code = getattr(here, "cr_code", None) or getattr(here, "gi_code", None)
        if code is not None:
            frame = getattr(here, "cr_frame", None) or getattr(here, "gi_frame", None)
            line = frame.f_lineno if frame is not None else 0
            names.append(f"{code.co_qualname}:{line}")
        here = getattr(here, "cr_await", None) or getattr(here, "gi_yieldfrom", None)
    return f"[{task.get_name()}] " + " > ".join(names[-3:])


def record_slices(report: Callable[[float, str, float], None]) -> Callable[[], None]:
    """Wrap every handle of the event loops of this thread; return a function that ends it.

    Args:
        report: Gets the CPU time of the thread in milliseconds, what ran, and the wall time in milliseconds.
    """
    original = asyncio.events.Handle._run
    thread = threading.get_ident()

    def run(handle: Any) -> None:
        if threading.get_ident() != thread:
            original(handle)
            return
        name = what_runs(handle._callback)
        wall_s, began_ns = time.perf_counter(), time.thread_time_ns()
        original(handle)
        took_ms = (time.thread_time_ns() - began_ns) / 1e6
        if took_ms >= SLICE_REPORTED_MS:
            report(took_ms, name, (time.perf_counter() - wall_s) * 1000)

    asyncio.events.Handle._run = run  # type: ignore[method-assign]

    def end() -> None:
        asyncio.events.Handle._run = original  # type: ignore[method-assign]

    return end


def _to_file(out: TextIO) -> Callable[[float, str, float], None]:
    def report(took_ms: float, name: str, wall_ms: float) -> None:
        line = {
            "cpu_ms": round(took_ms, 2),
            "wall_ms": round(wall_ms, 2),
            "what": name,
            "at": time.time(),
        }
        out.write(json.dumps(line) + "\n")
        out.flush()

    return report


def main() -> None:
    """Run the command line of the service with recorded slices."""
    import uvloop

    from extender.cli.main import main as run_command_line

    out = Path(sys.argv.pop(1)).open("a", encoding="utf-8")  # noqa: SIM115 -- for as long as the process runs
    record_slices(_to_file(out))

    def run(work: Coroutine[Any, Any, Any], **_: Any) -> Any:
        return asyncio.run(work)

    uvloop.run = run
    run_command_line()


if __name__ == "__main__":
    main()
