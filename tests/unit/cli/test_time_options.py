"""The times that --since and --until take."""

from __future__ import annotations

import pytest

from extender.cli.options.list_options import moment_us, past_text, span_us
from extender.core.model.errors import BadInput
from extender.core.model.message_formatting import parse_time, rfc3339

NOW_US = parse_time("2026-11-24T20:15:00.5Z", "now")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("90m", "2026-11-24T18:45:00.500000Z"),
        ("2h", "2026-11-24T18:15:00.500000Z"),
        ("1d12h", "2026-11-23T08:15:00.500000Z"),
        ("1w", "2026-11-17T20:15:00.500000Z"),
        ("30s", "2026-11-24T20:14:30.500000Z"),
        ("now", "2026-11-24T20:15:00.500000Z"),
        ("today", "2026-11-24T00:00:00.000000Z"),
        ("yesterday", "2026-11-23T00:00:00.000000Z"),
        ("2026-02-03", "2026-02-03T00:00:00.000000Z"),
        ("2026-02-03T04:05:06+02:00", "2026-02-03T02:05:06.000000Z"),
        ("999999999w", "1970-01-01T00:00:00.000000Z"),
    ],
)
def test_a_time_is_a_span_before_now_a_day_or_a_time_with_offset(text, meant):
    assert rfc3339(moment_us(text, "--since", NOW_US)) == meant


@pytest.mark.parametrize(
    "text",
    ["", "2", "h", "2 h", "-2h", "2h!", "1.5h", "2y", "yesterdy", "2026-13-01", "2026-11-24T20:15", "²h"],
)  # fmt: skip
def test_what_is_no_time_is_named_with_what_could_be_written(text):
    with pytest.raises(BadInput) as error:
        moment_us(text, "--since", NOW_US)
    assert str(error.value).startswith(f"--since: {text!r} is neither a time with offset nor a ")
    assert "90m, 2h, 3d, 1d12h, today, yesterday, 2026-11-20, 2026-11-20T03" in str(error.value)


def test_an_empty_span_is_named_with_what_its_ends_mean():
    with pytest.raises(BadInput, match=r"^--since: 1h \(2.*Z\) is not before --until, 2h \(2.*Z\)"):
        span_us("1h", "2h")
    begin, end = span_us("2h", "1h")
    assert begin is not None
    assert end is not None
    assert 3_590_000_000 < end - begin < 3_610_000_000
    assert span_us(None, None) == (None, None)


def test_a_position_or_a_time_stays_as_it_is_written():
    """What the queries of the past take; a span or a day becomes a time."""
    for text in ("", "17", "2026-02-03T04:05:06+02:00"):
        assert past_text(text, "--at") == text
    assert past_text("2026-02-03", "--at") == "2026-02-03T00:00:00.000000Z"
    assert past_text("2h", "--at").endswith("Z")
    with pytest.raises(BadInput, match=r"^--at: 'noon' is neither a position, a time with offset nor a span before now; write one like 17, 90m, "):  # fmt: skip
        past_text("noon", "--at")
