"""Start commands of the product from a process that has imported it: the imports cost two seconds of CPU, a fork nothing.

A command runs as one of `python -m extender` does: in a session of its own, with the environment, the streams and the
exit code that belong to it. What it shares with the others of one pytest process is the memory as it is after the imports,
so also the seed of hashes, and what Python itself reads from the environment when it starts, but for PYTHONUNBUFFERED.
Pauses of the product that are constants, not settings, can be `shortened`: a test of what comes after them need not wait.
`/proc/PID/cmdline` and `/proc/PID/environ` are those of the fork server.

A shell that a test starts can run commands so as well: `program` writes a `gang-extender` for its PATH.

The fork server ends with the pytest process, whose end closes the socket between them, and the commands end with it.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import gc
import importlib
import io
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import IO, Any, NoReturn, Self
from unittest import mock

import msgspec

from extender.control.admission.planner_pool import SOLVER
from tests.controlplane.processes import dying_with_parent

ROOT = Path(__file__).parents[3]
REQUEST_BYTES_MAX = 1 << 20
CODE_BYTES = 4
CONSTANTS = "FORK_SERVER_CONSTANTS"  # variable of a command: its constants with other values
# The process that verifies the log imports for 0.8 s of CPU, in each service that lives so long: tests of it shorten the pause.
VERIFIES_LATE = {"control.monitors.log_verifier.FIRST_AFTER_S": 3600.0}
# What `serve` imports when it runs; each of these modules imports most of it late.
SERVING = ("cli.main", "cli.commands.serve_command", "composition", "query_main")
# What only functions import; without it each forked process would load it again, the solver for 0.1 s of CPU.
LIBRARIES = ("uvloop", "alembic.command", SOLVER)

# Without its site-packages Python starts in 0.015 s of CPU, and the command line in 0.2 to 1.
PROGRAM = """\
#!{python} -IS
import json, os, socket, sys
if sys.argv[1:2] == ["serve"]:  # what a shell kills must be the service itself
    os.execv({installed!r}, sys.argv)
mine, theirs = socket.socketpair()
with theirs:
    request = dict(words=sys.argv[1:], environ=dict(os.environ), folder=os.getcwd(), module="extender")
    server = socket.socket(fileno={number})
    socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2, theirs.fileno()])
