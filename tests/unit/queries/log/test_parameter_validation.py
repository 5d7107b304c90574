"""The limits of names and texts in queries: the longest that is taken, and one character more."""

import pytest

from extender.core.model.errors import BadInput
from extender.queries.log.parameter_validation import checked_name, checked_path, checked_text

LONGEST = "n" * 253


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (checked_text, "t" * 1024), (checked_text, "a/b"), (checked_name, LONGEST),
        (checked_path, f"{LONGEST}/{LONGEST}"),
    ],
)  # fmt: skip
def test_the_longest_text_is_taken(check, text):
    assert check(text, "node") == text


@pytest.mark.parametrize(
    ("check", "text", "message"),
    [
        (checked_text, "", "node: is empty"),
        (checked_text, "t" * 1025, f"node: '{'t' * 40}'… has 1025 characters, 1024 at most"),
        (checked_text, "a\0b", r"node: 'a\x00b' contains a NUL character"),
        (checked_text, "\ud800", r"node: '\ud800' is not Unicode text"),
        (checked_name, LONGEST + "n", f"node: '{'n' * 40}' is not a name: no slash, 253 characters at most"),
        (checked_name, "a/b", "node: 'a/b' is not a name: no slash, 253 characters at most"),
        (checked_path, "a", "node: 'a' is not NAMESPACE/NAME"),
        (checked_path, "/a", "node: '/a' is not NAMESPACE/NAME"),
        (checked_path, "a/b/c", "node: 'b/c' is not a name: no slash, 253 characters at most"),
        (checked_path, f"a/{LONGEST}n", f"node: '{'n' * 40}' is not a name: no slash, 253 characters at most"),
    ],
)  # fmt: skip
def test_a_text_that_cannot_be_named_is_refused_with_its_field(check, text, message):
    with pytest.raises(BadInput) as refused:
        check(text, "node")
    assert str(refused.value) == message
