"""Which reservations do not fit on a node: by priority, then age, whatever quick look comes first."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extender.core.capacity.capacity_claims import oversubscribed_pods
from extender.core.log.reservation_state import Reservation
from extender.core.model.ids import GangUid, NodeName, PlanId, PodUid
from extender.core.model.nodes import Node
from tests.support.hypothesis_profile import examples

RESOURCES = ("cpu", "memory", "gpu")
amounts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 4), max_size=3)


def a_reservation(number: int, requests: dict[str, int], priority: int, at_us: int) -> Reservation:
    return Reservation(
        kind="reservation",
        plan=PlanId("p"),
        gang_uid=GangUid("g"),
        pod=f"ns/p{number}",
        uid=PodUid(f"u{number}"),
        group="g",
        node=NodeName("n"),
        requests=requests,
        priority=priority,
        extra=False,
        at_us=at_us,
    )


@st.composite
def some_reservations(draw):
    """Return reservations of a few shapes: those of one shape share the object of their requests."""
    shapes = draw(st.lists(amounts, min_size=1, max_size=3))
    row = st.tuples(st.sampled_from(shapes), st.integers(0, 2), st.integers(0, 2))
    rows = draw(st.lists(row, max_size=6))
    return [a_reservation(number, *row) for number, row in enumerate(rows)]


def one_by_one(allocatable, taken, wanted):
    """Return what does not fit, by placing one after the other."""
    left = dict.fromkeys(RESOURCES, 0) | allocatable
    for requests in taken:
        for resource, amount in requests.items():
            left[resource] -= amount
    out = []
    for one in sorted(wanted, key=lambda r: (-r.priority, r.at_us, r.pod)):
        if any(left[resource] < amount for resource, amount in one.requests.items()):
            out.append(one.uid)
            continue
        for resource, amount in one.requests.items():
            left[resource] -= amount
    return out


@given(allocatable=amounts, taken=st.lists(amounts, max_size=2), wanted=some_reservations())
@examples(300)
def test_it_is_what_placing_them_one_after_the_other_leaves(allocatable, taken, wanted):
    """Also on a node that is overcommitted before, or has none of a resource."""
    node = msgspec.structs.replace(Node(name=NodeName("n")), allocatable=allocatable)
    assert list(oversubscribed_pods(node, taken, wanted)) == one_by_one(allocatable, taken, wanted)
