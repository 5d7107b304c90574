"""What the leader has in memory about the planning of trees, and the log does not have: an explanation reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from immutables import Map

if TYPE_CHECKING:  # commands of the log and of the database need no planner
    from extender.core.admit.readmission_backoff import ReadmissionPause
    from extender.core.fairness.new_gang_limits import NewGangLimit
    from extender.core.fairness.search_turns import SearchTurn
    from extender.core.holds.hold_planning import HoldRefusal
    from extender.core.model.ids import GangUid

NONE: Final[Map[Any, Any]] = Map()


@dataclass
class LiveProgress:
    """Each mapping is by the UID of the root, and is replaced as a whole."""

    searches: Mapping[GangUid, SearchTurn] = NONE  # which trees wait for their long search
    limited: Mapping[GangUid, NewGangLimit] = NONE  # new gangs beyond the limit of a namespace
    paused: Mapping[GangUid, ReadmissionPause] = NONE  # which trees a back-off defers
    # when trees that pause after a search, or after other pods took their capacity, are planned again ...
    planned_again_us: Mapping[GangUid, int] = NONE
    victims_again_us: Mapping[GangUid, int] = NONE  # ... and when victims are searched for again
    unheld: Mapping[GangUid, HoldRefusal] = NONE  # why no capacity is held for trees
    # what was tried in vain for lost members of running gangs, as sentences
    lost_in_vain: Mapping[GangUid, tuple[str, ...]] = NONE
