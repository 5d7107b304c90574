"""The command line inside the process of the tests: what it printed to which stream, and its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from extender.cli.main import main


def run_command(*words: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `gang-extender` with these arguments to its end and return its exit code and output, without a process.

    A test with a running event loop can call it as well: the command, which has a loop of its own, then runs in a
    thread, and the loop of the test waits for it. A fault that `main` does not turn into an exit code is raised here.

    Args:
        stdin: What the command reads.
        environ: Variables beside those of this process.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(words, stdin, environ)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run, words, stdin, environ).result()


def _run(
    words: tuple[str, ...], stdin: str, environ: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.dict(os.environ, environ),
        mock.patch.object(sys, "argv", ["gang-extender", *words]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
