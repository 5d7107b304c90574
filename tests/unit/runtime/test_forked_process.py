"""A fork that is made before the event loop works when it gets its options, and ends with its parent.

Each test runs a script in an interpreter of its own: the process of the tests has threads, and is not forked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.waiting import until

PRELUDE = """
import asyncio, os, signal, sys
from extender.runtime.worker_process import ForkedProcess, WorkerProcess

def work(options):
    own_session = os.getsid(0) == os.getpid()
    os.write(1, f"{options.decode()} {os.getpid()} {own_session}\\n".encode())  # in one piece: its parent writes too
    if options == b"sleep":
        signal.pause()
    sys.exit(int(options))

"""


def run(script):
    """Run a script to its end and return the words that it printed."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def has_ended(pid):
    """Return whether there is no process with this id, or only what its parent has not waited for."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def test_it_gets_its_options_and_its_status_is_returned_to_all_who_wait():
    words = run("""
        forked = ForkedProcess(work)
        async def main():
            waiting = asyncio.create_task(forked.wait())
            await asyncio.sleep(0)
            forked.begin(b"7")
            print(await forked.wait(), await waiting, await forked.wait(), forked.pid)
        asyncio.run(main())
    """)
    options, pid, own_session, *statuses, known_pid = words
    assert (options, own_session, statuses) == ("7", "True", ["7", "7", "7"])
    assert pid == known_pid


def test_closed_it_has_ended_whether_it_worked_or_not():
    """Without an event loop; and again after its end."""
    words = run("""
        for begins in (False, True):
            forked = ForkedProcess(work)
            if begins:
                forked.begin(b"sleep")
            forked.close()
            forked.close()
            try:
                os.kill(forked.pid, 0)
            except ProcessLookupError:
                print("ended", len(os.listdir("/proc/self/fd")))
    """)
    ended = [words[at + 1] for at, word in enumerate(words) if word == "ended"]
    assert len(ended) == 2
    assert ended[0] == ended[1], "it leaves no file open"


@pytest.mark.parametrize(("method", "status"), [("terminate", "-15"), ("kill", "-9")])
def test_it_is_ended_by_signals(method, status):
    words = run(f"""
        forked = ForkedProcess(work)
        async def main():
            forked.begin(b"sleep")
            forked.{method}()
            print("status", await forked.wait())
            forked.{method}()
        asyncio.run(main())
    """)
    assert words[-2:] == ["status", status]


def test_one_that_was_killed_before_it_worked_has_ended():
    words = run("""
        forked = ForkedProcess(work)
        async def main():
            os.kill(forked.pid, signal.SIGKILL)
            status = await forked.wait()
            try:
                forked.begin(b"1")
            except OSError as error:
                print(status, type(error).__name__)
        asyncio.run(main())
    """)
    assert words == ["-9", "BrokenPipeError"]


@pytest.mark.parametrize("begins", [True, False])
def test_it_ends_when_its_parent_is_killed(begins):
    script = f"""
        forked, worker = ForkedProcess(work), WorkerProcess()
        worker.fork()
        if {begins}:
            forked.begin(b"sleep")
        os.write(1, f"forked {{forked.pid}} {{worker.pid}}\\n".encode())
        signal.pause()
    """
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        line = next(line for line in parent.stdout if line.startswith("forked"))
        parent.kill()
    until(lambda: all(has_ended(int(pid)) for pid in line.split()[1:]), "the ends of both")


def test_a_worker_that_was_forked_has_the_modules_and_is_replaced_by_a_new_one():
    words = run("""
        import html.entities
        worker = WorkerProcess(nice=1)
        worker.fork()
        first = worker.pid
        async def main():
            print(await worker.run(eval, "'html.entities' in __import__('sys').modules"))
            print(await worker.run(os.getpid) == first, await worker.run(os.nice, 0) - os.nice(0))
            os.kill(first, signal.SIGKILL)
            while True:
                try:
                    second = await worker.run(os.getpid)
                    break
                except Exception as error:
                    assert type(error).__name__ == "BrokenProcessPool", error
            print(second != first, await worker.run(eval, "'html.entities' in __import__('sys').modules"))
            worker.stop()
        asyncio.run(main())
    """)
    niced = str(min(os.nice(0) + 1, 19) - os.nice(0))
    assert words == ["True", "True", niced, "True", "False"]
