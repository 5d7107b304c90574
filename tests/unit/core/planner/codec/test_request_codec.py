"""Requests as bytes: nothing is lost, nothing depends on chance, little changes when little changed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given

from extender.core.model.ids import GroupKey, NodeName
from extender.core.planner.codec.request_codec import BUCKETS, PARTS, decode, digest_of, encode
from extender.core.planner.plan_types import PlanGroup, PlanNode, PlanRequest
from extender.core.planner.planning import plan
from tests.support.hypothesis_profile import examples
from tests.support.planning.random_trees import requests

replace = msgspec.structs.replace


def request_of(count: int) -> PlanRequest:
    root = PlanGroup(key=GroupKey(namespace="ns", name="g", kind="PodGroup"))
    nodes = tuple(
        PlanNode(name=NodeName(f"n{i:04}"), labels={"rack": "r", "a": "b"}, free={"pods": i})
        for i in range(count)
    )
    return PlanRequest(root=root, nodes=nodes, shapes=())


@examples(150, suppress_health_check=list(HealthCheck))
@given(requests())
def test_round_trip(request_):
    """Decoding gives an equal request, the same bytes again, and the same verdict."""
    encoded = encode(request_)
    again = decode(encoded.head, encoded.parts)
    assert again == request_
    assert encode(again) == encoded
    assert len(encoded.parts) == PARTS
    assert msgspec.json.encode(plan(again)) == msgspec.json.encode(plan(request_))


def test_an_older_input_has_no_amounts_of_what_is_reserved():
    """So nothing is named that such an input cannot prove; the verdict is about what is free, and stays."""
    node = replace(request_of(1).nodes[0], free={"pods": 4}, reserved={"pods": 1})
    encoded = encode(replace(request_of(1), nodes=(node,)))
    older = [part.replace(b'{"pods":1}]', b"true]") for part in encoded.parts]
    assert older != list(encoded.parts)
    assert decode(encoded.head, older).nodes[0] == replace(node, reserved={})
    unreserved = encode(request_of(1)).parts[BUCKETS:]
    assert any(part.endswith(b"[],false]]") for part in unreserved), "its bytes are as before"


def test_order_in_dicts_does_not_count():
    """Labels in another order give the same digest."""
    request = request_of(20)
    turned = tuple(replace(n, labels=dict(reversed(n.labels.items()))) for n in request.nodes)
    assert encode(replace(request, nodes=turned)) == encode(request)


def test_one_node_changes_one_part():
    """A pod more on one node alters one of the parts with capacity, and no other piece."""
    request = request_of(500)
    nodes = list(request.nodes)
    nodes[77] = replace(nodes[77], free={"pods": 3})
    before, after = encode(request), encode(replace(request, nodes=tuple(nodes)))
    changed = [i for i, (a, b) in enumerate(zip(before.parts, after.parts, strict=True)) if a != b]
    assert len(changed) == 1
    assert changed[0] >= BUCKETS
    assert before.head == after.head
    assert before.digest != after.digest


def test_digest_sees_every_cut():
    """Moving a byte from one part to the next changes the digest."""
    assert digest_of(b"", [b"ab", b"c"]) != digest_of(b"", [b"a", b"bc"])


def test_refuses_what_it_cannot_give_back():
    """Unsorted nodes, missing parts and halves that do not match are refused."""
    request = request_of(3)
    with pytest.raises(ValueError, match="sorted by name"):
        encode(replace(request, nodes=request.nodes[::-1]))
    encoded = encode(request)
    with pytest.raises(ValueError, match="parts"):
        decode(encoded.head, encoded.parts[:-1])
    parts = list(encoded.parts)
    bucket = next(i for i in range(BUCKETS) if parts[i] != b"[]")
    parts[bucket] = parts[bucket].replace(b"n000", b"m000")
    with pytest.raises(ValueError, match="bucket"):
        decode(encoded.head, parts)
