"""Quantities are read exactly as Kubernetes reads them."""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.model.errors import BadQuantity
from extender.core.model.quantities import (
    INT64_MAX,
    NANO,
    amounts,
    exact,
    nanos,
    rounded,
)

FACTORS = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal("1e3"), "M": Decimal("1e6"), "G": Decimal("1e9"), "T": Decimal("1e12"),
    "P": Decimal("1e15"), "E": Decimal("1e18"),
    **{f"{letter}i": Decimal(2 ** (10 * n)) for n, letter in enumerate("KMGTPE", start=1)},
}  # fmt: skip
FORM = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?", re.ASCII
)
numbers = st.from_regex(r"[+-]?([0-9]{1,12}\.?|[0-9]{0,9}\.[0-9]{1,12})", fullmatch=True)
exponents = st.builds(
    "{}{}".format, st.sampled_from("eE"), st.from_regex(r"[+-]?[0-9]{1,2}", fullmatch=True)
)
suffixes = st.sampled_from(sorted(FACTORS))


def expected(text: str, unit: Decimal) -> int:
    """Compute the value another way: decimal arithmetic with plenty of digits."""
    with localcontext() as context:
        context.prec = 400
        for suffix in sorted(FACTORS, key=len, reverse=True):
            if suffix and text.endswith(suffix):
                number = Decimal(text[: -len(suffix)]) * FACTORS[suffix]
                break
        else:
            number = Decimal(text)
        nano = (number / Decimal("1e-9")).to_integral_value(ROUND_UP)
        nano = max(-Decimal(INT64_MAX * NANO), min(Decimal(INT64_MAX * NANO), nano))
        whole = int((nano * Decimal("1e-9") / unit).to_integral_value(ROUND_UP))
    return max(-INT64_MAX, min(INT64_MAX, whole))


@given(numbers, suffixes | exponents)
def test_every_form_has_its_decimal_value_rounded_away_from_zero(number: str, suffix: str) -> None:
    """Any number with any suffix equals its decimal value, rounded up once, within int64."""
    text = number + suffix
    assert amounts({"memory": text})["memory"] == expected(text, Decimal(1))
    assert amounts({"cpu": text})["cpu"] == expected(text, Decimal("1e-3"))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_sums_in_nano_units_are_exact(a: int, b: int) -> None:
    """Adding first and rounding afterwards loses nothing."""
    assert nanos(f"{a}m") + nanos(f"{b}m") == nanos(f"{a + b}m")


@given(st.text(max_size=12))
def test_other_text_is_refused_by_name(text: str) -> None:
    """Whatever is accepted is a number with a suffix; the rest is quoted in the error."""
    if FORM.fullmatch(text):
        nanos(text)
        return
    with pytest.raises(BadQuantity, match=re.escape(f'"{text}"')):
        nanos(text)


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1\n", "+", "-", ".", "e3", "1e", "1e+", "1K", "1ki", "1KI", "1 Gi", "0x10",
     "1_000", "1,5", "inf", "nan", "\u0661", "1" * 257, "--1", "1Gi2", "1mm", -float("nan"), -float("inf"), True],
    ids=repr,
)  # fmt: skip
def test_what_is_no_quantity(text: str | float) -> None:
    with pytest.raises(BadQuantity):
        nanos(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1E", 10**18), ("1E3", 1000), ("1e3", 1000), ("1Ki", 1024), (".5Gi", 2**29), ("5.", 5), ("+5", 5),
     ("-1500m", -2), ("1n", 1), ("0.0000000001", 1), ("0", 0), ("-0", 0), ("9E", 9 * 10**18), ("10E", INT64_MAX),
     ("8Ei", INT64_MAX), ("-8Ei", -INT64_MAX), ("1e999999", INT64_MAX), ("1e-999999", 1), ("0e999999", 0),
     (8, 8), (0.5, 1), (2.0, 2), (1e22, INT64_MAX), (10**40, INT64_MAX), (-(10**40), -INT64_MAX)],
)  # fmt: skip
def test_edges(text: str | float, value: int) -> None:
    assert amounts({"memory": text})["memory"] == value


def test_a_resource_list_counts_cpu_in_millicores_and_names_what_is_wrong() -> None:
    assert amounts({"cpu": "1.5", "memory": "1Gi", "x/y": 2}) == {
        "cpu": 1500,
        "memory": 2**30,
        "x/y": 2,
    }
    assert exact({"cpu": "1n"}) == {"cpu": 1}
    assert rounded("cpu", 10 * nanos("100u")) == 1
    with pytest.raises(BadQuantity, match='memory: quantity "1gb"'):
        amounts({"cpu": 1, "memory": "1gb"})