mine.recv({code_bytes}, socket.MSG_WAITALL)  # its pid
code = mine.recv({code_bytes}, socket.MSG_WAITALL)
sys.exit(int.from_bytes(code, signed=True) if code else "the fork server of this test process has ended")
"""

Stream = int | IO[Any]
"""A file, its number, or `PIPE`, `DEVNULL` or `STDOUT` of `subprocess`."""


class Request(msgspec.Struct):
    """A command to run."""

    words: list[str]
    environ: dict[str, str]
    folder: str
    module: str


class ForkedCommand:
    """A command that was forked; used as `subprocess.Popen` is."""

    def __init__(self, control: socket.socket, pipes: Sequence[IO[Any] | None]) -> None:
        """Read the pid of a command from the socket on which its exit code will come."""
        self._control = control
        self.stdin, self.stdout, self.stderr = pipes
        self.pid = int.from_bytes(_read(control))
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipes, and wait for its end."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()

    def communicate(self, text: Any = None) -> tuple[Any, Any]:
        """Write to its standard input, read its pipes to their end, and wait for its end; return output and errors."""
        with ThreadPoolExecutor(2) as threads:
            reading = [pipe and threads.submit(pipe.read) for pipe in (self.stdout, self.stderr)]
            if self.stdin is not None:
                with contextlib.suppress(BrokenPipeError), self.stdin:  # it may not read all
                    if text:
                        self.stdin.write(text)
            output, errors = (read and read.result() for read in reading)
        with self:
            return output, errors

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._control], [], [], 0)[0]:
            self.returncode = int.from_bytes(_read(self._control), signed=True)
            self._control.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code when it has ended.

        Raises:
            subprocess.TimeoutExpired: It still runs after so many seconds.
        """
        if self.poll() is None and not select.select([self._control], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("gang-extender", timeout or 0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal; nothing happens when it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends at this moment
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self.send_signal(signal.SIGKILL)


def run(
    words: Sequence[str],
    environ: Mapping[str, str],
    output: Stream = DEVNULL,
    *,
    errors: Stream = STDOUT,
    stdin: Stream = DEVNULL,
    folder: Path = ROOT,
    module: str = "extender",
    text: bool = False,
) -> ForkedCommand:
    """Start a command; the arguments are those of `subprocess.Popen`.

    Args:
        words: The arguments of `gang-extender`.
        environ: Its whole environment.
        output: Where its output goes.
        errors: Where its errors go: to its output, if it is not given.
        stdin: What it reads.
        folder: Its working directory.
        module: The program: what follows `-m`.
        text: Whether pipes are read and written as texts.
    """
    mine, theirs = socket.socketpair()
    ours: list[IO[Any] | None] = []
    with contextlib.ExitStack() as given:
        given.enter_context(theirs)

        def end_for(stream: Stream, *, written: bool) -> int:
            """Return the number of the file that the command gets; keep our end of a pipe."""
            ours.append(None)
            if stream == DEVNULL:
                return given.enter_context(Path(os.devnull).open("r+b")).fileno()
            if stream != PIPE:
                return stream if isinstance(stream, int) else stream.fileno()
            reading, writing = os.pipe()
            kept, passed = (writing, reading) if written else (reading, writing)
            given.callback(os.close, passed)
            ours[-1] = os.fdopen(kept, ("w" if written else "r") + ("" if text else "b"))
            return passed

        files = [end_for(stdin, written=True), end_for(output, written=False)]
        files.append(files[1] if errors == STDOUT else end_for(errors, written=False))
        request = msgspec.json.encode(Request(list(words), dict(environ), str(folder), module))
        socket.send_fds(_server(), [request], [*files, theirs.fileno()])
    return ForkedCommand(mine, [*ours, None][:3])


@contextlib.contextmanager
def shortened(constants: Mapping[str, float]) -> Iterator[None]:
    """Let the commands whose environment is made meanwhile have other values of constants, also beside those of a caller.

    Args:
        constants: By their place in `extender`, such as `control.monitors.log_verifier.PASS_EVERY_S`.
    """
    values = msgspec.json.decode(os.environ.get(CONSTANTS, "{}")) | constants
    with mock.patch.dict(os.environ, {CONSTANTS: msgspec.json.encode(values).decode()}):
        yield


def program(folder: Path) -> int:
    """Write a program `gang-extender` that has its command forked, for a shell; `serve` it starts as a process of its own.

    Args:
        folder: Where it is written; it goes first into the PATH of the shell.

    Returns:
        The number of a file that the shell must inherit (`pass_fds`).
    """
    path = folder / "gang-extender"
    number = _server().fileno()
    installed = str(Path(sys.executable).with_name(path.name))
    text = PROGRAM.format(
        python=sys.executable, installed=installed, number=number, code_bytes=CODE_BYTES
    )
    path.write_text(text)
    path.chmod(0o755)
    return number


@functools.cache
def _server() -> socket.socket:
    """Start the fork server of this pytest process; return the socket that takes requests."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # ctrl-C is for pytest
        )

    def stop() -> None:
        mine.close()
        process.wait()

    atexit.register(stop)
    return mine


def _read(control: socket.socket) -> bytes:
    found = control.recv(CODE_BYTES, socket.MSG_WAITALL)
    if len(found) < CODE_BYTES:
        raise RuntimeError("the fork server of this test process has ended")
    return found


# --- in the fork server


def _imports(module: str) -> set[str]:
    """Return the modules of the product that a module imports, also inside of functions."""
    tree = ast.parse((ROOT / "extender" / f"{module.replace('.', '/')}.py").read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {node.module for node in nodes if node.module and node.module.startswith("extender.")}


def _serve(requests: socket.socket) -> str:
    """Answer requests until the pytest process has ended; return in the process of a command, with the name of its module."""
    while True:
        message, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
        if not message:
            sys.exit()
        with contextlib.suppress(ChildProcessError):  # none has ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        die_with_parent = dying_with_parent()
        if os.fork() == 0:
            die_with_parent()
            requests.close()
            *streams, control = files
            return _run(msgspec.json.decode(message, type=Request), streams, control)
        for file in files:
            os.close(file)


def _run(request: Request, streams: Sequence[int], control: int) -> str:
    """Fork again: the parent sends pid and exit code, and the child returns as the command."""
    die_with_parent = dying_with_parent()
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        os.write(control, pid.to_bytes(CODE_BYTES))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # the pytest process has ended
            os.write(control, code.to_bytes(CODE_BYTES, signed=True))
        os._exit(0)
    die_with_parent()
    os.close(control)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request.environ)
    for place, value in msgspec.json.decode(os.environ.pop(CONSTANTS, "{}")).items():
        mock.patch(f"extender.{place}", value).start()  # fails where there is no such constant
    os.chdir(request.folder)
    time.tzset()
    sys.stdin = _text_stream(0, sys.stdin)
    sys.stdout = sys.__stdout__ = _text_stream(1, sys.stdout)
    sys.stderr = sys.__stderr__ = _text_stream(2, sys.stderr)
    sys.argv[1:] = request.words
    return request.module


def _text_stream(number: int, like: Any) -> Any:
    """Return a standard stream as Python makes it when it starts: the file of the fork server may be a terminal."""
    at_once = number != 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
    mode = "wb" if number else "rb"
    buffer = os.fdopen(number, mode, buffering=0 if at_once else -1, closefd=False)
    return io.TextIOWrapper(
        buffer,
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=number == 2 or os.isatty(number),
        write_through=at_once,
    )


def main() -> None:
    """Import what commands need, then answer requests; go on as the command that was asked for."""
    from extender.cli.main import COMMANDS

    ours = {f"extender.{name}" for name in SERVING}.union(*map(_imports, SERVING))
    ours |= {place.partition(":")[0] for place, _ in COMMANDS.values()}
    for name in [*LIBRARIES, *sorted(ours)]:
        importlib.import_module(name)
    importlib.import_module("extender.http.web.server")._openapi()  # 0.05 s, kept by each service
    gc.collect()
    gc.freeze()  # a collection in a command would write to, and so copy, the memory of all of them
    module = _serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        # as `python -m` does: processes that it spawns would else import this module
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        _exit(end.code)
    _exit(0)


def _exit(code: object) -> NoReturn:
    """End as the interpreter does, but for freeing its memory, which takes half a second of CPU."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except Exception:  # the interpreter prints it, and keeps the exit code
        traceback.print_exc()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # no process reads
        code = 120
    os._exit(code or 0)


if __name__ == "__main__":
    main()
