"""Details of a decision: its input in numbers, the search, and the alternatives that were rejected."""

from __future__ import annotations

from typing import get_args

import msgspec

from extender.core.admit.gang_sentences import WishLine, group_lines
from extender.core.log.events import (
    CapacityHeld,
    ConflictRecord,
    GangAdmitted,
    GangExtended,
    GangUnschedulable,
    MovesPlanned,
    PreemptionPlanned,
    RecordedEvent,
    TreeCompiled,
    TreeRefused,
)
from extender.core.model.errors import CorruptLog, NotFound
from extender.core.model.ids import Position
from extender.core.planner.codec import request_codec
from extender.core.planner.codec.request_codec import InputSummary
from extender.core.planner.plan_types import DecisionInput
from extender.core.verbs import preempt_verb_input
from extender.ports.log_ports import DecisionInputs
from extender.ports.query_ports import EventFilter, EventQueries
from extender.queries.log.preemption_dto import AlternativeLine
from extender.runtime.cooperative_yield import Yielder

DecisionEventData = GangAdmitted | GangExtended | GangUnschedulable | PreemptionPlanned


class DecisionInputLine(msgspec.Struct, frozen=True, kw_only=True):
    """The input of the planner in numbers; `gang-extender decision replay POSITION` plans it again."""

    digest: str  # SHA-256 of the canonical input, hex
    stored: bool  # False: the input was pruned, and the numbers are 0
    nodes: int = 0
    groups: int = 0
    waiting: int = 0  # members without a node
    bound: int = 0  # members on a node
    rejected_nodes: int = 0  # nodes that kube-scheduler had rejected
    rules: int = 0  # affinity, anti-affinity and spread rules
    evictable: int = 0  # disruption units of lower priority
    evictable_pods: int = 0  # pods of these units
    budget: int = 0  # search nodes


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Input, search and alternatives of a decision."""

    input: DecisionInputLine
    planner: str  # version
    search_nodes: int
    exhausted: bool  # the answer is proved: the search was complete
    unplaced: tuple[str, ...] = ()  # members that got no node, namespace/name
    reasons: tuple[str, ...] = ()  # of a refusal
    help: tuple[str, ...] = ()  # of a refusal: what would have helped, the cheapest first
    conflict: tuple[ConflictRecord, ...] = ()  # requirements that cannot hold together
    preemption_notes: tuple[str, ...] = ()  # why preemption does not help
    alternatives: tuple[AlternativeLine, ...] = ()  # sets of victims that were not chosen
    wishes: tuple[WishLine, ...] = ()  # of an admission: what they reached


async def decision_of(event: RecordedEvent, inputs: DecisionInputs) -> Decision | None:
    """Return the details of a decision, or None when the event is not a decision.

    Raises:
        CorruptLog: The stored input is damaged.
    """
    data = event.data
    if not isinstance(data, DecisionEventData) or not data.input_digest:
        return None
    stored = await inputs.load(data.input_digest)
    line = DecisionInputLine(digest=data.input_digest, stored=False)
    if stored is not None:
        line = await _counted(data, stored)
    alternatives: tuple[AlternativeLine, ...] = ()
    if isinstance(data, PreemptionPlanned):
        alternatives = tuple(
            AlternativeLine(units=a.units, cost=a.cost, reason=a.reason) for a in data.alternatives
        )
    refusal = data if isinstance(data, GangUnschedulable) else None
    return Decision(
        input=line,
        planner=data.planner,
        search_nodes=data.search_nodes,
        exhausted=data.exhausted,
        unplaced=() if isinstance(data, GangUnschedulable | PreemptionPlanned) else data.unplaced,
        reasons=refusal.reasons if refusal else (),
        help=refusal.help if refusal else (),
        conflict=refusal.conflict if refusal else (),
        preemption_notes=refusal.preemption_notes if refusal else (),
        alternatives=alternatives,
        wishes=group_lines(data.groups) if isinstance(data, GangAdmitted | GangExtended) else (),
    )


async def _counted(data: DecisionEventData, stored: DecisionInput) -> DecisionInputLine:
    """Return the counts of an input; gives the event loop back between slices of work."""
    of_verb = isinstance(data, PreemptionPlanned) and data.kind == "Pod"
    codec = preempt_verb_input if of_verb else request_codec
    steps = codec.summarize(stored.head, stored.parts)
    pace = Yielder()
    try:
        while True:
            next(steps)
            await pace.yield_if_due()
    except StopIteration as end:
        summary: InputSummary = end.value
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptLog(f"input {data.input_digest}: cannot be read: {error}") from error
    return DecisionInputLine(
        digest=data.input_digest, stored=True, **msgspec.structs.asdict(summary)
    )


ReplayableEventData = (
    GangAdmitted
    | GangExtended
    | GangUnschedulable
    | PreemptionPlanned
    | CapacityHeld
    | MovesPlanned
    | TreeCompiled
    | TreeRefused
)


class DecisionWithInput(msgspec.Struct, frozen=True):
    """A decision of the log and its input."""

    position: Position
    data: ReplayableEventData
    input: DecisionInput
    head: Position  # end of the log when it was read


class StoredDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision and its input as a service answers them, to be planned again elsewhere."""

    position: Position
    type: str
    data: msgspec.Raw
    digest: str
    head: bytes
    parts: tuple[bytes, ...]

    def decoded(self) -> DecisionWithInput:
        """Return the decision with its data as its type has it.

        Raises:
            CorruptLog: The data are not those of a decision that this version can read.
        """
        kinds = {kind.__name__: kind for kind in get_args(ReplayableEventData)}
        try:
            data = msgspec.json.decode(self.data, type=kinds[self.type])
        except (KeyError, msgspec.MsgspecError) as error:
            msg = f"position {self.position}: a {self.type} as this version of gang-extender cannot read it: {error}"
            raise CorruptLog(msg) from error
        stored = DecisionInput(digest=self.digest, head=self.head, parts=self.parts)
        return DecisionWithInput(self.position, data, stored, self.position)


def stored_decision(decision: DecisionWithInput) -> StoredDecision:
    """Return a decision as a service answers it; the inverse of `StoredDecision.decoded`."""
    stored = decision.input
    return StoredDecision(
        position=decision.position,
        type=type(decision.data).__name__,
        data=msgspec.Raw(msgspec.json.encode(decision.data)),
        digest=stored.digest,
        head=stored.head,
        parts=stored.parts,
    )


async def decision_with_input(
    reader: EventQueries, inputs: DecisionInputs, position: Position
) -> DecisionWithInput:
    """Return the decision at a position of the log, with its stored input.

    Raises:
        NotFound: The log has no such position, it is no decision, or its input is not stored any more.
    """
    page = await reader.page(EventFilter(after=Position(position - 1), limit=1))
    if not page.events or page.events[0].position != position:
        msg = f"position {position}: the log has no such event; it ends at position {page.head}"
        raise NotFound(msg)
    data = page.events[0].data
    if not isinstance(data, ReplayableEventData) or not data.input_digest:
        raise NotFound(
            f"position {position}: {type(data).__name__} is not a decision; decisions are GangAdmitted, GangExtended, "
            "GangUnschedulable, PreemptionPlanned, CapacityHeld, MovesPlanned, TreeCompiled and TreeRefused (see `gang-extender events --type`)"
        )
    stored = await inputs.load(data.input_digest)
    if stored is None:
        raise NotFound(
            f"position {position}: the input {data.input_digest} is not stored any more; `gang-extender db prune` deletes "
            "inputs of old decisions"
        )
    return DecisionWithInput(position, data, stored, page.head)
