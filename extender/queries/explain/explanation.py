"""The form of an explanation: one sentence, the checks up to the first that fails, and what would help.

An outcome is *not recorded* only in an explanation of the past: the log does not have what it depends on.

The same in `GET /v1/explain`, `gang-extender explain` and its JSON. Fields may be added; none is removed or changes its
meaning.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from extender.queries.state.state_dto import GangAt

CheckName = Literal[
    "group named",
    "group exists",
    "tree valid",
    "members complete",
    "fits an empty cluster",
    "fits now",
    "victims gone",
    "gates removed",
    "accepted by kube-scheduler",
    "bound",
]
Outcome = Literal["yes", "no", "unknown", "not reached", "not recorded"]
CHECKS: Final[tuple[CheckName, ...]] = get_args(CheckName)


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One check on the way of a pod to its node."""

    check: CheckName
    outcome: Outcome
    text: str = ""  # what was found; empty: there is nothing to add


class Related(msgspec.Struct, frozen=True, kw_only=True):
    """Another object that belongs to the subject, or that has the same name."""

    kind: str
    name: str  # namespace/name; of a node its name
    relation: str  # workload | root group | member | gang on this node | same name


class BetterPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A preferred level of a group of which the gang would have fewer domains if it was placed anew now."""

    group: str  # its name
    key: str
    value: int  # domains, as it was planned
    # domains, if all pods of the gang were placed now; 0: not known, `text` has the reason
    possible: int
    domains: tuple[str, ...]  # values of the key that it would have then
    text: str  # one sentence


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why an object is in the state that it is in."""

    kind: str
    name: str  # namespace/name; of a node its name
    answer: str  # one sentence
    state: str = ""  # of its gang, see `GangAt.state`; empty: there is none
    checks: tuple[Check, ...] = ()  # in the order of `CHECKS`
    reasons: tuple[str, ...] = ()  # further reasons of the check that fails
    conflict: tuple[str, ...] = ()  # requirements that cannot hold together
    # what would help; each was verified by planning unless it is the only way
    help: tuple[str, ...] = ()
    # what the wishes of its gang reached in its newest plan, with the best that was possible
    wishes: tuple[str, ...] = ()
    # of a gang with a place: what would be nearer to its preferred levels now. No running pod is moved for it
    better: tuple[BetterPlacement, ...] = ()
    related: tuple[Related, ...] = ()
    gang: GangAt | None = None  # with its members; None: the log does not have it
    as_of: str = ""  # RFC 3339
    position: int = 0  # of the log
    at: str = ""  # the time or position in the request; empty: it is about now
    limitations: tuple[str, ...] = ()  # of the past: sentences about what the log does not have
