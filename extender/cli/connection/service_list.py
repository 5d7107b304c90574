"""A list of a running service: printed once, or watched."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import msgspec
import typer

from extender.cli.connection.service_client import ask_service, finder
from extender.cli.output.list_table import ListTable
from extender.cli.output.printing import complain
from extender.core.model.errors import BadInput

T = TypeVar("T")
R = TypeVar("R")
INTERVAL_S: Final = 1.0  # between two questions for the end of the log
SHARE: Final = 5  # a list that takes long to read is read again only after this many times as long
RETRY_S: Final = 5.0
END_PATH: Final = "/v1/events?order=newest&limit=1"


class Ask(Protocol):
    """Returns the decoded answer of a service to GET, see `ask_service`."""

    def __call__(self, path: str, kind: type[R], /, *, absent: R | None = None, most: int = 0) -> R:
        """Return the answer for a path and query; `absent` where the service does not have what it names.

        Of a list all pages, up to `most` entries.
        """
        ...


def asks(server: str | None, *, watch: bool = False) -> Ask:
    """Return what asks the service of a command.

    To watch a list, the service is found now and stays the same: where another one takes its place, its list would
    look like a change.

    Args:
        server: The option --server; None: not given.
        watch: Whether it is asked until Ctrl-C.
    """
    if watch and not finder().chosen:
        server = finder().find(server)
    return partial(ask_service, server)


class _Position(msgspec.Struct):
    position: int


class ServiceList(Generic[T]):
    """A list of a running service."""

    def __init__(self, ask: Ask, read: Callable[[], Sequence[T]], table: ListTable[T]) -> None:
        self._ask = ask
        self._read_list = read
        self._table = table

    def print(self, empty: str) -> None:
        """Print the list once; `empty` is the sentence for a list without rows."""
        self._table.print(self._read_list(), empty=empty)

    def watch(
        self,
        identity: Callable[[T], str],
        removed: Callable[[T], T],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Print the list, then each row that is new, changed or gone, until Ctrl-C.

        The list is read again when the log of the service has grown, and once more after that, because the service
        may have answered before it had the last event. A service that does not answer is asked again.

        Args:
            identity: Returns what stays the same of an item that changes; the name of its row where it has no UID yet.
            removed: Returns an item that is not in the list any more, as it is printed then.
            pause: Waits for a number of seconds.
        """
        try:
            end = self._end()
            previous = self._read(identity)
            self._print_first([*previous.values()])
            grown, lost, pause_s = True, False, INTERVAL_S
            while True:
                pause(pause_s)
                try:
                    now = self._end()
                    again, grown, end = grown or now != end, now != end, now
                    if again:
                        began_s = time.monotonic()
                        read = self._read(identity)
                        pause_s = max(INTERVAL_S, SHARE * (time.monotonic() - began_s))
                        self._print_changes(previous, read, removed)
                        previous = read
                    if lost:
                        complain("the service answers again")
                    lost = False
                except BadInput as error:
                    if not lost:
                        complain(f"{error}; trying again")
                    grown, lost, pause_s = True, True, RETRY_S
                except typer.Exit:  # the error has been printed
                    grown, lost, pause_s = True, True, RETRY_S
        except KeyboardInterrupt:
            return

    def _end(self) -> int:
        """Return the position of the end of the log."""
        return max((event.position for event in self._ask(END_PATH, list[_Position])), default=0)

    def _read(self, identity: Callable[[T], str]) -> dict[str, T]:
        return {identity(item): item for item in self._read_list()}

    def _print_first(self, items: Sequence[T]) -> None:
        """Print the list; values for programs one by one, as those that follow."""
        if self._table.output_format.is_table and items:
            self._table.print(items, empty="")
            sys.stdout.flush()
        else:
            for item in self._table.sorted(items):
                self._table.print_changed(item)

    def _print_changes(
        self, before: dict[str, T], now: dict[str, T], removed: Callable[[T], T]
    ) -> None:
        shown = self._table.shown
        for name, item in now.items():
            if name not in before or shown(before[name]) != shown(item):
                self._table.print_changed(item)
        name_of = self._table.name
        added = {name_of(now[key]): key for key in now.keys() - before.keys()}
        for key in before.keys() - now.keys():
            name = name_of(before[key])
            if name in added and name in (key, added[name]):
                continue  # it has got another identity than its name, or lost it: its row was printed above
            self._table.print_changed(removed(before[key]))
