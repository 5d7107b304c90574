"""How long the service took for its filter calls, from the histogram of /metrics.

Its log has a line for each call at `log_level` DEBUG only, and to write them is a part of what a member would cost then.
"""

from __future__ import annotations

import math
from typing import Self

import msgspec
from prometheus_client.parser import text_string_to_metric_families

SERIES = "gang_extender_extender_request_duration_seconds"
PATH = "/metrics"
MEAN, P99_AT_MOST = "mean", "p99 at most"  # in the names of figures


class FilterTimes(msgspec.Struct, frozen=True):
    """Calls of filter that were answered, by how long they took."""

    up_to: dict[
        float, float
    ] = {}  # upper bound of a bucket, seconds -> calls that took at most so long
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        """Return the number of calls."""
        return int(max(self.up_to.values(), default=0))

    @property
    def mean_ms(self) -> float:
        """Return milliseconds of a call on average, NaN without a call."""
        return self.sum_s / self.count * 1000 if self.count else math.nan

    def at_most_ms(self, part: float) -> float:
        """Return the bound in milliseconds of the bucket in which the call of this rank is; NaN without a call."""
        bounds = sorted(self.up_to)
        wanted = part * self.count
        return next((bound * 1000 for bound in bounds if self.up_to[bound] >= wanted), math.nan)

    def since(self, before: FilterTimes) -> FilterTimes:
        """Return the calls after an earlier reading of the same process."""
        up_to = {bound: calls - before.up_to.get(bound, 0) for bound, calls in self.up_to.items()}
        return FilterTimes(up_to, self.sum_s - before.sum_s)

    def __add__(self, other: Self) -> FilterTimes:
        """Return the calls of both; the buckets are those of the product, so they are the same."""
        bounds = self.up_to.keys() | other.up_to.keys()
        up_to = {bound: self.up_to.get(bound, 0) + other.up_to.get(bound, 0) for bound in bounds}
        return FilterTimes(up_to, self.sum_s + other.sum_s)


def filter_times(metrics: str) -> FilterTimes:
    """Read them from the text of /metrics; ValueError: it is not that of a service."""
    families = text_string_to_metric_families(metrics)
    family = next((family for family in families if family.name == SERIES), None)
    if family is None:
        raise ValueError(f"{PATH} has no {SERIES}: {metrics[:200]!r}")
    up_to: dict[float, float] = {}
    sum_s = 0.0
    for sample in family.samples:
        if sample.labels.get("verb") != "filter":
            continue
        if sample.name == f"{SERIES}_bucket":
            up_to[float(sample.labels["le"])] = sample.value
        elif sample.name == f"{SERIES}_sum":
            sum_s = sample.value
    return FilterTimes(up_to, sum_s)
