"""Names of leaves: the rule in Python, how long names are shortened, and the shape of its CEL form."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.render.render_leaf_policy import cel_of
from extender.core.workloads.kind_table import KINDS, NAME_RULES, kind_of_pod, leaf_of_pod
from extender.core.workloads.name_rules import (
    NAME_MAX,
    LabelCondition,
    LabelValue,
    NameRule,
    joined_name,
    labels_of_leaf,
    leaf_name,
    split_name,
)
from extender.core.workloads.workload_object import LEAF_LABEL, TREE_LABEL
from tests.support.hypothesis_profile import examples
from tests.support.planning.controller_records import NAMES, record

LABEL_VALUE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
names = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", fullmatch=True)
RULE = NameRule(
    when=(LabelCondition(key="kind", value="x"), LabelCondition(key="off", absent=True)),
    head=LabelValue(key="name"),
    rest=("-", LabelValue(key="uid", first=8)),
)


def test_a_name_is_the_head_and_the_rest_with_dashes_for_dots():
    assert joined_name("my.job", "-6f2f0f4a") == "my-job-6f2f0f4a"


def test_a_long_head_is_shortened_and_the_rest_is_whole():
    name = joined_name("a" * 60, "-worker-0-6f2f0f4a")
    assert name == "a" * 45 + "-worker-0-6f2f0f4a"
    assert len(name) == NAME_MAX


def test_a_rest_that_fills_the_name_keeps_its_end():
    name = joined_name("head", "-" + "r" * 70 + "-6f2f0f4a")
    assert name == "x" + "r" * 53 + "-6f2f0f4a"
    assert len(name) == NAME_MAX


@given(head=names, rest=st.lists(names, max_size=3))
@examples(300)
def test_a_name_is_the_value_of_a_label(head, rest):
    name = joined_name(head, "".join(f"-{part}" for part in rest))
    assert LABEL_VALUE.fullmatch(name)
    assert len(name) <= NAME_MAX


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"kind": "x", "name": "n", "uid": "0123456789"}, "n-01234567"),
        ({"kind": "x", "name": "n", "uid": "0123"}, "n-0123"),
        ({"kind": "y", "name": "n", "uid": "0"}, ""),
        ({"kind": "x", "name": "n", "uid": "0", "off": ""}, ""),
        ({"kind": "x", "name": "n"}, ""),
        ({}, ""),
    ],
    ids=["uid is cut", "short uid", "other value", "label must be absent", "no uid", "no labels"],
)
def test_a_rule_needs_its_conditions_and_labels(labels, expected):
    assert leaf_name([RULE], labels) == expected


def test_the_first_rule_that_applies_counts():
    other = NameRule(when=(), head=LabelValue(key="name"))
    labels = {"kind": "x", "name": "n", "uid": "u"}
    assert leaf_name([RULE, other], labels) == "n-u"
    assert leaf_name([other, RULE], labels) == "n"
    assert leaf_name([RULE, other], {"name": "n"}) == "n"


def test_absent_with_a_value_is_any_other_value_or_none():
    rule = NameRule(
        when=(LabelCondition(key="index", value="0", absent=True),), head=LabelValue(key="name")
    )
    assert leaf_name([rule], {"name": "n", "index": "0"}) == ""
    assert leaf_name([rule], {"name": "n", "index": "1"}) == "n"
    assert leaf_name([rule], {"name": "n"}) == "n"


@given(
    head=names, index=st.integers(0, 99), revision=st.from_regex(r"[a-z0-9]{9,10}", fullmatch=True)
)
@examples(300)
def test_a_joined_name_is_split_again(head, index, revision):
    pattern = re.compile(r"-(?P<index>\d+)-(?P<revision>[a-z0-9]+)")
    found = split_name(pattern, head, joined_name(head, f"-{index}-{revision}"))
    assert found is not None
    assert (found["index"], found["revision"]) == (str(index), revision)


@pytest.mark.parametrize("name", ["serve-0", "other-0-abc", "serve-x-0-abc", "serv-0-abc"])
def test_the_name_of_another_workload_is_not_split(name):
    assert split_name(re.compile(r"-\d+-[a-z0-9]+"), "serve", name) is None


def test_the_cel_form_has_every_rule_and_reads_no_label_without_asking_for_it():
    """The API server evaluates it in tests/e2e/trees; a label that is read without a condition would refuse pods."""
    text = cel_of(NAME_RULES, labels="pod")
    assert text.count("\n? ") == len(NAME_RULES)
    for rule in NAME_RULES:
        for key in rule.label_keys:
            assert f"'{key}' in pod" in text
    assert text.count("(") == text.count(")")


def test_text_is_quoted_in_cel():
    rule = NameRule(when=(), head=LabelValue(key="it's"), rest=("\\'",))
    assert "labels['it\\'s']" in cel_of([rule], labels="labels")
    assert "'\\\\\\''" in cel_of([rule])


@pytest.mark.parametrize("kind", [one for one in KINDS if one.name_rules], ids=lambda one: one.kind)
def test_every_rule_of_a_kind_needs_the_label_with_the_name_of_the_workload(kind):
    for rule in kind.name_rules:
        needed = {*rule.label_keys, *(one.key for one in rule.when if not one.absent)}
        assert kind.name_label in needed


# --- the inverse


def test_labels_of_a_leaf_name_it_again(subtests):
    """Of each recorded pod: its name and UID of the workload and the leaf label are enough to find the others."""
    for name in NAMES:
        with subtests.test(name):
            for pod in record(name).pods():
                labels = {TREE_LABEL: "default"} | pod["metadata"].get("labels", {})
                kind = kind_of_pod(labels)
                if kind is None:
                    continue
                leaf = leaf_of_pod(labels)
                known = {
                    key: labels[key]
                    for key in (kind.name_label, kind.uid_label, LEAF_LABEL)
                    if key in labels
                }
                found = labels_of_leaf(kind.name_rules, known, leaf)
                assert leaf_name(kind.name_rules, found) == leaf
                assert known.items() <= found.items()


def test_labels_of_a_leaf_are_found_in_a_shortened_name():
    labels = {"kind": "x", "name": "n" * 70, "uid": "0123456789"}
    rule = NameRule(when=(), head=LabelValue(key="name"), rest=("-", LabelValue(key="index"), "-", LabelValue(key="uid", first=8)))  # fmt: skip
    name = leaf_name((rule,), labels | {"index": "12"})
    assert len(name) == NAME_MAX
    assert labels_of_leaf((rule,), labels, name) == labels | {"index": "12"}


def test_a_name_that_no_rule_gives_adds_no_labels():
    labels = {"kind": "x", "name": "n", "uid": "0123456789"}
    assert labels_of_leaf((RULE,), labels, "other") == labels
