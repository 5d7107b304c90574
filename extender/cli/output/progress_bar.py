"""Show on a terminal how far a plan is: files that are read, copies that are planned. Elsewhere nothing is shown."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class PlanProgress:
    """A progress bar on stderr, which disappears when the plan is there."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(console=Console(stderr=True), transient=True)
            self._progress.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _fault: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def read(self, name: str, done: int, size: int) -> None:
        """Show how many bytes of a file were read."""
        self._show(f"Reading {name}", done, size)

    def begin(self, text: str) -> None:
        """Show a step that has no parts to count."""
        self._show(text, 0, 0)

    def copies(self, fit: int, requested: int) -> None:
        """Show how many copies fit so far; `requested` 0: as many as fit."""
        text = "Planning copies" if requested else f"Planning copies: {fit} fit so far"
        self._show(text, fit, requested, key="copies")

    def _show(self, text: str, done: int, size: int, *, key: str = "") -> None:
        if self._progress is None:
            return
        task = self._tasks.get(key or text)
        if task is None:
            task = self._tasks[key or text] = self._progress.add_task(text, total=size or None)
        self._progress.update(task, description=text, completed=done)
