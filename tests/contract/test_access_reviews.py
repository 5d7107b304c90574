"""What every `AccessReviews` promises: here the fake; tests/e2e/scenarios/test_readers.py has the one on a real kube-apiserver."""

from __future__ import annotations

from typing import Protocol

import pytest

from extender.ports.access_ports import AccessReviews, AccessRight, Caller
from tests.controlplane.waiting import eventually
from tests.support.service.fake_access import FakeAccessReviews


class Place(Protocol):
    """The port, and what an administrator does."""

    reviews: AccessReviews

    async def token(self, name: str) -> str:
        """Return a token of an account, which is made if there is none."""
        ...

    async def give(self, caller: Caller, right: AccessRight) -> None:
        """Give a right."""
        ...

    async def take_all(self, caller: Caller) -> None:
        """Take all rights away."""
        ...


class Memory:
    """The fake."""

    def __init__(self) -> None:
        self.reviews = FakeAccessReviews()

    async def token(self, name: str) -> str:
        return self.reviews.add_user(name)

    async def give(self, caller: Caller, right: AccessRight) -> None:
        self.reviews.rights.add((caller.user, right))

    async def take_all(self, caller: Caller) -> None:
        self.reviews.rights = {one for one in self.reviews.rights if one[0] != caller.user}


@pytest.fixture
async def place() -> Place:
    return Memory()


async def caller_of(place: Place, name: str) -> Caller:
    found = await place.reviews.authenticate(await place.token(name))
    assert found is not None
    return found


async def eventually_is(place: Place, caller: Caller, right: AccessRight, wanted: bool) -> None:
    """Wait until the answer is that: kube-apiserver learns of a binding from a watch."""

    async def is_so() -> bool:
        return await place.reviews.authorize(caller, right) is wanted

    await eventually(is_so)


async def test_a_token_has_one_user(place: Place) -> None:
    """The same for each question; another account is another user; both are authenticated."""
    ann, bob = await caller_of(place, "ann"), await caller_of(place, "bob")
    assert (await caller_of(place, "ann")).user == ann.user != bob.user
    assert ann.user.endswith("ann")
    assert "system:authenticated" in ann.groups


@pytest.mark.parametrize("token", ["invented", "a.b.c", "ä", "x" * 4000])
async def test_an_invented_token_has_none(place: Place, token: str) -> None:
    """No user, and no error."""
    assert await place.reviews.authenticate(token) is None


async def test_a_right_in_a_namespace_is_one_there(place: Place) -> None:
    """Not in another one, not in all, and not for another verb."""
    caller = await caller_of(place, "ann")
    right = AccessRight("list", "team-a")
    assert not await place.reviews.authorize(caller, right)
    await place.give(caller, right)
    await eventually_is(place, caller, right, wanted=True)
    for other in (
        AccessRight("list", "team-b"),
        AccessRight("list"),
        AccessRight("create", "team-a"),
        AccessRight("get", path="/metrics"),
    ):
        assert not await place.reviews.authorize(caller, other), other


async def test_a_right_in_all_namespaces_is_one_in_each(place: Place) -> None:
    """Also in one that does not exist."""
    caller = await caller_of(place, "auditor")
    await place.give(caller, AccessRight("list"))
    await eventually_is(place, caller, AccessRight("list"), wanted=True)
    assert await place.reviews.authorize(caller, AccessRight("list", "nowhere"))


async def test_a_right_on_a_path_is_one_on_that_path(place: Place) -> None:
    """It is no right on groups."""
    caller = await caller_of(place, "prometheus")
    await place.give(caller, AccessRight("get", path="/metrics"))
    await eventually_is(place, caller, AccessRight("get", path="/metrics"), wanted=True)
    assert not await place.reviews.authorize(caller, AccessRight("get", path="/debug"))
    assert not await place.reviews.authorize(caller, AccessRight("list", "team-a"))


async def test_a_right_ends_when_it_is_taken_away(place: Place) -> None:
    """The port remembers nothing."""
    caller = await caller_of(place, "leaver")
    right = AccessRight("list", "team-a")
    await place.give(caller, right)
    await eventually_is(place, caller, right, wanted=True)
    await place.take_all(caller)
    await eventually_is(place, caller, right, wanted=False)
