"""Label selectors of lists: the forms of kubectl, and what is wrong in words."""

from __future__ import annotations

import pytest

from extender.core.model.errors import BadInput
from extender.queries.state.gang_selection import GangSelection, parse_selector

LABELS = {"a": "b", "tier": "web", "empty": "", "x.io/y": "1"}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True),
        ("a", True),
        ("!a", False),
        ("! c", True),
        ("a=b", True),
        ("a == b", True),
        ("a=c", False),
        ("a!=c", True),
        ("none!=c", True),
        ("none=", False),
        ("empty=", True),
        ("tier in (web, batch)", True),
        ("tier in (batch)", False),
        ("tier notin (batch)", True),
        ("tier notin (web,batch)", False),
        ("none notin (web)", True),
        ("empty in (,x)", True),
        ("x.io/y=1,a=b,!c", True),
        ("x.io/y=1 , a=c", False),
        ("in in (b)", False),
    ],
)
def test_a_selector_selects_as_that_of_kubectl(text, selected):
    selection = GangSelection(selector=parse_selector(text, "-l"))
    assert selection.has_labels(LABELS) is selected


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a b", "'a b' is not a requirement"),
        ("a=b,", "'' is not a requirement"),
        ("!a=b", "'!a=b' is not a requirement"),
        ("a in b", "'a in b' is not a requirement"),
        ("a in (b", "'a in (b' is not a requirement"),
        ("a in ((b))", "'a in ((b))' is not a requirement"),
        ("-a", "'-a' is not a requirement"),
        ("a=b!", "'b!' cannot be the value of label a"),
        ("a=" + "b" * 64, "cannot be the value of label a"),
        ("a in (b c)", "'b c' cannot be the value of label a"),
        ("a>1", "'a>1' is not a requirement"),
    ],
)
def test_what_is_no_selector_is_named(text, part):
    with pytest.raises(BadInput, match=r"^--selector: ") as error:
        parse_selector(text, "--selector")
    assert part in str(error.value)
