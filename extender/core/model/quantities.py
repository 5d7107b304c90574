"""Exact parsing of Kubernetes resource quantities.

A quantity is a decimal number with a suffix (`100m`, `1.5Gi`, `2e3`). It is kept in nano-units as a
whole number, so that sums are exact. The units of the planner (millicores for CPU, whole units for
the rest) are rounded away from zero once per pod, after summing, as kube-scheduler does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from extender.core.model.errors import BadQuantity

Written = str | int | float  # a quantity as it stands in JSON or YAML

CPU: Final = "cpu"
NANO: Final = 10**9  # nano-units in a unit
MILLI: Final = 10**6  # nano-units in a thousandth
INT64_MAX: Final = 2**63 - 1
TEXT_MAX: Final = 256  # characters; real quantities have fewer than 30
# beyond it every text of at most TEXT_MAX characters is 0, one nano-unit or int64
_EXPONENT_MAX: Final = 400
_CACHED: Final = 65_536  # different texts kept; a cluster of 5,000 nodes has a few thousand

_FORM: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_DECIMAL: Final = {
    "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


@lru_cache(maxsize=_CACHED)
def _read(text: str) -> int:
    form = _FORM.fullmatch(text) if len(text) <= TEXT_MAX else None
    if form is None or not (form["whole"] or form["part"]):
        msg = (
            f'quantity "{text[:TEXT_MAX]}" is not a number with one of the suffixes '
            "n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent"
        )
        raise BadQuantity(msg)
    part, suffix = form["part"] or "", form["suffix"] or ""
    digits = int(form["whole"] + part)
    exponent = _DECIMAL.get(suffix, 0) - len(part) + 9
    if form["exponent"] is not None:
        exponent += max(-_EXPONENT_MAX, min(_EXPONENT_MAX, int(form["exponent"])))
    # as the API server does: finer than a nano-unit is rounded, and beyond int64 it is clamped
    amount = digits << _BINARY.get(suffix, 0)
    amount = amount * 10**exponent if exponent >= 0 else _up(amount, 10**-exponent)
    amount = min(amount, INT64_MAX * NANO)
    return -amount if form["sign"] == "-" else amount


def _up(amount: int, step: int) -> int:
    """Return the quotient, rounded away from zero.

    >>> _up(7, 2), _up(-7, 2), _up(6, 2)
    (4, -4, 3)
    """
    return -(-amount // step) if amount >= 0 else amount // step


def nanos(written: Written) -> int:
    """Return a quantity in nano-units, the finest that Kubernetes keeps.

    Args:
        written: Text, or a number as the YAML parser returns it.

    Raises:
        BadQuantity: It is not a quantity; the message quotes it.

    Source:
        ParseQuantity in apimachinery's pkg/api/resource/quantity.go.

    >>> nanos("100m"), nanos("1Ki"), nanos(".5"), nanos("0.1n")
    (100000000, 1024000000000, 500000000, 1)
    """
    if isinstance(written, bool):
        raise BadQuantity(f'quantity "{str(written).lower()}" is a boolean')
    if isinstance(written, int) and abs(written) > INT64_MAX:  # str() refuses very long ones
        return INT64_MAX * NANO if written > 0 else -INT64_MAX * NANO
    return _read(written if isinstance(written, str) else repr(written))


def rounded(resource: str, amount: int) -> int:
    """Return an amount of nano-units in the unit that the planner uses for `resource`, clamped to int64."""
    whole = _up(amount, MILLI if resource == CPU else NANO)
    return max(-INT64_MAX, min(INT64_MAX, whole))


def amounts(resources: Mapping[str, Written]) -> dict[str, int]:
    """Return a resource list with CPU in millicores, everything else in whole units.

    Raises:
        BadQuantity: A value is not a quantity; the message names the resource.

    >>> amounts({"cpu": "250m", "memory": "1Ki", "nvidia.com/gpu": 8})
    {'cpu': 250, 'memory': 1024, 'nvidia.com/gpu': 8}
    """
    return {name: rounded(name, nano) for name, nano in exact(resources).items()}


def written_amounts(resources: Mapping[str, int]) -> dict[str, str]:
    """Return the quantities of which `amounts` makes a resource list.

    >>> written_amounts({"cpu": 250, "nvidia.com/gpu": 8})
    {'cpu': '250m', 'nvidia.com/gpu': '8'}
    """
    return {name: f"{n}m" if name == CPU else str(n) for name, n in resources.items()}


def exact(resources: Mapping[str, Written]) -> dict[str, int]:
    """Return a resource list in nano-units, for sums that are rounded afterwards.

    Raises:
        BadQuantity: A value is not a quantity; the message names the resource.
    """
    read = {}
    for name, written in resources.items():
        try:
            read[name] = nanos(written)
        except BadQuantity as bad:
            raise BadQuantity(f"{name}: {bad}") from bad
    return read


def add_amounts(total: dict[str, int], amounts: Mapping[str, int], times: int = 1) -> None:
    """Add amounts of resources to a total in place, so many times; -1 subtracts them."""
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount * times
