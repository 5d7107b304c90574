"""Run the service with a probe of its event loop: the CPU time of its thread in each turn of the loop, and where it was.

    python -m tests.support.service.loop_probe REPORT serve --cluster ...

CPU time, because foreign load on the machine does not count. A turn runs all that is ready, so it is as long as a new call may
have to wait. SIGUSR1 writes the longest turns of the time since the last one and the modules that were imported since to the file REPORT, and begins anew.
The probe runs once per `STEP_S`, after the turn that is running then: a turn is counted with the shorter ones of this time before it.
A loop that has nothing to do sleeps meanwhile. Only the loop of the service is measured, not that of its query process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from tests.support.service.replicas import Replica
from tests.support.waiting import eventually

STEP_S = 0.001
LOOK_S = 0.001
LONG_S = 0.004  # of CPU time: where the loop is then is noted
KEPT = 20


class LoopProbe:
    """Measures turns on the event loop; a thread looks where a long one is."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._turn = 0
        self._began_s = time.thread_time()
        self._where: dict[int, list[str]] = {}
        self._longest: list[tuple[float, int]] = []
        self._modules = set(sys.modules)
        self._loop.add_signal_handler(signal.SIGUSR1, self._write)
        threading.Thread(target=self._watch, daemon=True).start()
        self._step()

    def _step(self) -> None:
        now_s = time.thread_time()
        took_s = now_s - self._began_s
        if took_s >= LONG_S:
            self._longest.append((took_s, self._turn))
            self._longest = sorted(self._longest, reverse=True)[:KEPT]
        self._turn += 1
        self._began_s = time.thread_time()
        self._loop.call_later(STEP_S, self._step)

    def _watch(self) -> None:
        """Note the stack of each turn that is long already, each millisecond."""
        while True:
            time.sleep(LOOK_S)
            turn, began_s = self._turn, self._began_s
            if time.clock_gettime(self._clock) - began_s < LONG_S or turn != self._turn:
                continue
            frame = sys._current_frames().get(self._thread)
            stack = traceback.extract_stack(frame, limit=12) if frame is not None else []
            text = " < ".join(
                f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(stack)
            )
            if turn == self._turn:
                self._where.setdefault(turn, []).append(text)

    def _write(self) -> None:
        lines = [
            {"cpu_ms": round(took_s * 1000, 1), "turn": turn, "where": self._where.get(turn, [])}
            for took_s, turn in self._longest
        ]
        new = self._report.with_suffix(".new")
        modules = set(sys.modules)
        report = {"longest": lines, "imported": sorted(modules - self._modules)}
        new.write_text(json.dumps(report), encoding="utf-8")
        self._longest, self._where, self._modules = [], {}, modules
        new.replace(self._report)


class ProbedReplica(Replica):
    """A service with the probe."""

    def start(self):
        self._report = self.log.with_suffix(".turns")
        self.command = (sys.executable, "-m", "tests.support.service.loop_probe", str(self._report))
        super().start()

    async def turns(self):
        """Return the `longest` turns since the last call, each with CPU time and where it was, and the modules `imported` since."""
        self._report.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        await eventually(self._report.exists, "the report of the probe", state=self.tail)
        return json.loads(self._report.read_text(encoding="utf-8"))


def main() -> None:
    """Run the command line after the first argument with the probe."""
    import uvloop

    from extender.cli.main import main as command_line

    report = Path(sys.argv.pop(1))
    run, service = uvloop.run, os.getpid()

    def probed(main_coroutine: Any) -> Any:
        if os.getpid() != service:  # a fork of the service
            return run(main_coroutine)

        async def with_probe() -> Any:
            LoopProbe(report)
            return await main_coroutine

        return run(with_probe())

    uvloop.run = probed
    sys.argv[0] = "gang-extender"
    command_line()


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    main()
