"""How long answers about tokens and rights are used, and how many reviews kube-apiserver gets."""

from __future__ import annotations

import asyncio

import pytest

from extender.core.model.errors import AccessUnknown, Forbidden
from extender.http.access import review_cache
from extender.http.access.review_cache import NAMESPACES_MAX, NEGATIVE_S, POSITIVE_S, ReviewCache
from extender.ports.access_ports import AccessRight, Caller
from tests.support.service.fake_access import FakeAccessReviews
from tests.support.waiting import eventually

LIST = AccessRight("list", "a")


class Timed:
    """A cache with a clock that the test moves."""

    def __init__(self):
        self.reviews = FakeAccessReviews()
        self.now_s = 0.0
        self.cache = ReviewCache(self.reviews, lambda: self.now_s)
        self.token = self.reviews.add_user("ann", LIST)
        self.ann = Caller(user="ann", groups=("system:authenticated",))


@pytest.fixture
def timed():
    return Timed()


async def test_an_answer_counts_for_seconds(timed):
    """One review of a token and of a right for all questions within 10 s; then they are asked again."""
    for _ in range(3):
        assert await timed.cache.caller(timed.token) == timed.ann
        assert await timed.cache.may(timed.ann, LIST)
    assert timed.reviews.asked == ["token", str(LIST)]
    timed.reviews.tokens.clear()
    timed.reviews.rights.clear()
    timed.now_s = POSITIVE_S - 0.01
    assert await timed.cache.caller(timed.token) == timed.ann
    assert await timed.cache.may(timed.ann, LIST)
    timed.now_s = POSITIVE_S
    assert await timed.cache.caller(timed.token) is None
    assert not await timed.cache.may(timed.ann, LIST)


async def test_a_refusal_counts_for_a_shorter_time(timed):
    """Who has just got a right need not wait for 10 s."""
    bob = Caller(user="bob")
    assert not await timed.cache.may(bob, LIST)
    assert await timed.cache.caller("soon") is None
    timed.reviews.rights.add(("bob", LIST))
    timed.reviews.tokens["soon"] = bob
    timed.now_s = NEGATIVE_S
    assert NEGATIVE_S < POSITIVE_S
    assert await timed.cache.may(bob, LIST)
    assert await timed.cache.caller("soon") == bob


async def test_an_answer_is_as_old_as_its_question(timed):
    """A review that took 9 s has the state of its beginning."""
    timed.reviews.open.clear()
    asking = asyncio.create_task(timed.cache.may(timed.ann, LIST))
    await eventually(lambda: timed.reviews.asked)
    timed.now_s = 9.0
    timed.reviews.open.set()
    assert await asking
    timed.now_s = POSITIVE_S
    await timed.cache.may(timed.ann, LIST)
    assert timed.reviews.asked == [str(LIST)] * 2


async def test_one_review_of_a_token_is_open_at_a_time(timed):
    """A hundred requests of a page that opens are one review; one of them that goes away does not end it."""
    timed.reviews.open.clear()
    asking = [asyncio.create_task(timed.cache.caller(timed.token)) for _ in range(100)]
    await asyncio.sleep(0)
    asking[0].cancel()
    timed.reviews.open.set()
    assert await asyncio.gather(*asking[1:]) == [timed.ann] * 99
    assert timed.reviews.asked == ["token"]


async def test_without_an_answer_nothing_old_is_used(timed):
    """The API server is down: answers that are young enough count, then the question has no answer."""
    assert await timed.cache.may(timed.ann, LIST)
    timed.reviews.down = "no route to host"
    assert await timed.cache.may(timed.ann, LIST)
    timed.now_s = POSITIVE_S
    with pytest.raises(AccessUnknown, match="no route to host"):
        await timed.cache.may(timed.ann, LIST)
    with pytest.raises(AccessUnknown):
        await timed.cache.caller(timed.token)
    timed.reviews.down = ""
    assert await timed.cache.may(timed.ann, LIST)


