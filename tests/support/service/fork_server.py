"""Start commands of the product from a process that has imported it: the imports cost two seconds of CPU, a fork nothing.

A command runs as one of `python -m extender` does: in a session of its own, with the environment, output and exit code
that belong to it. What it shares with the others of one pytest process is the memory as it is after the imports, so also
the seed of hashes. `/proc/PID/cmdline` and `/proc/PID/environ` are those of the fork server.

The fork server ends with the pytest process, whose end closes the socket between them, and the commands end with it.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from tests.controlplane.processes import dying_with_parent

ROOT = Path(__file__).parents[3]
REQUEST_BYTES_MAX = 1 << 20
CODE_BYTES = 4
# What `serve` imports when it runs; each of these modules imports most of it late.
SERVING = ("cli.main", "cli.commands.serve_command", "composition", "query_main")
# What only functions import.
LIBRARIES = ("uvloop", "alembic.command", "typer._adapters")


class Request(msgspec.Struct):
    """A command to run."""

    words: list[str]
    environ: dict[str, str]


class ForkedCommand:
    """A command that was forked; used as `subprocess.Popen` is."""

    def __init__(self, control: socket.socket) -> None:
        """Read the pid of a command from the socket on which its exit code will come."""
        self._control = control
        self.pid = int.from_bytes(_read(control))
        self.returncode: int | None = None

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


def run(words: Sequence[str], environ: Mapping[str, str], output: BinaryIO) -> ForkedCommand:
    """Start a command in the folder of the project; its output and its errors go to one file."""
    mine, theirs = socket.socketpair()
    with theirs:
        request = msgspec.msgpack.encode(Request(list(words), dict(environ)))
        socket.send_fds(_server(), [request], [output.fileno(), theirs.fileno()])
    return ForkedCommand(mine)


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


def _serve(requests: socket.socket) -> None:
    """Answer requests until the pytest process has ended; returns in the process of a command, whose words are in sys.argv."""
    while True:
        message, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 2)
        if not message:
            sys.exit()
        with contextlib.suppress(ChildProcessError):  # none has ended
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        die_with_parent = dying_with_parent()
        if os.fork() == 0:
            die_with_parent()
            requests.close()
            return _run(msgspec.msgpack.decode(message, type=Request), *files)
        for file in files:
            os.close(file)


def _run(request: Request, output: int, control: int) -> None:
    """Fork again: the parent sends pid and exit code, and the child returns as the command."""
    die_with_parent = dying_with_parent()
    pid = os.fork()
    if pid:
        os.close(output)
        os.write(control, pid.to_bytes(CODE_BYTES))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # the pytest process has ended
            os.write(control, code.to_bytes(CODE_BYTES, signed=True))
        os._exit(0)
    die_with_parent()
    os.close(control)
    os.setsid()
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    os.close(output)
    os.environ.clear()
    os.environ.update(request.environ)
    time.tzset()
    sys.argv[1:] = request.words


def main() -> None:
    """Import what `serve` needs, then answer requests."""
    ours = {f"extender.{name}" for name in SERVING}.union(*map(_imports, SERVING))
    for name in [*LIBRARIES, *sorted(ours)]:
        importlib.import_module(name)
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from extender.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
