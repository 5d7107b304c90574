"""Parts of sentences that many messages share: counts with a noun, kinds with paths, amounts of resources."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

BYTES: Final = ("memory", "ephemeral-storage")
BINARY: Final = ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki"))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the singular for one.

    >>> [counted(n, "event") for n in (0, 1, 2)]
    ['0 events', '1 event', '2 events']
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1) -> str:
    """Return the end of a sentence with the names that are similar, or an empty string if none is.

    >>> did_you_mean("minCuont", ("minCount", "minGroupCount")), did_you_mean("x", ("minCount",))
    ('; did you mean minCount?', '')
    """
    near = difflib.get_close_matches(name, list(dict.fromkeys(known)), n=most, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def spaced(name: object) -> str:
    """Return `Kind namespace/name` of what is written `Kind/namespace/name`.

    >>> spaced("PodGroup/default/train")
    'PodGroup default/train'
    """
    return str(name).replace("/", " ", 1)


def amounts_text(requests: Mapping[str, int]) -> str:
    """Return amounts in the units of requests as text; without `pods`, which other columns have.

    >>> amounts_text({"cpu": 1500, "memory": 3 << 30, "nvidia.com/gpu": 2, "pods": 1})
    'cpu 1.5, memory 3Gi, nvidia.com/gpu 2'
    """
    return ", ".join(
        f"{name} {_amount(name, amount)}"
        for name, amount in sorted(requests.items())
        if name != "pods"
    )


def _amount(name: str, amount: int) -> str:
    if name == "cpu":
        return f"{amount / 1000:g}"
    if name in BYTES:
        for size, unit in BINARY:
            if amount >= size:
                return f"{amount / size:.4g}{unit}"
    return str(amount)
