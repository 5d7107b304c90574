"""Label selectors as kubectl has them: `a=b,c!=d,e in (x,y),f notin (z),g,!h`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

from extender.core.model.errors import BadInput

FORMS: Final = "KEY, !KEY, KEY=VALUE, KEY!=VALUE, KEY in (VALUE,VALUE), KEY notin (VALUE,VALUE)"
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = rf"(?:[a-z0-9][a-z0-9.-]{{0,252}}/)?{_NAME}"
_VALUE = re.compile(rf"(?:{_NAME})?")
_ONE = rf"(?:!?{_KEY}|{_KEY}(?:==|=|!=)(?:{_NAME})?|{_KEY} (?:in|notin) \((?:{_NAME})?(?:,(?:{_NAME})?)*\))"
# of selectors without needless spaces, for the OpenAPI document
PATTERN: Final = f"^{_ONE}(?:,{_ONE})*$"
_REQUIREMENT = re.compile(
    rf"(?P<absent>!)?\s*(?P<key>{_KEY})"
    r"(?:\s*(?P<equality>==|=|!=)\s*(?P<value>\S*)|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?"
)


class LabelRequirement(msgspec.Struct, frozen=True, gc=False):
    """One requirement on labels; `NotIn` also matches labels without the key, as in Kubernetes."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet the requirement."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


LabelSelector = tuple[LabelRequirement, ...]


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Return whether labels meet all requirements of a selector; one without requirements selects everything."""
    return all(requirement.matches(labels) for requirement in selector)


def parse_selector(text: str, field: str) -> LabelSelector:
    """Return the requirements of a label selector.

    >>> [one.operator for one in parse_selector("a=b,c!=d,e in (x, y),!f", "-l")]
    ['In', 'NotIn', 'In', 'DoesNotExist']

    Args:
        text: The selector; an empty one has no requirements.

    Raises:
        BadInput: A requirement has none of the forms, or its key or a value cannot be that of a label.
    """
    return tuple(_requirement(part, field) for part in _parts(text)) if text.strip() else ()


def _parts(text: str) -> Iterator[str]:
    """Yield what is between commas outside parentheses."""
    depth = begin = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            yield text[begin:place].strip()
            begin = place + 1
    yield text[begin:].strip()


def _requirement(part: str, field: str) -> LabelRequirement:
    match = _REQUIREMENT.fullmatch(part)
    if match is None or (match["absent"] and (match["equality"] or match["set"])):
        raise BadInput(f"{field}: {part[:80]!r} is not a requirement on labels; there are {FORMS}")
    key, values = match["key"], [match["value"] or ""]
    if match["set"]:
        values = [value.strip() for value in match["values"].split(",")]
    for value in values:
        if not _VALUE.fullmatch(value):
            raise BadInput(
                f"{field}: {value[:80]!r} cannot be the value of label {key}: at most 63 letters, digits, '-', '_' or '.', "
                "a letter or digit first and last"
            )
    if match["equality"] or match["set"]:
        excluded = match["equality"] == "!=" or match["set"] == "notin"
        return LabelRequirement(key, "NotIn" if excluded else "In", frozenset(values))
    return LabelRequirement(key, "DoesNotExist" if match["absent"] else "Exists")
