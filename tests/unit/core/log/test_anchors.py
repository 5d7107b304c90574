"""Which anchors are kept, and what is read from what was published."""

from __future__ import annotations

from itertools import pairwise

import pytest

from extender.core.log.anchors import (
    ANCHORS_MAX,
    NEWEST_KEPT,
    Anchor,
    decode_anchors,
    with_anchor,
)
from extender.core.model.ids import Epoch, Position


def anchor(position, epoch=1):
    return Anchor(position=Position(position), epoch=Epoch(epoch), chain=bytes(32))


def published(*positions):
    anchors = ()
    for position in positions:
        anchors = with_anchor(anchors, anchor(position))
    return [one.position for one in anchors]


def test_the_newest_are_kept_and_of_the_older_ones_fewer_and_fewer():
    """After ten thousand: the newest sixteen, and one at about each double distance, back to the begin of the log."""
    kept = published(*range(1, 10_001))
    assert kept[-NEWEST_KEPT:] == list(range(10_001 - NEWEST_KEPT, 10_001))
    assert len(kept) <= NEWEST_KEPT + 2 * 14
    assert kept[0] == 1
    distances = [10_000 - position for position in reversed(kept[:-NEWEST_KEPT])]
    assert all(b <= 4 * a for a, b in pairwise(distances))


def test_an_anchor_of_a_lost_end_is_kept():
    """The log went back from 500 to 100: what it was stays to be seen, however many follow."""
    kept = published(*range(1, 501), *range(101, 5_000))
    assert 500 in kept
    assert kept.index(500) < kept.index(4_999)


def test_the_number_of_anchors_is_limited():
    """A log that is replaced again and again: the oldest are dropped."""
    kept = published(*(position for n in range(100) for position in (1_000 - n, 1 + n)))
    assert len(kept) == ANCHORS_MAX


def test_null_is_nothing_published():
    assert decode_anchors(b"null") == ()


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b'{"position":"1","epoch":"1"}'])
def test_what_is_no_anchor_is_an_error(body):
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        decode_anchors(body)
