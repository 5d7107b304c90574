"""What a benchmark gives: figures beside their baselines, and how they are read."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How much a run measures."""

    rounds: int = 5  # alternating runs of each side
    quick: bool = False  # small sizes: does the benchmark work at all
    kubernetes: str = "1.37"  # pinned version of the control plane
    trace: bool = False  # print step by step where the time goes, where a benchmark can
    only: str = ""  # only cases in whose name this pattern is found
    done: frozenset[tuple[str, str]] = frozenset()  # (bench, what) measured before; not again

    def wants(self, bench: str, case: str) -> bool:
        """Return whether a case is to be run; its figures are called "<case>: ...", or it is their family."""
        known = any(b == bench and what.partition(": ")[0] == case for b, what in self.done)
        return self.asks_for(case) and not known

    def asks_for(self, case: str) -> bool:
        """Return whether a case is among those that are to be there at the end."""
        return re.search(self.only, case) is not None


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing measured, several times; times are in the unit named, rates per second."""

    bench: str
    what: str  # unique within its bench
    unit: str
    better: Literal["lower", "higher"]
    values: tuple[float, ...]
    baseline_name: str = ""  # what it is compared with, measured alternating in the same run
    baseline: tuple[float, ...] = ()
    target: str = ""  # the goal in words
    unfinished: int = 0  # runs that did not finish, ours
    baseline_unfinished: int = 0
    note: str = ""
    family: str = ""  # of `quick`: rows that are measured together, or again together
    machine_speed: tuple[float, ...] = ()  # million turns/s of `machine.speed`, before and after

    @property
    def case(self) -> str:
        """Return the name by which `ONLY` and `RESUME` know what it belongs to."""
        return self.family or self.what.partition(": ")[0]

    @property
    def median(self) -> float:
        """Return the middle value, NaN when no run finished."""
        return statistics.median(self.values) if self.values else float("nan")

    @property
    def baseline_median(self) -> float:
        """Return the middle value of the other side, NaN without one."""
        return statistics.median(self.baseline) if self.baseline else float("nan")

    @property
    def ratio(self) -> float:
        """Return ours over theirs, NaN without a baseline."""
        return self.median / self.baseline_median if self.baseline else float("nan")

    @property
    def spread(self) -> float:
        """Return (largest - smallest) / median of our values: what a difference must exceed to mean something."""
        return _spread(self.values)

    @property
    def baseline_spread(self) -> float:
        """Return the same of the other side."""
        return _spread(self.baseline)

    @property
    def met(self) -> bool | None:
        """Return whether the target is met: "2 x" by the ratio, "5 ms" by the median; None without one."""
        if not self.target:
            return None
        number = float(re.match(r"[\d.,]+", self.target).group().replace(",", ""))  # type: ignore[union-attr]
        found = self.ratio if self.target.endswith(" x") else self.median
        return found >= number if self.better == "higher" else found <= number


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be measured, and why."""

    bench: str
    what: str  # a family of rows of `quick`, or the name of the bench
    error: str

    def __str__(self) -> str:
        name = self.bench if self.what == self.bench else f"{self.bench}: {self.what}"
        return f"{name}: failed: {self.error}"


def short(value: float) -> str:
    """Write a number with three digits that count, large ones with commas: 9,920 and not 9.92e+03."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if math.isfinite(value) and abs(rounded) >= 1000 else f"{value:.3g}"


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2 or not statistics.median(values):
        return 0.0
    return (max(values) - min(values)) / statistics.median(values)


QUANTILES = (("p50", 0.5), ("p99", 0.99))  # label, and part


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which this part lies, by nearest rank."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(part * len(ranked)))]
