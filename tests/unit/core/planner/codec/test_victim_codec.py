"""Who could go, as bytes: nothing is lost, what did not change is the same part, and what is stored is read for ever."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from extender.core.model.ids import NodeName, PodUid
from extender.core.model.pods import PodShape
from extender.core.planner.codec.request_codec import PARTS, decode, digest_of, encode, summarize
from extender.core.planner.codec.victim_codec import ROWS_PER_PART, from_parts, to_parts
from extender.core.planner.plan_types import (
    Evictable,
    PlanBudget,
    PlanGang,
    PlanUnit,
    PlanVictim,
)
from extender.core.planner.preempt.victim_search import preempt
from tests.support.hypothesis_profile import examples
from tests.support.planning.random_trees import evictables, requests

replace = msgspec.structs.replace
GOLDEN = Path(__file__).parents[4] / "golden" / "inputs" / "preemption.v1.json"


def a_victim(name: str, node: str = "n1", **rest: object) -> PlanVictim:
    return PlanVictim(pod=name, uid=PodUid(name), node=NodeName(node), shape=0, **rest)


def a_unit(*pods: PlanVictim, name: str = "", priority: int = 1, kind: str = "pod") -> PlanUnit:
    name = name or f"Pod/{pods[0].pod}"
    return PlanUnit(name=name, uid=name, kind=kind, priority=priority, pods=pods)


def some(units: list[PlanUnit], **rest: object) -> Evictable:
    ranked = sorted(units, key=lambda u: (u.kind, u.name, u.uid))
    return Evictable(priority=100, units=tuple(ranked), shapes=(PodShape(),), **rest)


def head_of(source: Evictable) -> Evictable:
    return Evictable(
        priority=source.priority, may_preempt=source.may_preempt, now_min=source.now_min
    )


def many(count: int = 2000) -> list[PlanUnit]:
    return [
        a_unit(a_victim(f"ns/web-{i:04}", f"n{i % 90}"), priority=1 + i % 2) for i in range(count)
    ]


@examples(60, quick=6, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_round_trip(data):
    """Put together again it is equal: units over several parts, gangs, budgets, rules and shapes."""
    source = data.draw(evictables(data.draw(requests()), most_units=40))
    assert from_parts(head_of(source), to_parts(source)) == source


def summary_of(head, parts):
    steps = summarize(head, parts)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


@examples(60)
@given(st.data())
def test_a_summary_counts_what_the_request_has(data):
    """Nodes, units and pods counted in the pieces are those of the request that the pieces decode to."""
    request = data.draw(requests())
    request = replace(request, evictable=data.draw(evictables(request, most_units=40)))
    stored = encode(request)
    found = summary_of(stored.head, stored.parts)
    units = request.evictable.units
    assert found.nodes == len(request.nodes)
    assert found.evictable == len(units)
    assert found.evictable_pods == sum(len(unit.pods) for unit in units)


def test_a_large_unit_goes_over_several_parts():
    """A unit of thousand pods is one unit again, its pods in order; parts are not cut by unit."""
    pods = tuple(a_victim(f"ns/w-{i:04}") for i in range(1000))
    source = some([a_unit(*pods, name="PodGroup/ns/w", kind="group"), *many(100)])
    parts = list(to_parts(source))
    assert len(parts) > 1000 / ROWS_PER_PART / 2
    assert from_parts(head_of(source), parts) == source


def test_little_changes_when_little_changed():
    """A pod less, a pod more, a pod on another node: one part each, wherever it stands in the order."""
    units = many()
    before = set(to_parts(some(units)))
    moved = a_unit(a_victim(units[700].pods[0].pod, "elsewhere"), priority=units[700].priority)
    for changed in (
        units[:500] + units[501:],
        [*units, a_unit(a_victim("ns/web-0333-more"))],
        [*units[:700], moved, *units[701:]],
    ):
        after = set(to_parts(some(changed)))
        assert len(after - before) <= 2  # a row that begins a part takes two with it
        assert sum(len(zlib.compress(part)) for part in after - before) < 4000


def test_tables_may_shift():
    """A budget, a gang or a shape more, in front of all others, leaves the parts of the pods that have nothing to do with it."""
    units = many()
    gang = a_unit(a_victim("ns/z", gang=0, budgets=(0,)), priority=1)
    gangs = (PlanGang(name="PodGroup/ns/z", minimum=1, running=1),)
    budgets = (PlanBudget(name="ns/z", allowed=1),)
    source = some([*units, gang], gangs=gangs, budgets=budgets)
    other = a_unit(PlanVictim(pod="ns/a", uid=PodUid("a"), node=NodeName("n1"), shape=0, gang=1, budgets=(0,)))  # fmt: skip

    def shifted(unit: PlanUnit) -> PlanUnit:
        pods = [
            replace(p, shape=1, gang=0 if p.gang == 0 else -1, budgets=(1,) if p.budgets else ())
            for p in unit.pods
        ]
        return replace(unit, pods=tuple(pods))

    more = Evictable(
        priority=100,
        units=tuple(
            sorted((other, *(shifted(u) for u in source.units)), key=lambda u: (u.kind, u.name))
        ),
        shapes=(PodShape(requests=(("cpu", 1),)), PodShape()),
        gangs=(*gangs, PlanGang(name="PodGroup/ns/a", minimum=1, running=1)),
        budgets=(PlanBudget(name="ns/a", allowed=0), *budgets),
    )
    before = set(to_parts(source))
    new = [p for p in to_parts(more) if p not in before]
    assert len([p for p in new if p.startswith(b'["units"')]) <= 2


def test_a_tree_made_again_is_a_unit_of_its_own():
    """Reservations of a group and of the one that was there before under the same name stay apart."""
    first, second = (
        replace(a_unit(a_victim(f"ns/{uid}"), name="PodGroup/ns/g", kind="reservation"), uid=uid)
        for uid in ("a", "b")
    )
    source = some([first, second])
    assert from_parts(head_of(source), to_parts(source)) == source


def test_refuses_what_it_cannot_give_back():
    """Units out of order, a name that no part explains, and parts beside a head that has all of it already."""
    units = many(3)
    with pytest.raises(ValueError, match="sorted"):
        list(to_parts(replace(some(units), units=tuple(units[::-1]))))
    gangs = (PlanGang(name="PodGroup/ns/g", minimum=1),)
    source = some([a_unit(a_victim("ns/a", gang=0))], gangs=gangs)
    parts = [p for p in to_parts(source) if not p.startswith(b'["gangs"')]
    with pytest.raises(ValueError, match="ns/a names 'PodGroup/ns/g'"):
        from_parts(head_of(source), parts)


def test_a_stored_input_is_replayed():
    """An input as it was stored gives the answer of then, byte for byte, and is stored again as the same bytes."""
    stored = json.loads(GOLDEN.read_text())
    head = stored["head"].encode()
    parts = [stored["parts"].get(str(i), "[]").encode() for i in range(stored["count"])]
    assert len(parts) > PARTS
    assert digest_of(head, parts) == stored["digest"]
    request = decode(head, parts)
    assert msgspec.json.encode(preempt(request)).decode() == stored["answer"]
    found = summary_of(head, parts)
    assert (found.nodes, found.evictable, found.evictable_pods) == (3, 2, 3)
    again = encode(request)
    assert (again.head, again.parts, again.digest) == (head, tuple(parts), stored["digest"])


def test_refuses_units_in_a_head_and_units_without_a_preemptor():
    """What could be evicted stands in the parts alone, and only behind a head that names the preemptor."""
    stored = json.loads(GOLDEN.read_text())
    head = stored["head"].encode()
    parts = [stored["parts"].get(str(i), "[]").encode() for i in range(stored["count"])]
    request = replace(decode(head, parts), nodes=())
    with pytest.raises(ValueError, match="belongs into the parts"):
        decode(msgspec.json.encode(request), parts[:PARTS])
    alone = msgspec.json.encode(replace(request, evictable=None))
    assert decode(alone, parts[:PARTS]).evictable is None
    with pytest.raises(ValueError, match="wants none"):
        decode(alone, parts)
