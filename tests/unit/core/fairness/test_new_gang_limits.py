"""New gangs of a namespace pass as often as the limit allows, in their order, and cost the others nothing."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from extender.core.fairness.new_gang_limits import (
    MINUTE_MS,
    NewGangLimit,
    NewGangLimits,
)
from extender.core.model.ids import GangUid


def tried(limits: NewGangLimits, namespace: str, uids, now_ms: int) -> list[str]:
    """Try gangs in one pass, and return those that may begin."""
    return [uid for uid in uids if limits.may_begin(namespace, GangUid(uid), now_ms)]


def test_so_many_at_once_and_then_evenly():
    """A minute's worth passes, then one after the other; each counts once, however often it is tried."""
    limits = NewGangLimits(60)
    uids = [f"g{n:03}" for n in range(100)]
    limits.begin()
    assert tried(limits, "a", uids, 0) == uids[:60]
    limits.begin()
    assert tried(limits, "a", uids, 0) == uids[:60], "those have paid"
    limits.begin()
    assert tried(limits, "a", uids, 2_500) == uids[:62]
    assert limits.waiting()[GangUid("g062")] == NewGangLimit(60, 0)
    assert (
        limits.waiting()[GangUid("g099")]
        .sentence()
        .endswith("37 of them come before it, about 38 s")
    )


def test_another_namespace_is_not_concerned():
    """Each namespace has a bucket of its own."""
    limits = NewGangLimits(1)
    limits.begin()
    assert tried(limits, "bad", ["b1", "b2"], 0) == ["b1"]
    assert tried(limits, "good", ["g1"], 0) == ["g1"]
    assert list(limits.limited_namespaces()) == ["bad"]
    limits.begin()
    assert not limits.limited_namespaces()


def test_zero_is_any_number():
    """The limit can be switched off."""
    limits = NewGangLimits(0)
    assert len(tried(limits, "a", map(str, range(10_000)), 0)) == 10_000


def test_what_is_forgotten():
    """Gangs that are not pending any more, and full buckets: nothing grows with names that went."""
    limits = NewGangLimits(2)
    for n in range(50):
        assert tried(limits, f"ns{n}", [f"u{n}"], 0)
    limits.retain([GangUid("u1")], MINUTE_MS)
    assert limits._tokens == {}
    assert limits._paid == {"u1"}


@given(
    st.integers(1, 20),
    st.lists(
        st.tuples(st.integers(0, 20_000), st.sampled_from("ab"), st.integers(1, 9)), max_size=60
    ),
)
def test_never_more_than_the_bucket_and_what_filled_it(per_minute, steps):
    """In any time a namespace gets at most one minute's worth, and what came into the bucket meanwhile."""
    limits, now_ms, passed, number = NewGangLimits(per_minute), 0, Counter(), 0
    for wait_ms, namespace, count in steps:
        now_ms += wait_ms
        uids = [f"{number + n}" for n in range(count)]
        number += count
        limits.begin()
        passed[namespace] += len(tried(limits, namespace, uids, now_ms))
        assert passed[namespace] <= per_minute * (1 + now_ms / MINUTE_MS) + 1e-6
        limits.retain([GangUid(str(n)) for n in range(number)], now_ms)
