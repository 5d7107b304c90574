"""Processes that make recorded decisions again, of this version or of another one in its own environment.

Batches go to whichever process is free, and their answers come back in the order of the log. When a process dies, its
batch is decided again, each decision alone; one by which a second process dies has that as its answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from extender.cli.replay.replay_worker import (
    LENGTH,
    Batch,
    BatchAnswer,
    BatchDecision,
    Greeting,
    frame_of,
)
from extender.core.model.errors import BadInput, ExtenderError
from extender.queries.log.decision_details import StoredDecision
from extender.runtime.child_process import end_with_parent

WORKER = Path(__file__).with_name("replay_worker.py")
PACKAGES = Path(__file__).parents[3]  # where this version is imported from
IN_FLIGHT = 3  # batches for each process: one that takes long does not stop the others at once
_ANSWERS = msgspec.msgpack.Decoder(list[BatchAnswer])
_GREETING = msgspec.msgpack.Decoder(Greeting)


class ProcessEnded(ExtenderError):
    """A process ended instead of answering: decide again in another one."""


@contextmanager
def environment_of(wheel: Path | None, python: Path | None) -> Iterator[Path]:
    """Yield the interpreter of another version; that of a wheel is in a virtual environment until the block ends.

    Args:
        wheel: A wheel of gang-extender, installed by pip with what it requires.
        python: An interpreter in whose environment a version is installed; both None: this version.
    """
    with ExitStack() as stack:
        if wheel is None:
            if python is not None and not (python.is_file() and os.access(python, os.X_OK)):
                raise BadInput(f"--python {python}: is not a program; name the interpreter of an environment, such as venv/bin/python")  # fmt: skip
            yield python or Path(sys.executable)
            return
        if not wheel.is_file():
            raise BadInput(f"--with {wheel}: there is no such file; name a wheel of gang-extender")
        if wheel.suffix != ".whl":  # pip would take the name for that of a package of its index
            raise BadInput(f"--with {wheel}: is no wheel: those end with .whl")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replay-")))
        interpreter = folder / "bin" / "python"
        for words in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(interpreter), "-m", "pip", "install", "--quiet", str(wheel)],
        ):
            done = subprocess.run(  # noqa: S603 -- the wheel that the user names
                words, capture_output=True, text=True, check=False, env=_environ()
            )
            if done.returncode:
                last = (done.stderr or done.stdout).strip().splitlines()[-1:]
                raise BadInput(f"--with {wheel}: `{' '.join(words[1:4])}` failed: {''.join(last)}")
        yield interpreter


def _environ(path: str = "") -> dict[str, str]:
    """Return the environment variables for an interpreter: none that leads to other modules than its own, or those in `path`."""
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    return environ | ({"PYTHONPATH": path} if path else {})


class ReplayProcess:
    """One process, see `replay_worker`."""

    def __init__(self, process: asyncio.subprocess.Process, greeting: Greeting) -> None:
        self._process, self.greeting = process, greeting

    @classmethod
    async def start(cls, interpreter: Path) -> ReplayProcess:
        """Start a process and wait until it can decide.

        Raises:
            BadInput: No gang-extender, or one that is too old, is installed there.
        """
        own = interpreter == Path(sys.executable)
        with tempfile.TemporaryFile() as printed:  # by another version
            process = await asyncio.create_subprocess_exec(
                str(interpreter), "-P", str(WORKER),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None if own else printed,
                env=_environ(str(PACKAGES) if own else ""), preexec_fn=end_with_parent(signal.SIGKILL),
                start_new_session=True,  # Ctrl-C is for this process, which kills them
            )  # fmt: skip
            try:
                return cls(process, _GREETING.decode(await _read(process)))
            except ProcessEnded as error:
                printed.seek(0)
                last = printed.read().decode(errors="replace").strip().splitlines()[-1:]
                raise BadInput(
                    f"{interpreter}: cannot replay decisions: {''.join(last) or error}; it needs a gang-extender "
                    "that has `decision replay`, with its packages"
                ) from error

    async def decide(
        self, batch: Sequence[StoredDecision], budget: int | None
    ) -> list[BatchAnswer]:
        """Return an answer for each decision, in their order.

        Raises:
            ProcessEnded: It died; the message has how.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(frame_of(_packed(batch, budget)))
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the read below has the reason
        return _ANSWERS.decode(await _read(self._process))

    async def stop(self) -> None:
        """Kill it and wait for its end."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def _read(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    try:
        size = await process.stdout.readexactly(LENGTH.size)
        return await process.stdout.readexactly(LENGTH.unpack(size)[0])
    except asyncio.IncompleteReadError as error:
        code = await process.wait()
        how = f"by signal {-code}" if code < 0 else f"with exit status {code}"
        raise ProcessEnded(f"its process ended {how}") from error


def _packed(batch: Sequence[StoredDecision], budget: int | None) -> Batch:
    """Return decisions with each part of their inputs once."""
    numbers: dict[bytes, int] = {}
    decisions = [
        BatchDecision(
            decision.position, decision.type, bytes(decision.data), decision.digest, decision.head,
            [numbers.setdefault(part, len(numbers)) for part in decision.parts],
        )
        for decision in batch
    ]  # fmt: skip
    return Batch([*numbers], decisions, budget)


class ReplayPool:
    """Several processes of one version.

    Attributes:
        greeting: What they are.
    """

    def __init__(
        self, interpreter: Path, processes: Sequence[ReplayProcess], budget: int | None
    ) -> None:
        self._interpreter, self._budget = interpreter, budget
        self._count, self._all = len(processes), set(processes)
        self._idle: asyncio.Queue[ReplayProcess] = asyncio.Queue()
        for process in processes:
            self._idle.put_nowait(process)
        self.greeting = processes[0].greeting

    async def decided(
        self, batches: AsyncIterator[Sequence[StoredDecision]]
    ) -> AsyncIterator[list[BatchAnswer]]:
        """Yield the answers to each batch, in the order of the batches."""
        running: deque[asyncio.Task[list[BatchAnswer]]] = deque()
        try:
            async for batch in batches:
                running.append(asyncio.create_task(self._decide(batch)))
                while len(running) >= IN_FLIGHT * self._count:
                    yield await running.popleft()
            while running:
                yield await running.popleft()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def stop(self) -> None:
        """Kill all processes."""
        await asyncio.gather(*(process.stop() for process in self._all))

    async def _decide(self, batch: Sequence[StoredDecision]) -> list[BatchAnswer]:
        try:
            return await self._tried(batch)
        except ProcessEnded:
            return [await self._alone(decision) for decision in batch]

    async def _alone(self, decision: StoredDecision) -> BatchAnswer:
        try:
            (answer,) = await self._tried((decision,))
        except ProcessEnded as error:
            return BatchAnswer(
                decision.position, error=f"{error}, also when it decided this one alone"
            )
        return answer

    async def _tried(self, batch: Sequence[StoredDecision]) -> list[BatchAnswer]:
        process = await self._idle.get()
        try:
            return await process.decide(batch, self._budget)
        except ProcessEnded:
            self._all.discard(process)
            process = await ReplayProcess.start(self._interpreter)
            self._all.add(process)
            raise
        finally:
            self._idle.put_nowait(process)


@asynccontextmanager
async def replay_pool(
    interpreter: Path, *, processes: int, budget: int | None = None
) -> AsyncIterator[ReplayPool]:
    """Open a pool; its processes are killed when the block ends."""
    started = [await ReplayProcess.start(interpreter) for _ in range(processes)]
    pool = ReplayPool(interpreter, started, budget)
    try:
        yield pool
    finally:
        await pool.stop()
