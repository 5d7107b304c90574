"""What was made from the same objects is not made again."""

from __future__ import annotations

import pytest
from immutables import Map

from extender.core.model.object_identity import IdentityMemo, changed_keys, same_objects


def test_sequences_are_compared_by_identity_length_and_order():
    one, equal, other = [1], [1], [2]
    assert same_objects((one, other), [one, other])
    assert same_objects((), ())
    assert not same_objects((one, other), (equal, other))
    assert not same_objects((one, other), (other, one))
    assert not same_objects((one,), (one, other))


class Counting:
    """Makes numbers, and counts how many it made."""

    made = 0

    def __call__(self):
        self.made += 1
        return self.made


@pytest.mark.parametrize(
    ("same", "equal", "again"),
    [
        ("the same", "an equal copy", False),
        ("an equal copy", "the same", True),
        ("the same", "another", True),
        ("one more", "the same", True),
    ],
)
def test_a_value_is_made_again_when_what_it_was_made_from_is_not_the_same(same, equal, again):
    memo, make = IdentityMemo(), Counting()
    nodes, hints = ["n0"], {"p": "n0"}
    sames = {"the same": (nodes,), "an equal copy": (list(nodes),), "one more": (nodes, nodes)}
    equals = {"the same": hints, "an equal copy": dict(hints), "another": {}}
    assert memo.get(make, same=(nodes,), equal=hints) == 1
    assert memo.holds(same=sames[same], equal=equals[equal]) is not again
    assert memo.get(make, same=sames[same], equal=equals[equal]) == (2 if again else 1)
    assert memo.get(make, same=sames[same], equal=equals[equal]) == make.made


def test_only_the_last_value_is_kept():
    memo, make = IdentityMemo(), Counting()
    one, other = object(), object()
    assert [memo.get(make, same=(x,)) for x in (one, one, other, other, one)] == [1, 1, 2, 2, 3]


def test_a_value_that_could_not_be_made_leaves_the_memo_as_it_was():
    memo, make = IdentityMemo(), Counting()
    one = object()
    assert memo.get(make, same=(one,)) == 1
    with pytest.raises(ZeroDivisionError):
        memo.get(lambda: 1 // 0, same=(object(),))
    assert memo.get(make, same=(one,)) == 1


def test_nothing_holds_before_a_value_and_after_clear():
    memo = IdentityMemo()
    assert not memo.holds(same=())
    memo.put("kept", same=())
    assert memo.holds(same=())
    assert memo.get(lambda: "made", same=()) == "kept"
    memo.clear()
    assert not memo.holds(same=())


def test_a_caller_that_changes_its_answer_does_not_change_that_of_the_next() -> None:
    before = Map({name: object() for name in "abc"})
    now = before.set("a", object()).delete("b").set("d", object())
    changed = changed_keys(before, now)
    assert changed == {"a", "b", "d"}
    changed.add("e")
    assert changed_keys(before, now) == {"a", "b", "d"}
    assert changed_keys(now, before) == {"a", "b", "d"}


def test_mappings_that_can_change_are_compared_each_time() -> None:
    before, now = {"a": object()}, dict[str, object]()
    assert changed_keys(before, now) == {"a"}
    now |= before
    assert changed_keys(before, now) == set()


def test_many_other_maps_in_between_do_not_confuse_two() -> None:
    maps = [Map({"a": number, str(number): number}) for number in range(300, 320)]
    for before in maps:
        for now in maps:
            expected = {"a", *before, *now} if before is not now else set()
            assert changed_keys(before, now) == expected
