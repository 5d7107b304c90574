"""The fold: in pieces or at once the same, indexes true after every event, nothing skipped over."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from extender.core.log.events import (
    AssignmentRecord,
    GangAdmitted,
    GangInvalid,
    GangObserved,
    GangRemoved,
    GangUnschedulable,
    MemberTerminated,
    NodeRejected,
    PodBound,
    ReleasedPod,
    ReservationReleased,
)
from extender.core.log.reservation_state import EMPTY
from extender.core.log.state_projector import StateProjector, fold
from extender.core.model.errors import CorruptLog
from extender.core.model.ids import GangUid, PlanId, PodUid
from extender.queries.state.state_dto import Scope
from extender.queries.state.state_report import build_state_report, compare
from extender.snapshots.state_loader import (
    decode_foldable,
    decode_historical,
    decode_state,
    encode_historical,
    encode_state,
    live_streams_only,
)
from tests.support.hypothesis_profile import examples
from tests.support.logs.random_logs import NODES, ROOTS, a_leaf, event_after, histories, lean
from tests.support.service.fakes import check_state


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
    folding = StateProjector(start, bulk=bulk)
    for at in range(cut, len(events), page):
        folding.apply(events[at : at + page])
    for event in events[cut:]:
        before = fold(before, [event])
    assert folding.close() == before
    assert start == fold(EMPTY, events[:cut])
    check_state(before)


@examples(200)
@given(histories())
def test_invariants_hold_after_every_event(events):
    """After every prefix the indexes equal their recomputation from the roots, and positions are contiguous."""
    state = EMPTY
    for number, event in enumerate(events, start=1):
        state = fold(state, [event])
        check_state(state)
        assert state.position == number
        assert sum(state.stream_versions.values()) == number


@given(histories())
def test_a_checkpoint_is_the_state(events):
    """encode_state and decode_state are a round trip for every state a log can lead to."""
    state = fold(EMPTY, events)
    again = decode_state(encode_state(state))
    assert again == state
    check_state(again)


def gone_on_from(kept, events, **how):
    folding = StateProjector(kept, **how)
    folding.apply(events)
    return folding.close()


@given(histories(), st.integers(0, 25), st.booleans())
def test_without_the_versions_of_ended_streams_it_is_the_state_to_go_on_from(events, cut, bulk):
    """Cut anywhere: a comparison of memory with the log needs no more, and misses no stream that lives."""
    before = fold(EMPTY, events[:cut])
    kept = decode_foldable(encode_historical(before))
    assert kept == live_streams_only(before)
    after = gone_on_from(kept, events[cut:], bulk=bulk, knows_ended=False)
    check_state(after)
    assert live_streams_only(after) == live_streams_only(fold(EMPTY, events))


@given(histories(), st.integers(0, 25), st.booleans())
def test_what_is_kept_to_look_back_from_is_the_state_too(events, cut, bulk):
    """Cut anywhere and gone on from there: but for what no query about the past needs it is the fold of everything."""
    before = fold(EMPTY, events[:cut])
    kept = decode_historical(encode_historical(before))
    assert kept == lean(before)
    after, whole = gone_on_from(kept, events[cut:], bulk=bulk, past=True), fold(EMPTY, events)
    assert lean(after) == lean(whole)
    assert after.claims_on == after.gang_of == Map()
    assert kept == lean(before)
    assert build_state_report(after, Scope()) == build_state_report(whole, Scope())
    assert compare(kept, after, Scope()) == compare(before, whole, Scope())


@given(histories().filter(bool))
def test_no_gap_is_skipped_over_when_looking_back(events):
    """Of a stream that lives the version has to be right; of one that is not known it may have ended before."""
    state = fold(EMPTY, events)
    for root in state.gangs.values():
        after = event_after(state, root.uid, GangInvalid(problems=("x",)))
        StateProjector(lean(state), past=True).apply([after])
        for wrong in (
            msgspec.structs.replace(after, stream_version=after.stream_version + 1),
            msgspec.structs.replace(after, position=after.position + 1),
        ):
            with pytest.raises(CorruptLog):
                StateProjector(lean(state), past=True).apply([wrong])
    folding = StateProjector(lean(state), past=True)
    folding.apply([event_after(state, GangUid("ended before"), GangInvalid(problems=("x",)))])
    assert folding.close().gangs[GangUid("ended before")].phase == "invalid"


@given(histories().filter(bool), st.data())
def test_a_gap_is_never_skipped_over(events, data):
    """A missing, repeated or swapped event, or a wrong version, raises CorruptLog."""
    at = data.draw(st.integers(0, len(events) - 1))
    broken = msgspec.structs.replace(events[at], stream_version=events[at].stream_version + 1)
    with pytest.raises(CorruptLog):
        fold(EMPTY, [*events[:at], broken])
    with pytest.raises(CorruptLog):
        fold(EMPTY, [*events[: at + 1], events[at]])
    if at + 1 < len(events):
        with pytest.raises(CorruptLog):
            fold(EMPTY, [*events[:at], *events[at + 1 :]])


@pytest.mark.parametrize("encode", [encode_state, encode_historical])
@pytest.mark.parametrize("broken", [b"", b"nonsense", None])
def test_a_broken_checkpoint_is_refused(encode, broken):
    """Bytes that are not a state raise CorruptLog, so that the caller folds the log instead."""
    body = encode(EMPTY)[:-3] if broken is None else broken
    with pytest.raises(CorruptLog):
        (decode_state if encode is encode_state else decode_historical)(body)


def _history(*entries, uid=ROOTS[0]):
    state = EMPTY
    for entry in entries:
        state = fold(state, [event_after(state, uid, entry)])
    return state


def _admitted(*pods, minimum=1):
    return GangAdmitted(
        plan=PlanId("plan"), kind="PodGroup", priority=3, groups=(a_leaf(minimum=minimum),),
        shapes=({"cpu": 1000},),
        assignments=tuple(
            AssignmentRecord(pod=f"ns/{p}", uid=PodUid(p), group="leaf", node=NODES[0]) for p in pods
        ),
    )  # fmt: skip


def _release(*pods):
    released = tuple(ReleasedPod(pod=f"ns/{p}", uid=PodUid(p), node=NODES[0]) for p in pods)
    return ReservationReleased(plan=PlanId("plan"), reason="expired", pods=released)


def test_a_tree_that_lost_all_its_reservations_is_admitted_anew():
    """After the last release nothing of the admission is left: the next plan is an admission, not an extension."""
    state = _history(GangObserved(kind="PodGroup"), _admitted("a", "b"), _release("a", "b"))
    root = state.gangs[ROOTS[0]]
    assert (root.phase, root.plan, root.groups, len(state.claims_on)) == (
        "observed",
        None,
        (),
        0,
    )


def test_a_refusal_of_extras_does_not_undo_an_admission():
    """A refusal after an admission changes the answer, not the phase."""
    state = _history(
        GangObserved(kind="PodGroup"),
        _admitted("a"),
        GangUnschedulable(outcome="impossible", reasons=("r",)),
    )
    root = state.gangs[ROOTS[0]]
    assert root.phase == "admitted"
    assert root.last_decision.reasons == ("r",)


def test_an_admitted_tree_that_breaks_a_rule_can_still_be_satisfied():
    """A tree that became invalid while its members were on their way keeps its phase: it still holds capacity."""
    state = _history(
        GangObserved(kind="PodGroup"), _admitted("a"), GangInvalid(problems=("B9: x",))
    )
    root = state.gangs[ROOTS[0]]
    assert (root.phase, root.last_decision.outcome) == ("admitted", "invalid")


def test_a_completed_root_leaves_nothing_but_its_versions():
    """GangRemoved forgets reservations, members, rejections and the root; the stream continues with the next version."""
    rejection = NodeRejected(pod="ns/a", uid=PodUid("a"), node=NODES[0], by_shape=False, until_ms=1)
    bound = PodBound(plan=PlanId("plan"), pod="ns/a", uid=PodUid("a"), node=NODES[0], group="leaf")
    state = _history(
        GangObserved(kind="PodGroup"),
        _admitted("a", "b"),
        bound,
        rejection,
        GangRemoved(reason="deleted"),
    )
    left = (len(state.gangs), len(state.claims_on), len(state.gang_of), len(state.rejections))
    assert left == (0, 0, 0, 0)
    assert state.stream_versions[ROOTS[0]] == 5


def test_a_root_may_complete_twice_in_one_fold():
    """A rejection from before the fold, of a root that was deleted, is removed once."""
    rejection = NodeRejected(pod="ns/a", uid=PodUid("a"), node=NODES[0], by_shape=False, until_ms=1)
    observed, completed = GangObserved(kind="PodGroup"), GangRemoved(reason="deleted")
    before = _history(observed, rejection)
    events, state = [], before
    for entry in (completed, observed, completed):
        events.append(event_after(state, ROOTS[0], entry))
        state = fold(state, [events[-1]])
    assert fold(before, events) == state
    assert not state.rejections


def test_the_loss_of_a_stranger_makes_no_root():
    """A member of a root that the log does not know was never counted."""
    lost = MemberTerminated(pod="ns/a", uid=PodUid("a"), node=NODES[0], cause="unknown")
    assert not _history(lost).gangs


@pytest.mark.parametrize("ends_first", [0, 1])
def test_a_pod_that_older_versions_recorded_for_two_roots_can_leave_both(ends_first):
    """A group that was made again while a Binding of the old one was in flight: each of the roots ends, the log goes on."""
    bound = PodBound(plan=PlanId("plan"), pod="ns/a", uid=PodUid("a"), node=NODES[0], group="leaf")
    lost = MemberTerminated(pod="ns/a", uid=PodUid("a"), node=NODES[0], cause="unknown")
    removed = GangRemoved(reason="deleted")
    events, state = [], EMPTY
    first, second = ROOTS[ends_first], ROOTS[1 - ends_first]
    for uid, data in (
        *[(uid, data) for uid in ROOTS[:2] for data in (GangObserved(kind="PodGroup"), bound)],
        (first, removed),
        (second, lost),
        (second, removed),
    ):
        events.append(event_after(state, uid, data))
        state = fold(state, [events[-1]])
    assert fold(EMPTY, events) == state
    check_state(state)
    assert not state.gang_of
