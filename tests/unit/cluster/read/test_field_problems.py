"""Wrong fields in the words of users: the walk over the types finds what msgspec refuses, and more than the first."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.cluster import types as api
from extender.cluster.read.field_problems import field_problems
from extender.cluster.read.object_decoding import without_nulls
from extender.cluster.read.unknown_fields import fields_not_read
from extender.cluster.types import TreeProfile
from tests.support.service.manifest_builders import a_gang, a_node, a_pod

KINDS = (
    api.Pod,
    api.Node,
    api.PodGroup,
    api.PersistentVolume,
    api.PodDisruptionBudget,
    TreeProfile,
)
OBJECTS = (
    a_pod("p", "g", tolerations=[{"key": "a", "operator": "Exists"}]),
    a_node("n"),
    a_gang("g")[0],
)
WRONG = st.sampled_from(
    [None, True, 3, -1, 2.5, 2**40, "x", "2026-01-01", [], [1], [None], {}, {"a": 1}, {"a": None}]
)


def _places(thing, path=()):
    yield path
    for key, one in (
        thing.items()
        if isinstance(thing, dict)
        else enumerate(thing)
        if isinstance(thing, list)
        else ()
    ):
        yield from _places(one, (*path, key))


def _with(thing, path, value):
    if not path:
        return value
    copied = dict(thing) if isinstance(thing, dict) else list(thing)
    copied[path[0]] = _with(copied[path[0]], path[1:], value)
    return copied


@given(st.data())
def test_an_object_has_problems_when_msgspec_refuses_it(data):
    """Objects with any value in any place: the walk finds something exactly if the decoder does."""
    thing = data.draw(st.sampled_from(OBJECTS))
    kind = data.draw(st.sampled_from(KINDS))
    path = data.draw(st.sampled_from(sorted(_places(thing), key=str)))
    changed = without_nulls(_with(thing, path, data.draw(WRONG)))
    try:
        msgspec.convert(changed, kind)
    except msgspec.ValidationError:
        refused = True
    else:
        refused = False
    problems = [str(one) for one in field_problems(changed, kind)]
    assert bool(problems) == refused, problems
    assert not any("`" in text for text in problems)


@pytest.mark.parametrize(
    ("kind", "thing", "texts"),
    [
        (api.Node, {"spec": {"taints": [{"value": 1}]}},
         ["spec.taints[0].value: expected text, found 1; write it in quotes", "spec.taints[0].key: is missing; it is text",
          "spec.taints[0].effect: is missing; it is one of NoExecute, NoSchedule, PreferNoSchedule"]),
        (api.Pod, {"metadata": {"labels": {"a.b/c": 1}, "creationTimestamp": "yesterday"}},
         ["metadata.labels[a.b/c]: expected text, found 1; write it in quotes",
          'metadata.creationTimestamp: expected a time such as 2026-11-20T03:12:00Z, found "yesterday"']),
        (api.PodGroup, {"spec": {"priority": 3 * 10**9, "disruptionMode": 4}},
         ["spec.priority: expected a whole number from -2147483648 to 2147483647, found 3000000000",
          "spec.disruptionMode: expected an object or text, found 4"]),
        (api.Pod, [1], ["the object: expected an object, found [1]"]),
    ],
    ids=range(4),
)  # fmt: skip
def test_each_problem_has_path_value_and_what_is_expected(kind, thing, texts):
    """All wrong fields, in the order of the object."""
    assert [str(one) for one in field_problems(thing, kind)] == texts


def test_no_type_of_our_kinds_has_fields_that_are_ignored():
    """A misspelt field anywhere in our groups and TreeProfiles is named: each type that they are made of is known whole."""
    types = [msgspec.inspect.type_info(kind) for kind in (api.PodGroup, api.CompositePodGroup, api.Workload, TreeProfile)]  # fmt: skip
    structs: set[type] = set()
    while types:
        kind = types.pop()
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls not in structs:
                structs.add(kind.cls)
                types += [field.type for field in kind.fields]
            continue
        types += [
            part
            for name in ("item_type", "type", "key_type", "value_type")
            if isinstance(part := getattr(kind, name, None), msgspec.inspect.Type)
        ]
        types += getattr(kind, "types", ())
    assert {kind.__name__ for kind in structs} >= {"TopologyEntry", "ExclusiveEntry", "NearEntry", "ProfileExclusive"}  # fmt: skip
    # a status is not written by users; the others are of objects of any kind
    assert {kind.__name__ for kind in structs if fields_not_read(kind) is None} == {
        "GroupStatus", "StoredCondition", "OwnerReference", "ClaimReference", "Present",
    }  # fmt: skip
