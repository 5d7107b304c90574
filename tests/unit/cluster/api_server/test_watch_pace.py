"""A watch that reports many changes is read less often."""

from __future__ import annotations

import pytest

from extender.cluster.api_server.watch_pace import (
    CHANGES_MANY,
    PAUSE_MS,
    WINDOW_MS,
    WatchPace,
)


@pytest.mark.parametrize("changes", [1, 5, CHANGES_MANY - 1])
def test_few_changes_in_each_window_wait_for_nothing(changes):
    """So a small gang is seen at once, as often as one comes."""
    pace = WatchPace()
    assert {pace.after_read(changes, at_ms) for at_ms in range(7, 2_000, WINDOW_MS)} == {0}


def test_many_changes_are_read_together_until_they_are_few_again():
    """Whether they come one by one or in one read; the window before counts, so that a pause does not end at each new window."""
    pace = WatchPace()
    pauses = [pace.after_read(1, at_ms) for at_ms in range(1_000, 1_000 + CHANGES_MANY)]
    assert pauses == [0] * (CHANGES_MANY - 1) + [PAUSE_MS]
    assert pace.after_read(1, 1_000 + WINDOW_MS) == PAUSE_MS, "25 in the window before"
    assert pace.after_read(1, 1_000 + 2 * WINDOW_MS) == 0, "2 in the window before"
    assert pace.after_read(CHANGES_MANY, 1_000 + 3 * WINDOW_MS) == PAUSE_MS, (
        "a list of changes in one read"
    )


def test_silence_ends_it():
    """The first change after it may be the last member of a tree."""
    pace = WatchPace()
    assert pace.after_read(CHANGES_MANY, 1_000) == PAUSE_MS
    assert pace.after_read(1, 1_000 + 2 * WINDOW_MS) == 0
