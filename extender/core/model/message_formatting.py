"""Parts of sentences that many messages share: counts with a noun, kinds with paths, amounts of resources, times."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from extender.core.model.errors import BadInput

MINUTE, HOUR, DAY = 60, 3600, 86_400
_SECONDS: Final = {"s": 1, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
_DURATION = re.compile(r"(\d{1,9}[smhdw])+", re.ASCII)
_PARTS = re.compile(r"\d+[smhdw]")
YEAR: Final = 365 * DAY
_BYTE_UNITS = ("KiB", "MiB", "GiB", "TiB")
# As HumanDuration of kubectl: below a limit in seconds, the unit and the smaller one beside it (0: none).
_DURATIONS: Final[tuple[tuple[int | None, int, str, int, str], ...]] = (
    (2 * MINUTE, 1, "s", 0, ""),
    (10 * MINUTE, MINUTE, "m", 1, "s"),
    (3 * HOUR, MINUTE, "m", 0, ""),
    (8 * HOUR, HOUR, "h", MINUTE, "m"),
    (48 * HOUR, HOUR, "h", 0, ""),
    (8 * DAY, DAY, "d", HOUR, "h"),
    (2 * YEAR, DAY, "d", 0, ""),
    (8 * YEAR, YEAR, "y", DAY, "d"),
    (None, YEAR, "y", 0, ""),
)
EMPTY: Final = '""'  # the value of a label, in a sentence
_SIMILAR: Final = 0.7  # the ratio of difflib
NAMED_MAX: Final = 6  # names listed in a text before "and n more"
BYTES: Final = ("memory", "ephemeral-storage")
BINARY: Final = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 -- UTC; a naive value is faster to add to
_FIRST_US, _LAST_US = (
    -62_135_596_800_000_000,
    253_402_300_799_999_999,
)  # of the years that a datetime has, 1 to 9999
_TWO = tuple(f"{number:02}" for number in range(60))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the singular for one.

    >>> [counted(n, "event") for n in (0, 1, 2)] + [counted(2, "process")]
    ['0 events', '1 event', '2 events', '2 processes']
    """
    plural = f"{noun}es" if noun.endswith("ss") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def join_names(names: Sequence[str], most: int = NAMED_MAX) -> str:
    """Return a few names joined by commas, and the number of the rest.

    >>> join_names(["a", "b"]), join_names(["a", "b", "c"], 1)
    ('a, b', 'a and 2 more')
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def did_you_mean(name: str, candidates: Iterable[str], *, most: int = 1) -> str:
    """Return the end of a sentence with the names that are similar, or an empty string if none is.

    What stands before the last slash makes no two names similar.

    >>> did_you_mean("minCuont", ("minCount", "minGroupCount")), did_you_mean("x", ("minCount",))
    ('; did you mean minCount?', '')
    >>> did_you_mean("net.example.com/rck", ("net.example.com/rack",)), did_you_mean("net.example.com/numa", ("net.example.com/rack",))
    ('; did you mean net.example.com/rack?', '')
    """
    names = sorted(set(candidates))
    close = difflib.get_close_matches(name, names, n=len(names) or 1, cutoff=_SIMILAR)
    at = name.rfind("/") + 1
    near = sorted(
        (c for c in close if c[:at] != name[:at] or _ratio(c[at:], name[at:]) >= _SIMILAR),
        key=lambda candidate: (-_ratio(candidate, name), candidate),
    )
    near = ([candidate for candidate in names if candidate.lower() == name.lower()] or near)[:most]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _ratio(candidate: str, name: str) -> float:
    return difflib.SequenceMatcher(None, candidate, name).ratio()


def label_text(key: str, value: str) -> str:
    """Return a label as people write it.

    >>> label_text("net/rack", "r1"), label_text("net/rack", "")
    ('net/rack=r1', 'net/rack=""')
    """
    return f"{key}={value or EMPTY}"


def labels_text(labels: Mapping[str, str]) -> str:
    """Return some labels as people write them.

    >>> labels_text({"net/rack": "r1", "net/block": ""})
    'net/rack=r1, net/block=""'
    """
    return ", ".join(label_text(*label) for label in labels.items())


def domain_text(key: str, value: str) -> str:
    """Return the name of a domain in a sentence that has the key: the value, of an empty one with the key.

    >>> domain_text("net/rack", "r1"), domain_text("net/rack", "")
    ('r1', 'net/rack=""')
    """
    return value or label_text(key, value)


def spaced(name: object) -> str:
    """Return `Kind namespace/name` of what is written `Kind/namespace/name`.

    >>> spaced("PodGroup/default/train")
    'PodGroup default/train'
    """
    return str(name).replace("/", " ", 1)


def duration_text(seconds: float) -> str:
    """Return a duration as kubectl writes it: shorter than a second in ms, then one or two units that fit its size.

    >>> [duration_text(s) for s in (0.25, 90, 300, 330, 7200, 11_520, 90_000, 183_600, 864_000)]
    ['250ms', '90s', '5m', '5m30s', '120m', '3h12m', '25h', '2d3h', '10d']
    """
    if 0 < seconds < 1:
        return f"{int(seconds * 1000)}ms"
    whole = int(seconds)
    size, unit, smaller, small_unit = next(
        rule[1:] for rule in _DURATIONS if rule[0] is None or whole < rule[0]
    )
    rest = whole % size // smaller if smaller else 0
    return f"{whole // size}{unit}" + (f"{rest}{small_unit}" if rest else "")


def gpu_time_text(minutes: int) -> str:
    """Return GPU-minutes as text.

    >>> gpu_time_text(186), gpu_time_text(59), gpu_time_text(1)
    ('3.1 GPU-hours', '59 GPU-minutes', '1 GPU-minute')
    """
    return f"{minutes / 60:.1f} GPU-hours" if minutes >= MINUTE else counted(minutes, "GPU-minute")


def duration_s(text: str) -> int | None:
    """Return the seconds of a duration as people write it; None: the text is none.

    >>> [duration_s(text) for text in ("90m", "1d12h", "2w", "1.5h", "")]
    [5400, 129600, 1209600, None, None]
    """
    if not _DURATION.fullmatch(text):
        return None
    return sum(int(part[:-1]) * _SECONDS[part[-1]] for part in _PARTS.findall(text))


def bytes_text(count: int) -> str:
    """Return a number of bytes in the binary unit that fits its size.

    >>> [bytes_text(count) for count in (999, 8 << 20, 3 << 29)]
    ['999 B', '8.0 MiB', '1.5 GiB']
    """
    if count < 1 << 10:
        return f"{count} B"
    unit = min((count.bit_length() - 1) // 10, len(_BYTE_UNITS))
    return f"{count / (1 << 10 * unit):.1f} {_BYTE_UNITS[unit - 1]}"


def amounts_text(requests: Mapping[str, int]) -> str:
    """Return amounts in the units of requests as text; without `pods`, which other columns have.

    >>> amounts_text({"cpu": 1500, "memory": 3 << 30, "nvidia.com/gpu": 2, "pods": 1})
    'cpu 1.5, memory 3Gi, nvidia.com/gpu 2'
    """
    return ", ".join(
        f"{name} {_amount(name, amount)}"
        for name, amount in sorted(requests.items())
        if name != "pods"
    )


def _amount(name: str, amount: int) -> str:
    if name == "cpu":
        return f"{amount / 1000:g}"
    if name in BYTES:
        for size, unit in BINARY:
            if amount >= size:
                return f"{amount / size:.4g}{unit}"
    return str(amount)


def rfc3339(at_us: int) -> str:
    """Return microseconds since the epoch as RFC 3339 text in UTC.

    Faster than `datetime.isoformat`, because a state has thousands of times. One outside of the years 1 to 9999, such
    as the end of a pod that may run for longer, is the first or the last of them.

    >>> rfc3339(1_800_000_000_000_001)
    '2027-01-15T08:00:00.000001Z'
    >>> rfc3339(1 << 60)
    '9999-12-31T23:59:59.999999Z'
    """
    seconds, us = divmod(max(_FIRST_US, min(at_us, _LAST_US)), 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{_date(days)}T{_TWO[hours]}:{_TWO[minutes]}:{_TWO[seconds % 60]}.{us:06}Z"


@lru_cache(maxsize=1024)
def _date(days: int) -> str:
    return (_EPOCH + timedelta(days=days)).date().isoformat()


def parse_time(text: str, field: str) -> int:
    """Return an RFC 3339 time with an offset or Z as microseconds since the epoch."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        msg = f"{field}: {text!r} is not a time with offset, for example 2026-11-20T03:12:00Z"
        raise BadInput(msg)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (moment - epoch) // timedelta(microseconds=1)
