"""The form of a preemption in `GET /v1/preemptions` and `gang-extender preemptions -o json`."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from extender.core.log.events import CancelReason, GoneVia
from extender.core.model.ids import PlanId, Position

Outcome = Literal["pending", "completed", "cancelled"]
OUTCOMES: Final[tuple[str, ...]] = get_args(Outcome)


class EvictedPodLine(msgspec.Struct, kw_only=True):
    """One pod of a victim."""

    pod: str
    node: str
    requested: str = ""  # RFC 3339, when its eviction was requested; empty: it was not requested, or the time is not known
    gone: str = ""  # RFC 3339; empty while it exists, or when its unit was spared
    via: GoneVia | Literal[""] = ""
    group: str = ""  # name of its PodGroup; empty: it has none


class UnitLine(msgspec.Struct, kw_only=True):
    """A disruption unit that was chosen as a victim."""

    unit: str  # Kind/namespace/name
    priority: int
    pods: list[EvictedPodLine]
    spared: bool = False  # the preemption ended before the eviction of this unit began
    lost_min: int = 0  # GPU-minutes of its work since its start, or its last checkpoint
    # why it was not reprieved, although the counted capacity would allow it
    not_reprieved_reason: str = ""


class AlternativeLine(msgspec.Struct, kw_only=True):
    """A set of victims that was examined and not chosen."""

    units: tuple[str, ...]
    cost: dict[str, int]
    reason: str


class PreemptionLine(msgspec.Struct, kw_only=True):
    """One preemption from its plan to its end."""

    preemption: PlanId
    position: Position  # of the plan; for `gang-extender decision replay`
    planned: str  # RFC 3339
    preemptor: str  # Kind/namespace/name
    preemptor_uid: str
    priority: int
    victims: list[UnitLine]
    superseded: list[str]  # trees of lower priority that lost reservations, namespace/name
    cost: dict[str, int]
    alternatives: list[AlternativeLine]
    outcome: Outcome = "pending"
    reason: CancelReason | Literal[""] = ""
    message: str = ""
    taken_over_by: str = ""  # Kind/namespace/name of the preemptor that took the capacity over
    ended: str = ""  # RFC 3339
    bound: int = 0  # bound members of the preemptor when it was completed
    duration_ms: int = 0  # from the plan to the completion
    placed: int = 0  # pods of the preemptor that the plan places
    needed: dict[str, int] = {}  # the sum of their requests, in the units of requests
    # The preemptor ran for less than a minute, or never, though victims are gone: what happened; empty: not so, or not known.
    in_vain: str = ""
    proved: bool = False  # no set of victims with a lower cost exists
    explanation: str = ""  # all of this in sentences, about the requested victim if there is one
