"""What a failed test prints beside its error: what it waited for, the seeds, the load of the machine, the services' last lines."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import waiting

if TYPE_CHECKING:
    import pytest

LOG_BYTES = 3000
LOGS_MAX = 6  # the last that were written to

_logs: set[Path] = set()
_began_s = 0.0


def show_log(log: Path) -> None:
    """Have the end of this file in the report of each test that fails and during which it was written to."""
    _logs.add(log)


def begin() -> None:
    """Begin another test."""
    global _began_s
    _began_s = time.time()
    waiting.broken_off().clear()
    _logs.difference_update([log for log in _logs if not log.exists()])


def sections(config: pytest.Config) -> list[tuple[str, str]]:
    """Return titles and texts for the test that has failed."""
    waits = "\n".join(waiting.broken_off())
    written = [(log.stat().st_mtime, log) for log in _logs if log.exists()]
    recent = sorted((at_s, log) for at_s, log in written if at_s >= _began_s)[-LOGS_MAX:]
    return [
        *([("waited for", waits)] if waits else []),
        ("seeds and load", f"{seeds(config)}\n{load()}"),
        *((f"end of {log}", _tail(log)) for _, log in recent),
    ]


def seeds(config: pytest.Config) -> str:
    """Return what made this run as it was, as it is set for another one."""
    # what only starts processes does not need hypothesis
    from tests.support import hypothesis_profile

    order = config.getoption("randomly_seed", None)
    return " ".join(
        [
            f"PYTHONHASHSEED={os.environ.get('PYTHONHASHSEED', 'random')}",
            f"HYPOTHESIS_PROFILE={hypothesis_profile.PROFILE}",
            *([f"-p randomly --randomly-seed={order}"] if order is not None else []),
        ]
    )


def load() -> str:
    """Return how busy the machine is: processors, processes that want one, and time lost to waiting (PSI)."""
    lines = [f"{os.cpu_count()} processors, load {' '.join(map(str, os.getloadavg()))}"]
    for name in ("cpu", "io", "memory"):
        with contextlib.suppress(OSError):  # a kernel without it
            some = Path(f"/proc/pressure/{name}").read_text().partition("\n")[0]
            lines.append(f"pressure of {name}: {some}")
    return "\n".join(lines)


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        return file.read().decode(errors="replace")
