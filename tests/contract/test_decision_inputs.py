"""What every `DecisionInputs` promises, the fake and the real one."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.planner.plan_types import DecisionInput
from extender.store.connections import ConnectionPool
from extender.store.decision_inputs import PostgresDecisionInputs
from tests.support.hypothesis_profile import examples
from tests.support.logs.fake_store import FakeDecisionInputs


@pytest.fixture
async def inputs(store_url):
    if store_url is None:
        yield FakeDecisionInputs()
        return
    engine = ConnectionPool(store_url, name="test")
    yield PostgresDecisionInputs(engine)
    await engine.close()


def an_input(number, parts):
    return DecisionInput(digest=f"{number:064x}", head=b"head %d" % number, parts=tuple(parts))


async def test_bytes_come_back(inputs):
    """Also empty parts, equal parts, and a part that equals the head."""
    wanted = an_input(1, [b"", b"node a", b"node b", b"node a", b"head 1", bytes(range(256))])
    await inputs.save(wanted)
    await inputs.save(wanted)
    assert await inputs.load(wanted.digest) == wanted
    assert await inputs.load(f"{2:064x}") is None


async def test_several_are_loaded_in_one_go(inputs):
    """Those that are not stored are left out; a part of several is one object."""
    several = [an_input(n, [b"shared", b"node %d" % n]) for n in range(3)]
    for saved in several[:2]:
        await inputs.save(saved)
    loaded = await inputs.load_many([saved.digest for saved in several])
    assert dict(loaded) == {saved.digest: saved for saved in several[:2]}
    assert len({id(saved.parts[0]) for saved in loaded.values()}) == 1
    assert dict(await inputs.load_many([])) == {}


async def test_no_parts_at_all(inputs):
    await inputs.save(an_input(1, []))
    assert await inputs.load(f"{1:064x}") == an_input(1, [])


async def test_many_at_once(inputs):
    """Concurrent saves of overlapping inputs all arrive."""
    many = [an_input(n, [b"node %d" % (n + k) for k in range(20)]) for n in range(20)]
    await asyncio.gather(*(inputs.save(one) for one in many))
    for one in many:
        assert await inputs.load(one.digest) == one


@examples(20)
@given(st.lists(st.binary(max_size=40), max_size=30))
def test_packing_gives_numbers_back(bodies):
    """The list of part numbers survives its packing, whatever the numbers are."""
    from extender.store.decision_inputs import _pack, unpack

    numbers = [int.from_bytes(body[:6], "big") for body in bodies]
    assert unpack(_pack(numbers), "x") == numbers
