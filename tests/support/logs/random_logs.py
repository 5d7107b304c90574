"""Random logs that a leader could have written, for property tests: each event is possible in the state before it."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st
from immutables import Map
from msgspec.structs import replace

from extender.core.log.events import (
    AssignmentRecord,
    BindBarrierTimedOut,
    CapacityHeld,
    CapacityHoldReleased,
    ClockStepped,
    DriftDetected,
    GangAdmitted,
    GangExtended,
    GangGroupsChanged,
    GangInvalid,
    GangObserved,
    GangRemoved,
    GangScheduled,
    GangUnschedulable,
    GroupRecord,
    HistoryTruncated,
    LeaseAcquired,
    MemberTerminated,
    MoveCompleted,
    MoveRecord,
    MovesEnded,
    MovesPaused,
    MovesPlanned,
    NodeRejected,
    NodeTopologyChanged,
    PodBindFailed,
    PodBound,
    PreemptionCancelled,
    PreemptionCompleted,
    PreemptionPlanned,
    RecordedEvent,
    ReleasedPod,
    ReservationReleased,
    ReservedCapacityUser,
    SupersededRecord,
    VictimGone,
    VictimPod,
    VictimUnit,
)
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import fold
from extender.core.model.ids import NIL_GANG, Epoch, GangUid, NodeName, PlanId, PodUid, Position
from extender.snapshots.state_loader import live_streams_only

ROOTS = [GangUid(f"root-{n}") for n in range(3)]
NODES = [NodeName(f"n{n}") for n in range(3)]


def event_after(state, gang_uid, data):
    """Return an event that can follow a state."""
    return RecordedEvent(
        position=Position(state.position + 1),
        event_id=str(UUID(int=state.position + 1)),
        epoch=Epoch(1),
        at_us=state.at_us + 1,
        gang_uid=gang_uid,
        stream_version=state.stream_versions.get(gang_uid, 0) + 1,
        gang="" if gang_uid == NIL_GANG else f"ns/{gang_uid}",
        actor="test",
        cause="",
        cause_position=state.moves.position if isinstance(data, MoveCompleted) else None,
        data=data,
    )


def a_leaf(name="leaf", minimum=1, **rest):
    return GroupRecord(kind="PodGroup", name=name, minimum=minimum, **rest)


_OF_NO_GANG = (LeaseAcquired, HistoryTruncated, MovesPlanned, MovesPaused, MovesEnded)


@st.composite
def histories(draw):
    """Make a history a leader could have written: every event is possible in the state before it."""
    state, events = EMPTY, []
    fresh = iter(range(10_000))
    for _ in range(draw(st.integers(0, 25))):
        uid = draw(st.sampled_from(ROOTS))
        root = state.gangs.get(uid)
        if draw(st.integers(0, 7)) == 0:
            data = draw(_of_moves(state, uid, root))
        elif draw(st.integers(0, 3)):
            data = draw(_event_data(uid, root, fresh))
        else:
            data = draw(_of_preemption(state, uid, root, fresh))
        event = event_after(state, NIL_GANG if isinstance(data, _OF_NO_GANG) else uid, data)
        events.append(event)
        state = fold(state, [event])
    return events


@st.composite
def _of_moves(draw, state, uid, root):
    """Make an event of the moves that are under way; their plan where there are none, and the root has members."""
    moves = state.moves
    if moves is None:
        if root is None or not root.bound:
            return GangObserved(kind="PodGroup")
        members = sorted(root.bound.values(), key=lambda m: m.uid)
        return MovesPlanned(
            plan=PlanId("moves"), question="drain n", by="",
            for_gang=draw(st.sampled_from(["", root.gang])), for_uid=NIL_GANG,
            moves=tuple(
                MoveRecord(
                    pod=m.pod, uid=m.uid, group=m.group, gang=root.gang, gang_uid=uid, source=m.node,
                    target=draw(st.sampled_from(NODES)), requests={"cpu": 1000, "pods": 1}, priority=root.priority,
                    lost_min=draw(st.sampled_from([0, 30])),
                )
                for m in members
            ),
        )  # fmt: skip
    kinds = ["paused", "ended"] + ["completed"] * (moves.current.gang_uid == uid)
    kind = draw(st.sampled_from(kinds))
    if kind == "completed" and moves.made + 1 < len(moves.moves):
        move = moves.current
        return MoveCompleted(
            plan=moves.id, number=moves.made + 1, pod=move.pod, uid=move.uid, source=move.source, target=move.target,
            replacement="ns/new", replacement_uid=PodUid("new"), duration_ms=1,
        )  # fmt: skip
    if kind == "paused":
        return MovesPaused(plan=moves.id, paused=draw(st.booleans()), by="ann")
    return MovesEnded(plan=moves.id, reason="stopped", made=moves.made, left=1)


@st.composite
def _of_preemption(draw, state, uid, root, fresh):
    """Make an event of the pending preemption; the plan of one where none is pending."""
    pending = state.preemptions.get(uid)
    if root is None and pending is None:
        return GangObserved(kind="PodGroup")
    if pending is None:
        return draw(_plans(state, fresh))
    left = sorted(pending.victims.values(), key=lambda v: v.uid)
    kinds = ["evicted"] * 2 * bool(left) + ["completed", "cancelled"] * (not pending.ended)
    kind = draw(st.sampled_from(kinds))
    if kind == "evicted":
        v = draw(st.sampled_from(left))
        how = draw(st.sampled_from(["deleted", "ended", "unobserved"]))
        return VictimGone(
            preemption=pending.id, unit=v.unit, pod=v.pod, uid=v.uid, node=v.node, via=how,
            requested_us=0, gone_us=1,
        )  # fmt: skip
    if kind == "completed":
        return PreemptionCompleted(preemption=pending.id, bound=1, evicted=0, duration_ms=1)
    units = sorted({v.unit for v in left})
    finishing = tuple(draw(st.lists(st.sampled_from(units), unique=True))) if units else ()
    reason = draw(st.sampled_from(["no-longer-needed", "taken-over", "capacity-lost"]))
    lost = tuple(n for n in sorted(pending.claims) if draw(st.booleans()))
    return PreemptionCancelled(
        preemption=pending.id, reason=reason, units_spared=(), units_in_progress=finishing, evicted=0,
        taken_over_by="PodGroup/ns/other", taken_over_by_uid="other", taken_over_nodes=lost if reason == "taken-over" else (),
    )  # fmt: skip


@st.composite
def _plans(draw, state, fresh):
    """Make a plan; its victims are members of gangs, as long as there are some, or other pods."""
    bound = {m.uid: m for root in state.gangs.values() for m in root.bound.values()}
    members = [
        VictimPod(pod=m.pod, uid=m.uid, node=m.node, group=m.group)
        for m in draw(st.permutations(sorted(bound.values(), key=lambda m: m.uid)))
    ]

    def victim():
        if members and draw(st.booleans()):
            return members.pop()
        n = next(fresh)
        return VictimPod(pod=f"ns/v{n}", uid=PodUid(f"v{n}"), node=NODES[n % 3])

    units = tuple(
        VictimUnit(
            kind="PodGroup", path=f"ns/u{next(fresh)}", uid="u", priority=0, pods=(victim(), victim()),
            cost={"lost_min": draw(st.sampled_from([0, 7, 600]))},
        )
        for _ in range(draw(st.sampled_from([0, 1, 2, 2, 2])))
    )  # fmt: skip
    number = next(fresh)
    going = [VictimPod(pod=f"ns/w{n}", uid=PodUid(f"w{n}"), node=NODES[0]) for n in range(2)]
    other = SupersededRecord(
        gang="ns/other", gang_uid=ROOTS[0], plan=PlanId("plan-0"), priority=1, pods=()
    )
    return PreemptionPlanned(
        preemption=PlanId(f"preemption-{number}"), kind=draw(st.sampled_from(["PodGroup", "PodGroup", "Pod"])), priority=5, victims=units,
        cost={"units": len(units)}, alternatives=(), shapes=({"cpu": 1000},),
        assignments=(
            AssignmentRecord(
                pod=f"ns/p{number}", uid=PodUid(f"p{number}"), group="leaf",
                node=draw(st.sampled_from(NODES)),
            ),
        ) if draw(st.integers(0, 3)) else (),
        already_terminating=tuple(draw(st.sampled_from([[], going[:1], going]))),
        superseded=tuple(draw(st.sampled_from([[], [other], [other, other]]))),
    )  # fmt: skip


@st.composite
def _event_data(draw, uid, root, fresh):
    held = sorted(root.reservations.values(), key=lambda r: r.uid) if root else []
    bound = sorted(root.bound.values(), key=lambda m: m.uid) if root else []
    plan = PlanId(f"plan-{next(fresh)}")
    kinds = ["lease", "truncated"]
    if root is None:
        kinds += ["observed"] * 4
    else:
        kinds += ["admitted"] * 5 + [
            "refused",
            "invalid",
            "rejection",
            "completed",
            "noise",
            "outside",
            "capacity held",
            "hold ended",
        ]
        kinds += ["bound", "bound", "released", "scheduled"] * bool(held) + ["lost"] * bool(bound)
        kinds += ["back"] * bool(root.lost_with_node) + ["given up"] * bool(root.replacement_holds)
    kind = draw(st.sampled_from(kinds))
    if kind == "observed":
        return GangObserved(kind="PodGroup", priority=draw(st.integers(0, 9)))
    if kind == "admitted":
        count = draw(st.integers(1, 3))
        assignments = tuple(
            AssignmentRecord(
                pod=f"ns/p{number}", uid=PodUid(f"p{number}"), group="leaf",
                node=draw(st.sampled_from(NODES)), extra=draw(st.booleans()),
            )
            for number in (next(fresh) for _ in range(count))
        )  # fmt: skip
        given_ = {
            "plan": plan, "priority": root.priority, "groups": (a_leaf(minimum=count),),
            "shapes": ({"cpu": 1000, "pods": 1},), "assignments": assignments,
        }  # fmt: skip
        return (
            GangExtended(**given_)
            if root.plan is not None
            else GangAdmitted(kind="PodGroup", **given_)
        )
    if kind == "bound":
        r = draw(st.sampled_from(held))
        node = draw(st.sampled_from([r.node, *NODES]))
        return PodBound(plan=r.plan, pod=r.pod, uid=r.uid, node=node, group=r.group)
    if kind == "outside":
        name = f"out{next(fresh)}"
        return PodBound(
            plan=PlanId(""), pod=f"ns/{name}", uid=PodUid(name), node=NODES[0], group="leaf"
        )
    if kind == "back":
        m = draw(st.sampled_from(sorted(root.lost_with_node.values(), key=lambda m: m.uid)))
        return PodBound(plan=m.plan, pod=m.pod, uid=m.uid, node=m.node, group=m.group)
    if kind == "released":
        some = draw(st.lists(st.sampled_from(held), min_size=1, unique_by=lambda r: r.uid))
        pods = tuple(ReleasedPod(pod=r.pod, uid=r.uid, node=r.node) for r in some)
        reason = draw(st.sampled_from(["deleted", "expired", "node-rejected", "superseded"]))
        user = ReservedCapacityUser(
            pod="ns/other", uid=PodUid("other"), node=some[0].node, scheduler="", priority=0, via="unaware"
        )  # fmt: skip
        taken_by = (user,) if reason == "superseded" else ()
        return ReservationReleased(plan=some[0].plan, reason=reason, pods=pods, taken_by=taken_by)
    if kind == "lost":
        m = draw(st.sampled_from(bound))
        cause, message = draw(
            st.sampled_from([
                ("unknown", ""), ("unknown", ""), ("node-lost", ""), ("node-lost", ""), ("preempted", ""),
                ("ended", "Succeeded"), ("ended", "Succeeded"), ("ended", "Error"),
            ])
        )  # fmt: skip
        until_us = draw(st.sampled_from([0, 1_000, 1_000]))
        return MemberTerminated(
            pod=m.pod, uid=m.uid, node=m.node, cause=cause, message=message, held_until_us=until_us
        )
    if kind == "given up":
        v = draw(st.sampled_from(sorted(root.replacement_holds.values(), key=lambda v: v.uid)))
        pods = (ReleasedPod(pod=v.pod, uid=v.uid, node=v.node),)
        return ReservationReleased(plan=v.plan, reason="expired", pods=pods)
    if kind == "rejection":
        return NodeRejected(
            pod="ns/v",
            uid=PodUid("v"),
            node=draw(st.sampled_from(NODES)),
            by_shape=True,
            until_ms=5,
        )
    if kind == "capacity held":
        return CapacityHeld(
            hold=PlanId(draw(st.sampled_from(["hold-1", "hold-2"]))), kind="PodGroup",
            priority=root.priority, waiting_since_us=1, until_us=2, groups=(a_leaf(minimum=1),),
            shapes=({"cpu": 1000, "pods": 1},), fitting=0,
            assignments=(
                AssignmentRecord(
                    pod="ns/w", uid=PodUid("w"), group="leaf", node=draw(st.sampled_from(NODES))
                ),
            ),
        )  # fmt: skip
    if kind == "hold ended":
        return CapacityHoldReleased(
            hold=PlanId(draw(st.sampled_from(["hold-1", "hold-2"]))),
            reason=draw(st.sampled_from(["admitted", "expired", "deleted", "node-lost"])),
        )
    if kind == "noise":
        return draw(
            st.sampled_from([
                DriftDetected(kind="x", object="y", message="z"),
                ClockStepped(clock="service", step_ms=-1),
                BindBarrierTimedOut(plan=plan, waited_ms=1, arrived=(), missing=()),
                PodBindFailed(plan=plan, pod="ns/p", uid=PodUid("p"), node=NODES[0], error="e"),
                NodeTopologyChanged(node=NODES[0], before={}, after={"a": "b"}),
                GangGroupsChanged(groups=(a_leaf("leaf", 2),)),
                MemberTerminated(pod="ns/x", uid=PodUid("unknown"), node=NODES[0], cause="unknown"),
            ])
        )  # fmt: skip
    return {
        "lease": LeaseAcquired(holder="me", address=""),
        "truncated": HistoryTruncated(
            evidence="memory", known_position=9, known_epoch=1, found_position=1, found_epoch=1
        ),
        "refused": GangUnschedulable(
            outcome=draw(st.sampled_from(["waiting", "impossible"])), reasons=("r",)
        ),
        "invalid": GangInvalid(problems=("B9: x",)),
        "scheduled": GangScheduled(plan=plan, bound=1),
        "completed": GangRemoved(reason="gone"),
    }[kind]


def lean(state):
    """Return a state as queries about the past keep it: without indexes and versions of ended streams, with plain maps."""
    roots = {
        uid: replace(root, reservations=dict(root.reservations), bound=dict(root.bound), lost_with_node=dict(root.lost_with_node),
                     replacement_holds=dict(root.replacement_holds), previous_nodes=dict(root.previous_nodes), topology=dict(root.topology))
        for uid, root in state.gangs.items()
    }  # fmt: skip
    return replace(live_streams_only(state), gangs=Map(roots), claims_on=Map(), gang_of=Map())
