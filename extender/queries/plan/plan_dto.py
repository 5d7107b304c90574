"""Questions about plans and about moves over HTTP, and their answers.

A client without the planner sends and reads them, so numpy must not be imported here.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from extender.core.admit.gang_sentences import WishLine
from extender.core.planner.moves.move_types import Move, MovesOutcome, StayingPod
from extender.core.planner.plan_types import SEARCH_BUDGET, Conflict, Relaxation, WhenEmpty
from extender.queries.plan.plan_steps import StepLine

VerdictWord = Literal["placed", "waiting", "unknown", "impossible", "invalid"]
AnswerWord = VerdictWord | Literal["nothing"]  # nothing: no tree and no pod was planned
BUDGET_MAX = 200_000  # search nodes that a query may ask for
BEST_TO_WORST: tuple[VerdictWord, ...] = ("placed", "waiting", "unknown", "impossible", "invalid")
COPIES_MAX: Final = 1_000  # of one query
Count = Annotated[int, msgspec.Meta(ge=0)]


class PlanObjects(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The objects of a request over HTTP, as `kubectl get -o json` prints them, lists included."""

    # nodes, pods and groups that exist; without it: the live cluster of the service
    cluster: tuple[dict[str, Any], ...] | UnsetType = UNSET
    workload: tuple[dict[str, Any], ...] = ()  # objects to plan; empty: all that is pending
    manifest: str = ""  # YAML or JSON of further objects to plan, as kubectl reads it
    # Kind/namespace/name of groups of the cluster to plan
    groups: tuple[str, ...] = ()


class AssignmentLine(msgspec.Struct, frozen=True):
    """A newly placed pod."""

    pod: str
    group: str
    node: str


class NodeGroupSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node group as a file or a query has it."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    max: Annotated[int, msgspec.Meta(ge=1, le=10_000)]  # nodes that it may have
    # A Node as `kubectl get node -o yaml` prints it: metadata.labels, spec.taints, status.allocatable or capacity. A node
    # of the cluster with all of the labels, but for the hostname, counts as one of the group.
    template: dict[str, Any]