async def test_the_memory_is_bounded(timed, monkeypatch):
    """A flood of invented tokens drops the oldest entries, and what is dropped is asked again."""
    monkeypatch.setattr(review_cache, "ENTRIES_MAX", 10)
    await timed.cache.caller(timed.token)
    for number in range(50):
        assert await timed.cache.caller(f"invented {number}") is None
    assert len(timed.cache._callers._kept) == 10
    assert await timed.cache.caller(timed.token) == timed.ann
    assert timed.reviews.asked == ["token"] * 52


async def test_few_reviews_are_open_and_few_wait(timed, monkeypatch):
    """The connections to the API server are for Bindings too; a flood is refused at once, and then served again."""
    monkeypatch.setattr(review_cache, "WAITING_MAX", 8)
    timed.reviews.open.clear()
    asking = [asyncio.create_task(timed.cache.caller(f"invented {n}")) for n in range(20)]
    await eventually(lambda: timed.reviews.asked)
    assert len(timed.reviews.asked) == review_cache.OPEN_REVIEWS_MAX
    timed.reviews.open.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(one) for one in found] == [type(None)] * 8 + [AccessUnknown] * 12
    assert await timed.cache.caller(timed.token) == timed.ann


async def test_tokens_are_kept_as_hashes(timed):
    """The memory of this process has no token that a dump would show."""
    await timed.cache.caller(timed.token)
    await timed.cache.caller("invented")
    kept = repr(timed.cache._callers._kept)
    assert timed.token not in kept
    assert "invented" not in kept


async def test_the_namespaces_of_a_caller(timed):
    """Those with the right, of those that are known; known for 10 s, and for 3 s when there are none."""
    known = ["b", "a", "c", "a"]
    timed.reviews.rights.add(("ann", AccessRight("list", "c")))
    for _ in range(2):
        assert await timed.cache.namespaces(timed.ann, "list", lambda: known) == {"a", "c"}
    assert len(timed.reviews.asked) == 3
    assert await timed.cache.namespaces(timed.ann, "create", lambda: known) == set()
    timed.reviews.rights.add(("ann", AccessRight("create", "b")))
    timed.now_s = NEGATIVE_S
    assert await timed.cache.namespaces(timed.ann, "create", lambda: known) == {"b"}
    many = [f"n{number}" for number in range(NAMESPACES_MAX + 1)]
    with pytest.raises(
        Forbidden, match=f"{NAMESPACES_MAX}; name one with the query parameter namespace"
    ):
        await timed.cache.namespaces(Caller(user="bob"), "list", lambda: many)


async def test_many_namespaces_are_reviewed_by_turns(timed, monkeypatch):
    """First all; then those with the right each time, and some others: each has its turn, and no sweep reviews all again."""
    monkeypatch.setattr(review_cache, "AT_ONCE", 3)
    monkeypatch.setattr(review_cache, "AT_ONCE", 3)
    names = [f"n{number}" for number in range(10)]
    timed.reviews.rights.add(("ann", AccessRight("list", "n4")))

    async def sweep():
        del timed.reviews.asked[:]
        timed.now_s += POSITIVE_S
        found = await timed.cache.namespaces(timed.ann, "list", lambda: names)
        return found, [one.rpartition(" ")[2] for one in timed.reviews.asked]

    assert await sweep() == ({"n4"}, [*names, "n4"])
    timed.reviews.rights.add(("ann", AccessRight("list", "n8")))
    assert await sweep() == ({"n4"}, ["n4", "n0", "n1", "n2"])
    assert await sweep() == ({"n4"}, ["n4", "n3", "n5", "n6"])
    assert await sweep() == ({"n4", "n8"}, ["n4", "n7", "n8", "n9"])
    timed.reviews.rights.remove(("ann", AccessRight("list", "n4")))
    assert await sweep() == ({"n8"}, ["n4", "n8", "n0", "n1", "n2"])
    timed.now_s += review_cache.SWEEP_KEPT_S
    assert (await sweep())[1][:10] == names
