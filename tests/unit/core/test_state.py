"""The fold: in pieces or at once the same, indexes true after every fact, nothing skipped over."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.errors import CorruptLog
from extender.core.events import (
    AssignmentRecord,
    BarrierExpired,
    BindFailed,
    DriftFound,
    Event,
    GangAdmitted,
    GangExtended,
    GangRefused,
    GangSatisfied,
    GroupRecord,
    HistoryTruncated,
    LeaseTaken,
    MemberLost,
    NodeTopologyChanged,
    NodeVetoed,
    PodBound,
    PreemptionAbandoned,
    PreemptionCompleted,
    PreemptionPlanned,
    ReleasedPod,
    ReservationReleased,
    RootCompleted,
    RootInvalid,
    RootObserved,
    VictimEvicted,
    VictimPod,
    VictimUnit,
)
from extender.core.ids import NIL_ROOT, Epoch, NodeName, PlanId, PodUid, Position, RootUid
from extender.core.state import EMPTY, Folding, barrier_unit, evolve, fold, satisfied
from extender.service.replay import decode_state, encode_state
from tests.fakes import check_state

ROOTS = [RootUid(f"root-{n}") for n in range(3)]
NODES = [NodeName(f"n{n}") for n in range(3)]


def event_after(state, root_uid, fact):
    """Give a fact its place behind a state."""
    return Event(
        position=Position(state.position + 1),
        event_id=f"id-{state.position + 1}",
        epoch=Epoch(1),
        at_us=state.at_us + 1,
        root_uid=root_uid,
        version=state.versions.get(root_uid, 0) + 1,
        root="" if root_uid == NIL_ROOT else f"ns/{root_uid}",
        actor="test",
        cause="",
        fact=fact,
    )


def _leaf(name="leaf", minimum=1, **rest):
    return GroupRecord(kind="PodGroup", name=name, minimum=minimum, **rest)


@st.composite
def histories(draw):
    """Make a history a leader could have written: every fact is possible in the state before it."""
    state, events = EMPTY, []
    fresh = iter(range(10_000))
    for _ in range(draw(st.integers(0, 25))):
        uid = draw(st.sampled_from(ROOTS))
        root = state.roots.get(uid)
        if draw(st.integers(0, 3)):
            fact = draw(_facts(uid, root, fresh))
        else:
            fact = draw(_of_preemption(state, uid, root, fresh))
        event = event_after(
            state, NIL_ROOT if isinstance(fact, LeaseTaken | HistoryTruncated) else uid, fact
        )
        events.append(event)
        state = evolve(state, event)
    return events


@st.composite
def _of_preemption(draw, state, uid, root, fresh):
    """Make a fact of a preemption that is possible now; the plan of one where none is under way."""
    pending = state.preemptions.get(uid)
    if root is None and pending is None:
        return RootObserved(kind="PodGroup")
    if pending is None:
        return draw(_plans(fresh))
    left = sorted(pending.victims.values(), key=lambda v: v.uid)
    kinds = ["evicted"] * 2 * bool(left) + ["completed", "abandoned"] * (not pending.ended)
    kind = draw(st.sampled_from(kinds))
    if kind == "evicted":
        v = draw(st.sampled_from(left))
        how = draw(st.sampled_from(["deleted", "ended", "unseen"]))
        return VictimEvicted(
            preemption=pending.id, unit=v.unit, pod=v.pod, uid=v.uid, node=v.node, how=how,
            asked_us=0, gone_us=1,
        )  # fmt: skip
    if kind == "completed":
        return PreemptionCompleted(preemption=pending.id, bound=1, evicted=0, took_ms=1)
    units = sorted({v.unit for v in left})
    finishing = tuple(draw(st.lists(st.sampled_from(units), unique=True))) if units else ()
    return PreemptionAbandoned(
        preemption=pending.id, why="better-offer", spared=(), finishing=finishing, evicted=0
    )


@st.composite
def _plans(draw, fresh):
    units = tuple(
        VictimUnit(
            kind="PodGroup", path=f"ns/u{next(fresh)}", uid="u", priority=0,
            pods=tuple(
                VictimPod(pod=f"ns/v{n}", uid=PodUid(f"v{n}"), node=NODES[n % 3])
                for n in (next(fresh), next(fresh))
            ),
        )
        for _ in range(2)
    )  # fmt: skip
    number = next(fresh)
    return PreemptionPlanned(
        preemption=PlanId(f"preemption-{number}"), kind="PodGroup", priority=5, victims=units,
        cost={"units": len(units)}, alternatives=(), shapes=({"cpu": 1000},),
        assignments=(
            AssignmentRecord(
                pod=f"ns/p{number}", uid=PodUid(f"p{number}"), group="leaf",
                node=draw(st.sampled_from(NODES)),
            ),
        ),
    )  # fmt: skip


@st.composite
def _facts(draw, uid, root, fresh):
    held = sorted(root.held.values(), key=lambda r: r.uid) if root else []
    bound = sorted(root.bound.values(), key=lambda m: m.uid) if root else []
    plan = PlanId(f"plan-{next(fresh)}")
    kinds = ["lease", "truncated"]
    if root is None:
        kinds += ["observed"] * 4
    else:
        kinds += ["admitted"] * 5 + ["refused", "invalid", "veto", "completed", "noise", "outside"]
        kinds += ["bound", "bound", "released", "satisfied"] * bool(held) + ["lost"] * bool(bound)
    kind = draw(st.sampled_from(kinds))
    if kind == "observed":
        return RootObserved(kind="PodGroup", priority=draw(st.integers(0, 9)))
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
            "plan": plan, "priority": root.priority, "groups": (_leaf(minimum=count),),
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
    if kind == "released":
        some = draw(st.lists(st.sampled_from(held), min_size=1, unique_by=lambda r: r.uid))
        pods = tuple(ReleasedPod(pod=r.pod, uid=r.uid, node=r.node) for r in some)
        return ReservationReleased(plan=some[0].plan, why="deleted", pods=pods)
    if kind == "lost":
        m = draw(st.sampled_from(bound))
        return MemberLost(pod=m.pod, uid=m.uid, node=m.node, cause="gone")
    if kind == "veto":
        return NodeVetoed(
            pod="ns/v",
            uid=PodUid("v"),
            node=draw(st.sampled_from(NODES)),
            by_shape=True,
            until_ms=5,
        )
    if kind == "noise":
        return draw(
            st.sampled_from([
                DriftFound(kind="x", object="y", text="z"),
                BarrierExpired(plan=plan, waited_ms=1, arrived=(), missing=()),
                BindFailed(plan=plan, pod="ns/p", uid=PodUid("p"), node=NODES[0], error="e"),
                NodeTopologyChanged(node=NODES[0], before={}, after={"a": "b"}),
                MemberLost(pod="ns/x", uid=PodUid("unknown"), node=NODES[0], cause="gone"),
            ])
        )  # fmt: skip
    return {
        "lease": LeaseTaken(holder="me", address=""),
        "truncated": HistoryTruncated(
            evidence="memory", known_position=9, known_epoch=1, found_position=1, found_epoch=1
        ),
        "refused": GangRefused(
            outcome=draw(st.sampled_from(["waiting", "impossible"])), reasons=("r",)
        ),
        "invalid": RootInvalid(problems=("B9: x",)),
        "satisfied": GangSatisfied(plan=plan, bound=1),
        "completed": RootCompleted(why="gone"),
    }[kind]


@given(histories(), st.integers(0, 25))
def test_folding_in_pieces_is_folding_at_once(events, cut):
    """fold(a + b) == fold(fold(a), b), wherever the log is cut; what was folded before stays as it is."""
    before = fold(EMPTY, events[:cut])
    assert fold(before, events[cut:]) == fold(EMPTY, events)
    assert before == fold(EMPTY, events[:cut])


@given(histories(), st.integers(0, 25), st.integers(1, 25), st.booleans())
def test_folding_by_the_page_is_evolving_event_by_event(events, cut, page, bulk):
    """Begun anywhere and opened in either way, with pages of any size; the state it began with stays."""
    before = start = fold(EMPTY, events[:cut])
    folding = Folding(start, bulk=bulk)
    for at in range(cut, len(events), page):
        folding.apply(events[at : at + page])
    for event in events[cut:]:
        before = evolve(before, event)
    assert folding.close() == before
    assert start == fold(EMPTY, events[:cut])
    check_state(before)


@settings(max_examples=200)
@given(histories())
def test_invariants_hold_after_every_fact(events):
    """After every prefix the indexes equal their recomputation from the roots, and positions are contiguous."""
    state = EMPTY
    for number, event in enumerate(events, start=1):
        state = evolve(state, event)
        check_state(state)
        assert state.position == number
        assert sum(state.versions.values()) == number


@given(histories())
def test_a_checkpoint_is_the_state(events):
    """encode_state and decode_state are a round trip for every state a log can lead to."""
    state = fold(EMPTY, events)
    again = decode_state(encode_state(state))
    assert again == state
    check_state(again)


@given(histories().filter(bool), st.data())
def test_a_gap_is_never_skipped_over(events, data):
    """A missing, repeated or swapped fact, or a wrong version, raises CorruptLog."""
    at = data.draw(st.integers(0, len(events) - 1))
    broken = msgspec.structs.replace(events[at], version=events[at].version + 1)
    with pytest.raises(CorruptLog):
        fold(EMPTY, [*events[:at], broken])
    with pytest.raises(CorruptLog):
        fold(EMPTY, [*events[: at + 1], events[at]])
    if at + 1 < len(events):
        with pytest.raises(CorruptLog):
            fold(EMPTY, [*events[:at], *events[at + 1 :]])


@pytest.mark.parametrize("body", [b"", b"nonsense", encode_state(EMPTY)[:-3]])
def test_a_broken_checkpoint_says_so(body):
    """Bytes that are not a state raise CorruptLog, so that the caller folds the log instead."""
    with pytest.raises(CorruptLog):
        decode_state(body)


def _history(*facts, uid=ROOTS[0]):
    state = EMPTY
    for fact in facts:
        state = evolve(state, event_after(state, uid, fact))
    return state


def _admitted(*pods, minimum=1):
    return GangAdmitted(
        plan=PlanId("plan"), kind="PodGroup", priority=3, groups=(_leaf(minimum=minimum),),
        shapes=({"cpu": 1000},),
        assignments=tuple(
            AssignmentRecord(pod=f"ns/{p}", uid=PodUid(p), group="leaf", node=NODES[0]) for p in pods
        ),
    )  # fmt: skip


def _release(*pods):
    released = tuple(ReleasedPod(pod=f"ns/{p}", uid=PodUid(p), node=NODES[0]) for p in pods)
    return ReservationReleased(plan=PlanId("plan"), why="expired", pods=released)


def test_a_tree_that_lost_all_its_reservations_is_admitted_anew():
    """After the last release nothing of the admission is left: the next plan is an admission, not an extension."""
    state = _history(RootObserved(kind="PodGroup"), _admitted("a", "b"), _release("a", "b"))
    root = state.roots[ROOTS[0]]
    assert (root.phase, root.plan, root.groups, len(state.held_on)) == ("observed", None, (), 0)


def test_a_refusal_of_extras_does_not_undo_an_admission():
    """A refusal after an admission changes the answer, not the phase."""
    state = _history(
        RootObserved(kind="PodGroup"),
        _admitted("a"),
        GangRefused(outcome="impossible", reasons=("r",)),
    )
    root = state.roots[ROOTS[0]]
    assert root.phase == "admitted"
    assert root.answer.reasons == ("r",)


def test_an_admitted_tree_that_breaks_a_rule_can_still_be_satisfied():
    """A tree that became invalid while its members were on their way keeps its phase: it still holds room."""
    state = _history(
        RootObserved(kind="PodGroup"), _admitted("a"), RootInvalid(problems=("B9: x",))
    )
    root = state.roots[ROOTS[0]]
    assert (root.phase, root.answer.outcome) == ("admitted", "invalid")


def test_a_completed_root_leaves_nothing_but_its_versions():
    """RootCompleted forgets reservations, members, vetoes and the root; the stream goes on where it was."""
    veto = NodeVetoed(pod="ns/a", uid=PodUid("a"), node=NODES[0], by_shape=False, until_ms=1)
    bound = PodBound(plan=PlanId("plan"), pod="ns/a", uid=PodUid("a"), node=NODES[0], group="leaf")
    state = _history(
        RootObserved(kind="PodGroup"),
        _admitted("a", "b"),
        bound,
        veto,
        RootCompleted(why="deleted"),
    )
    left = (len(state.roots), len(state.held_on), len(state.root_of), len(state.vetoes))
    assert left == (0, 0, 0, 0)
    assert state.versions[ROOTS[0]] == 5


def test_a_root_may_complete_twice_in_one_fold():
    """A veto of the first life, from before the fold, is forgotten once."""
    veto = NodeVetoed(pod="ns/a", uid=PodUid("a"), node=NODES[0], by_shape=False, until_ms=1)
    observed, completed = RootObserved(kind="PodGroup"), RootCompleted(why="deleted")
    before = _history(observed, veto)
    events, state = [], before
    for fact in (completed, observed, completed):
        events.append(event_after(state, ROOTS[0], fact))
        state = evolve(state, events[-1])
    assert fold(before, events) == state
    assert not state.vetoes


def test_the_loss_of_a_stranger_makes_no_root():
    """A member of a root that the log does not know was never counted."""
    lost = MemberLost(pod="ns/a", uid=PodUid("a"), node=NODES[0], cause="gone")
    assert not _history(lost).roots


# --- barrier units and minima (SPEC C.7)


def _composite(name, minimum=1, parent="", *, basic=False):
    return GroupRecord(
        kind="CompositePodGroup", name=name, parent=parent, minimum=minimum, basic=basic
    )


GANG_OF_GANGS = (
    _composite("root", 2),
    _leaf("a", 2, parent="root"),
    _leaf("b", 3, parent="root"),
    _leaf("c", 1, parent="root", basic=True),
)
BASIC_OF_GANGS = (
    _composite("root", basic=True),
    _composite("left", 2, "root"),
    _leaf("l1", 2, parent="left"),
    _leaf("l2", 2, parent="left"),
    _leaf("right", 3, parent="root"),
    _leaf("free", 1, parent="root", basic=True),
)
BASIC_CHAIN = (
    _composite("root", basic=True),
    _composite("mid", 1, "root", basic=True),
    _leaf("leaf", 2, parent="mid"),
)


@pytest.mark.parametrize(
    ("groups", "leaf", "unit"),
    [
        ((_leaf("only", 4),), "only", "only"),
        ((_leaf("only", basic=True),), "only", "only"),
        (GANG_OF_GANGS, "a", "root"),
        (GANG_OF_GANGS, "c", "root"),
        (BASIC_OF_GANGS, "l1", "left"),
        (BASIC_OF_GANGS, "right", "right"),
        (BASIC_OF_GANGS, "free", "free"),
        (BASIC_CHAIN, "leaf", "leaf"),
    ],
)
def test_the_barrier_unit_is_the_first_gang_on_the_way_down(groups, leaf, unit):
    """A gang root waits as a whole; below Basic parents each child has a barrier of its own (DESIGN 2.6)."""
    assert barrier_unit(groups, leaf).name == unit


def test_a_leaf_outside_the_tree_has_no_unit():
    """Asking for an unknown leaf, or for a composite as a leaf, is a KeyError."""
    for name in ("nobody", "root"):
        with pytest.raises(KeyError):
            barrier_unit(GANG_OF_GANGS, name)


@pytest.mark.parametrize(
    ("groups", "counts", "whole"),
    [
        ((), {}, False),
        ((_leaf("only", 2),), {"only": 1}, False),
        ((_leaf("only", 2),), {"only": 2}, True),
        (GANG_OF_GANGS, {"a": 2, "b": 2}, False),
        (GANG_OF_GANGS, {"a": 2, "b": 3}, True),
        (GANG_OF_GANGS, {"a": 2, "c": 1}, True),  # a Basic child counts from its first pod
        (GANG_OF_GANGS, {"a": 9, "b": 1}, False),  # many pods of one child are still one child
        (BASIC_OF_GANGS, {"l1": 2}, False),
        (BASIC_OF_GANGS, {"l1": 2, "l2": 2}, True),
        (BASIC_OF_GANGS, {"free": 1}, True),
        (BASIC_CHAIN, {"leaf": 1}, False),
        (BASIC_CHAIN, {"leaf": 2}, True),
    ],
)
def test_minima_add_up_level_by_level(groups, counts, whole):
    """Gang composites count satisfied children, Basic ones need one, leaves count pods (SPEC C.1, C.7)."""
    assert satisfied(groups, counts) is whole


def test_one_unit_of_a_basic_root_does_not_ask_its_siblings():
    """The minimum of a unit is that of the unit alone."""
    right = next(g for g in BASIC_OF_GANGS if g.name == "right")
    assert satisfied(BASIC_OF_GANGS, {"right": 3}, right)
    assert not satisfied(BASIC_OF_GANGS, {"l1": 2, "l2": 2, "right": 2}, right)
