"""Options of the commands that list something, named as those of kubectl, and --since and --until."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import urlencode

import msgspec
import typer

from extender.cli.output.printing import Output
from extender.core.model.errors import BadInput
from extender.core.model.message_formatting import duration_s, parse_time, rfc3339
from extender.queries.log.parameter_validation import checked_choice, checked_name
from extender.queries.state.gang_selection import parse_selector
from extender.runtime.system_clock import SystemClock

Selector = Annotated[str, typer.Option("-l", "--selector", help="Only with these labels, of the root group or of its workload: a=b,c!=d,e in (x,y),!f.")]  # fmt: skip
States = Annotated[list[str] | None, typer.Option("--state", help="Only in these states, with commas between them. Repeatable.")]  # fmt: skip
Watch = Annotated[bool, typer.Option("-w", "--watch", help="After the list, print each row that changes, until Ctrl-C.")]  # fmt: skip
ValueForm = Annotated[Output, typer.Option("-o", "--output", help="Form of the output.")]


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list a user wants."""

    namespace: str = ""  # empty: all
    states: tuple[str, ...] = ()  # empty: all
    selector: str = ""  # empty: all

    @property
    def restricted(self) -> bool:
        """Return whether the part may lack something."""
        return bool(self.namespace or self.states or self.selector)

    def words(self) -> str:
        """Return the part in words, for a sentence that there is nothing: ` in namespace 'a'`."""
        text = f" in namespace {self.namespace!r}" if self.namespace else ""
        text += f" in state {' or '.join(self.states)}" if self.states else ""
        return text + (f" with labels {self.selector!r}" if self.selector else "")

    def path(self, path: str, **more: str) -> str:
        """Return the path of a list under /v1 with this part, and more parameters unless they are empty, as its query."""
        query = [("namespace", self.namespace)] if self.namespace else []
        query += [("state", state) for state in self.states]
        query += [("labelSelector", self.selector)] if self.selector else []
        query += [(name, text) for name, text in more.items() if text]
        return path + ("?" + urlencode(query) if query else "")


class Where(msgspec.Struct, frozen=True):
    """The namespaces of a list: options of the commands that list something."""

    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only of this namespace.")] = (
        ""
    )
    all_namespaces: Annotated[bool, typer.Option("-A", "--all-namespaces", help="All namespaces, also with -n. The default.")] = False  # fmt: skip

    def part(
        self, states: list[str] | None = None, choices: tuple[str, ...] = (), selector: str = ""
    ) -> Listed:
        """Return the part of a list that these and further options name; `states`: values of --state, each one or several with commas."""
        names = [name.strip() for text in states or () for name in text.split(",")]
        parse_selector(selector, "--selector")
        some = self.namespace and not self.all_namespaces
        return Listed(
            namespace=checked_name(self.namespace, "--namespace") if some else "",
            selector=selector.strip(),
            states=tuple(
                dict.fromkeys(checked_choice(name, choices, "--state", "state") for name in names)
            ),
        )


FORMS: Final = "90m, 2h, 3d, 1d12h, today, yesterday, 2026-11-20, 2026-11-20T03:12:00Z"
Since = Annotated[str | None, typer.Option(help="From this time on: 2h or 3d before now, yesterday (0:00 UTC), or RFC 3339 with offset.")]  # fmt: skip
Until = Annotated[
    str | None, typer.Option(help="Up to this time, written as for --since; default: now.")
]
SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400 * SECOND_US
DAYS: Final = ("now", "today", "yesterday")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def moment_us(text: str, field: str, now_us: int) -> int:
    """Return a time as microseconds since the epoch; days begin at 0:00 UTC.

    >>> [rfc3339(moment_us(text, "--since", 1_800_000_000_000_000))[:16] for text in ("90m", "yesterday", "2026-11-20")]
    ['2027-01-15T06:30', '2027-01-14T00:00', '2026-11-20T00:00']

    Args:
        text: A duration before now, `today`, `yesterday`, a date, or a time of RFC 3339 with an offset.
    """
    before_s = duration_s(text)
    if before_s is not None:
        return max(0, now_us - before_s * SECOND_US)
    day_us = now_us - now_us % DAY_US
    if text in DAYS:
        return {"now": now_us, "today": day_us, "yesterday": day_us - DAY_US}[text]
    try:
        if _DATE.fullmatch(text):
            return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_US
        return parse_time(text, field)
    except (BadInput, ValueError) as error:
        msg = f"{field}: {text[:40]!r} is neither a time with offset nor a span before now; write one like {FORMS}"
        raise BadInput(msg) from error


def times(since_us: int | None, until_us: int | None) -> dict[str, str]:
    """Return the parameters `since` and `until` of a path under /v1, without those that are not given."""
    bounds = {"since": since_us, "until": until_us}
    return {name: rfc3339(at_us) for name, at_us in bounds.items() if at_us is not None}


def past_text(text: str, field: str) -> str:
    """Return a time or position of the past as the queries take it: a span before now, or a day, as its time."""
    if not text or (text.isascii() and text.isdigit()):
        return text
    try:
        at_us = moment_us(text, field, SystemClock().now_us())
    except BadInput as error:
        msg = f"{field}: {text[:40]!r} is neither a position, a time with offset nor a span before now; write one like 17, {FORMS}"
        raise BadInput(msg) from error
    return text if "T" in text else rfc3339(at_us)


def span_us(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Return the values of --since and --until as microseconds since the epoch; None where one is not given."""
    now_us = SystemClock().now_us()
    begin_us = moment_us(since, "--since", now_us) if since is not None else None
    end_us = moment_us(until, "--until", now_us) if until is not None else None
    if begin_us is not None and end_us is not None and begin_us >= end_us:
        begin, end = _dated(since, begin_us), _dated(until, end_us)
        raise BadInput(f"--since: {begin} is not before --until, {end}; the span is empty")
    return begin_us, end_us


def _dated(text: str | None, at_us: int) -> str:
    """Return a time as the user wrote it, with what it means if that is not the same."""
    return text if text and "T" in text else f"{text} ({rfc3339(at_us)[:19]}Z)"