class PlanQuestion(
    PlanObjects, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The request over HTTP: Kubernetes objects as `kubectl get -o json` prints them, lists included."""

    all_pending: bool = False  # plan also what is pending in `cluster`
    # search nodes per root
    budget: Annotated[int, msgspec.Meta(ge=1, le=BUDGET_MAX)] = SEARCH_BUDGET
    preemption: bool = True  # pods of lower priority may be evicted
    # plan the trees of `workload` and `manifest` so often; 0: once
    copies: Annotated[int, msgspec.Meta(ge=0, le=200)] = 0
    max_copies: bool = False  # plan copies of them as long as they fit, 200 at most
    without: tuple[str, ...] = ()  # nodes that are away: names, or key=value of a label
    # further empty nodes: 4xNODE, like NODE
    with_: tuple[str, ...] = msgspec.field(default=(), name="with")
    # requirements that are dropped or lowered: GROUP:topology, GROUP:slices, GROUP:exclusive, GROUP:minCount=N, GROUP:minGroupCount=N
    relax: tuple[str, ...] = ()
    # node groups of a cluster autoscaler: whether a refused tree would fit if one of them grew
    node_groups: tuple[NodeGroupSpec, ...] = ()


class GroupLine(msgspec.Struct, frozen=True, kw_only=True):
    """A group of a tree; counts are of pods, for a composite of child groups."""

    group: str
    kind: str
    parent: str  # empty for the root
    # what the user calls it, such as the name of a ReplicatedJob; empty if it has no name
    role: str
    minimum: int  # how many must be placed together; 0: each for itself
    total: int  # how many there are
    placed: int  # how many run or would be placed; child groups count with their minimum


class PlannedVictimLine(msgspec.Struct, frozen=True):
    """A disruption unit that would be evicted."""

    unit: str
    pods: tuple[str, ...]


class SearchLine(msgspec.Struct, frozen=True):
    """The effort of a search."""

    nodes: int
    exhausted: bool


class NodeGroupGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """By how many nodes a node group must grow for a tree to fit, verified by planning it."""

    name: str
    nodes: int  # more than it has
    now: int  # nodes that it has
    max: int  # nodes that it may have
    evicts: int = 0  # units of lower priority that are evicted then


class GangVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one tree."""

    gang: str
    kind: str
    verdict: VerdictWord
    domains: dict[str, dict[str, str]] = {}
    assignments: tuple[AssignmentLine, ...] = ()
    unplaced: tuple[str, ...] = ()
    victims: tuple[PlannedVictimLine, ...] = ()
    reasons: tuple[str, ...] = ()
    conflict: tuple[Conflict, ...] = ()
    help: tuple[str, ...] = ()  # what would help, each verified by planning, the cheapest first
    changes: tuple[Relaxation, ...] = ()  # the same by parts, for programs
    # Of an impossible tree without bound members: whether it would fit if no other pod ran. Empty: not examined.
    when_empty: WhenEmpty = ""
    reasons_when_empty: tuple[str, ...] = ()  # of *never*: what is missing then
    node_groups: tuple[NodeGroupGrowth, ...] = ()  # of which one alone would make it fit
    search: SearchLine = SearchLine(0, exhausted=True)
    # Kind/namespace/name of what the tree was made from; empty: its groups are given
    workload: str = ""
    groups: tuple[GroupLine, ...] = ()  # the tree, root first; empty where it is not complete
    # of a workload whose parts start one after the other; the verdict is that of the worst step
    steps: tuple[StepLine, ...] = ()
    copy: int | UnsetType = UNSET  # of a query with copies: the number of the copy, from 1
    wishes: tuple[WishLine, ...] = ()  # what they reached, one line for each key of a wish


class CopiesLine(msgspec.Struct, frozen=True, kw_only=True):
    """How many copies of the trees fit, planned one after the other."""

    wanted: int  # 0: as many as fit
    fit: int
    # whether it is proved that the next one does not fit beside those before it; true also if all that are wanted fit
    proved: bool
    limited: bool = False  # stopped at the most that one query plans; more may fit


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for all trees in queue order; `verdict` is the worst of them.

    With copies, `gangs` has the trees of each copy that fits, then those of the first that does not; the verdict of
    a query for as many copies as fit is that of the first copy.
    """

    verdict: AnswerWord
    gangs: tuple[GangVerdict, ...]
    copies: CopiesLine | UnsetType = UNSET  # only of a query with copies
    given: tuple[str, ...] | UnsetType = UNSET  # what was changed about cluster and trees


class PlanReply(PlanAnswer, frozen=True, kw_only=True):
    """The answer over HTTP, with warnings about the objects."""

    warnings: tuple[str, ...] = ()
    as_of: str = ""  # RFC 3339: time of the live cluster; empty for a cluster in the request


class MovesQuestion(
    PlanObjects, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The request over HTTP: a tree to make room for (`workload`, `manifest` or `groups`), or `free`, or `drain`."""

    free: str = ""  # KEY=N: so many whole domains of a topology key
    drain: tuple[str, ...] = ()  # names of nodes, or key=value of a label
    announced: bool = False  # drain the nodes that are cordoned, or have a taint that announces it
    by: str = ""  # RFC 3339, with `drain`: what ends by then need not move
    budget: Count = 0  # moves at most; 0: any number
    max_priority: int | UnsetType = UNSET  # pods above it stay
    max_age_s: Count = 0  # pods that run for longer stay; 0: none
    search_budget: Annotated[int, msgspec.Meta(ge=1, le=BUDGET_MAX)] = SEARCH_BUDGET


class BreakLine(msgspec.Struct, frozen=True, kw_only=True):
    """A gang that falls below its minimum when a drain evicts what has no other place."""

    gang: str  # Kind/namespace/name
    minimum: int
    running: int  # pods, of a composite groups that have their minimum
    left: int


class EndLine(msgspec.Struct, frozen=True, kw_only=True):
    """What ends by itself in time, and so need not move."""

    name: str  # Kind/namespace/name: the root group, or the pod
    pods: int  # on the nodes to drain
    ends: str  # RFC 3339, at the latest


class NodePicture(msgspec.Struct, frozen=True, kw_only=True):
    """A node that changes, before and after."""

    node: str
    resource: str
    allocatable: int
    free_before: int
    free_after: int


class MovesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; `fits`: no move is needed, `impossible`: proved."""

    verdict: MovesOutcome
    question: str
    moves: tuple[Move, ...] = ()  # in order, one after the other
    least: int = 0  # proved: no fewer moves lead there
    # proved: of equally many moves none have a lower sum of priorities, and with the same none lose less work
    cheapest: bool = False
    lost_min: int = 0  # GPU-minutes of work that all moves lose
    emptied: tuple[str, ...] = ()  # domains or nodes
    assignments: tuple[AssignmentLine, ...] = ()  # of the tree, after the moves
    unmoved: tuple[str, ...] = ()  # pods that have no place elsewhere
    stays: tuple[StayingPod, ...] = ()
    breaks: tuple[BreakLine, ...] = ()
    ends: tuple[EndLine, ...] = ()  # by the time of the question, the first to end first
    # RFC 3339: begin after it, and nothing stays or breaks; empty: now, or it is not known
    begin_after: str = ""
    nodes: tuple[NodePicture, ...] = ()
    reasons: tuple[str, ...] = ()
    proved: bool = True  # False: the search was cut short
    warnings: tuple[str, ...] = ()
    as_of: str = ""  # RFC 3339: time of the live cluster; empty for a cluster in the request
    plan: str = ""  # id of the plan, where the moves are being made


class MovesUnderWay(msgspec.Struct, frozen=True, kw_only=True):
    """The moves that the service makes; an empty `plan`: none are under way."""

    plan: str = ""
    question: str = ""
    by: str = ""
    since: str = ""  # RFC 3339
    paused: bool = False
    made: int = 0  # so many of `moves`
    moves: tuple[Move, ...] = ()  # in order
    state: str = ""  # what is done now, as a sentence
