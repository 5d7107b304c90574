"""Reconciliation of what changed finds what a comparison of everything finds, whatever happened in between."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.admit.node_rejections import RejectionEvidence
from extender.core.admit.plan_request import TreeParts, members_without_reservation
from extender.core.log.events import (
    AssignmentRecord,
    DriftDetected,
    GangAdmitted,
    GangObserved,
    GangRemoved,
    GangScheduled,
    GroupRecord,
    MemberTerminated,
    PodBound,
    ReservationReleased,
)
from extender.core.log.reservation_state import EMPTY, claims_of_kind, reservations_on
from extender.core.model.cluster_view import forest_after, without_node
from extender.core.model.ids import NodeName, PlanId
from extender.core.reconcile import reconciliation
from extender.core.reconcile.drift import NominationDrift, ReconcileContext
from extender.core.reconcile.reconciliation import Reconciliation
from tests.support.hypothesis_profile import examples
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.unit.core.reconcile.test_cluster_reconciliation import admitted
from tests.unit.core.support import fold_drafts, folded

NODES = ("n0", "n1", "n2")
PLACES = {
    "g": {"g-0": "n0", "g-1": "n1", "g-2": "n2"},
    "h": {"h-0": "n0", "h-1": "n1"},
    "t": {"i-0": "n0", "j-0": "n2"},  # a tree of the leaves i and j
}
LEAVES = {"i": "i-0", "j": "j-0"}
GROUPS = [*PLACES, *LEAVES]
MEMBERS = [name for places in PLACES.values() for name in places]
PODS = [*MEMBERS, "a", "b"]
CHANGES = st.one_of(
    st.tuples(st.just("bind"), st.sampled_from(MEMBERS)),
    st.tuples(st.just("bind"), st.sampled_from(MEMBERS)),
    st.tuples(st.just("fold"), st.just("")),
    st.tuples(st.just("fold"), st.just("")),
    st.tuples(st.just("binding"), st.sampled_from(MEMBERS)),
    st.tuples(st.sampled_from(NODES), st.sampled_from(["a", "b"])),
    st.tuples(st.sampled_from(NODES), st.sampled_from(PODS)),
    st.tuples(
        st.sampled_from(
            [
                "delete",
                "terminate",
                "nominate",
                "renominate",
                "leave",
                "binding",
                "posted",
                "select",
            ]
        ),
        st.sampled_from(PODS),
    ),
    st.tuples(
        st.sampled_from(["cordon", "shrink", "remove", "relabel", "register again"]),
        st.sampled_from(NODES),
    ),
    st.tuples(
        st.sampled_from(["delete group", "end group", "make group", "status", "start"]),
        st.sampled_from(GROUPS),
    ),
    st.tuples(st.just("admit"), st.sampled_from(list(PLACES))),
    st.tuples(st.just("lose history"), st.sampled_from(list(PLACES))),
    st.tuples(
        st.sampled_from(["expire", "lose answer", "another pod", "another group"]), st.just("")
    ),
)


class Walk:
    """Two gangs, a tree and two ordinary pods on three nodes; what changes between two looks."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(
            *(a_node(name, gpu=4) for name in NODES),
            *a_gang("g", pods=3, requests={GPU: 1}),
            *a_gang("h", pods=2, requests={GPU: 1}),
            *map(self._group, ("t", *LEAVES)),
            *(a_pod(pod, leaf, requests={GPU: 1}) for leaf, pod in LEAVES.items()),
            a_pod("a", requests={GPU: 1}),
            a_pod("b", requests={GPU: 2}),
        )
        self.state = EMPTY
        self.states = {}  # before each gang was admitted, and now
        for gang, places in PLACES.items():
            self.states[gang] = self.state
            self.state = self._admitted(gang, places)
        self.forest = forest_of(self.cluster.seen)
        self.now = ReconcileContext(actor="test", cause="test", replacement_hold_us=1_000)
        self.fresh = 0

    def apply(self, what: str, name: str) -> None:
        before = self.cluster.seen
        if what == "fold":
            self.state = fold_drafts(self.state, self.full())
        elif what == "lose history":
            self.state = self.states[name]
        elif what == "expire":
            self._now(expired=frozenset() if self.now.expired else frozenset(self.state.gangs))
        elif what == "lose answer":
            gone = frozenset(uid for uid in self.state.gang_of if uid not in before.pods)
            self._now(awaited=frozenset() if self.now.awaited else gone)
        elif what == "register again":
            if name not in before.nodes:
                self.cluster.add(a_node(name, gpu=3))
        elif name in before.nodes:
            self._change_node(what, NodeName(name))
        elif what == "another group":
            self.fresh += 1
            self.cluster.add(a_group(f"other-{self.fresh}", gang=1))
        elif name in ("", *GROUPS):
            self._change_group(what, name)
        else:
            self._change_pod(what, name)
        self.forest = forest_after(before, self.forest, self.cluster.seen)

    @staticmethod
    def _group(name):
        if name == "t":
            return a_group(name, gang=len(LEAVES), composite=True)
        if name in LEAVES:
            return a_group(name, gang=1, parent="t")
        return a_group(name, gang=len(PLACES[name]))

    def _admitted(self, name, places):
        if name != "t":
            return admitted(self.state, self.cluster, name, places)
        uids = {key.name: group.uid for key, group in self.cluster.seen.groups.items()}
        leaves = [
            GroupRecord(kind="PodGroup", name=leaf, parent="t", uid=uids[leaf]) for leaf in LEAVES
        ]
        root = GroupRecord(kind="CompositePodGroup", name="t", minimum=2, uid=uids["t"])
        event = GangAdmitted(
            plan=PlanId("plan-t"),
            kind="CompositePodGroup",
            priority=0,
            groups=(root, *leaves),
            shapes=({GPU: 1, "cpu": 1000, "pods": 1},),
            assignments=tuple(
                AssignmentRecord(
                    pod=f"default/{pod}",
                    uid=self.cluster.pod(pod).uid,
                    group=leaf,
                    node=NodeName(places[pod]),
                )
                for leaf, pod in LEAVES.items()
            ),
        )
        where = (uids["t"], "default/t")
        observed = GangObserved(kind="CompositePodGroup")
        return folded(self.state, (*where, observed), (*where, event))

    def full(self):
        return Reconciliation().decide(self.cluster.seen, self.state, self.forest, self.now)

    def _now(self, **changes) -> None:
        self.now = msgspec.structs.replace(self.now, **changes)

    def _change_node(self, what, name) -> None:
        node = self.cluster.seen.nodes[name]
        if what == "remove":
            self.cluster.seen = without_node(self.cluster.seen, name)
        elif what == "cordon":
            self.cluster.change_node(name, unschedulable=not node.unschedulable)
        elif what == "relabel":
            self.cluster.change_node(name, labels={**node.labels, "zone": str(self.fresh)})
        else:
            self.cluster.change_node(name, allocatable={**node.allocatable, GPU: 0})

    def _change_group(self, what, name) -> None:
        if what == "another pod":
            self.fresh += 1
            self.cluster.add(a_pod(f"g-{self.fresh + 5}", "g", requests={GPU: 1}))
            return
        group = next((g for g in self.cluster.seen.groups.values() if g.key.name == name), None)
        if group is None:
            if what == "make group":
                self.fresh += 1
                again = self._group(name)
                again["metadata"]["uid"] = f"{name}-{self.fresh}"
                self.cluster.add(again)
            return
        if what == "delete group":
            self.cluster.delete_group(name)
        elif what == "end group":
            self.cluster.change_group(name, deleting=True)
        elif what == "status":
            self.cluster.change_group(name, resource_version=f"{self.fresh}x")
        elif what == "start":
            self._now(started=self.now.started ^ {group.uid})
        elif what == "admit" and group.uid not in self.state.gangs:
            pods = self.cluster.seen.pods.values()
            there = {pod.name for pod in pods if pod.uid not in self.state.gang_of}
            groups = {key.name for key in self.cluster.seen.groups}
            if there >= PLACES[name].keys() and (name != "t" or groups >= LEAVES.keys()):
                self.state = self._admitted(name, PLACES[name])

    def _change_pod(self, what, name) -> None:
        pod = next((p for p in self.cluster.seen.pods.values() if p.name == name), None)
        if pod is None:
            return
        if what == "bind":
            held = self.state.gangs.get(self.state.gang_of.get(pod.uid))
            reservation = held.reservations.get(pod.uid) if held is not None else None
            if reservation is not None:
                self.cluster.change_pod(name, node=reservation.node, plan=reservation.plan)
        elif what in NODES:
            self.cluster.change_pod(name, node=NodeName(what))
        elif what == "delete":
            self.cluster.delete_pod(name)
        elif what == "terminate":
            self.cluster.change_pod(name, deleting=True)
        elif what == "nominate":
            self.cluster.change_pod(name, nominated=NodeName("n1"), gates=())
        elif what == "renominate":
            self.cluster.change_pod(name, nominated=NodeName("n2"))
        elif what == "leave":
            self.cluster.change_pod(name, group=None)
        elif what == "select":
            shape = msgspec.structs.replace(pod.shape, node_selector=(("zone", "none"),))
            self.cluster.change_pod(name, shape=shape)
        else:
            self._now(**{what: getattr(self.now, what) ^ {pod.uid}})


def in_order(drafts):
    return sorted(msgspec.json.encode(draft) for draft in drafts)


@examples(4_000, quick=45)
@given(st.lists(st.lists(CHANGES, min_size=1, max_size=3), max_size=14))
def test_the_same_events_as_a_comparison_of_everything(looks):
    """Pods, nodes and groups come, go and change, Bindings are sent, time passes; events are folded or lost."""
    walk, comparison = Walk(), Reconciliation()
    for changes in looks:
        for change in changes:
            walk.apply(*change)
        found = comparison.decide(walk.cluster.seen, walk.state, walk.forest, walk.now)
        assert in_order(found) == in_order(walk.full())


def test_a_reservation_is_released_when_its_binding_fails_after_another_pod_took_its_capacity():
    """A pod takes the node while a Binding is in flight, and nothing changes then but that the Binding is given up."""
    walk, comparison = Walk(), Reconciliation()
    look = lambda: comparison.decide(walk.cluster.seen, walk.state, walk.forest, walk.now)
    for name in ("i-0", "j-0"):
        walk.apply("bind", name)
    walk.state = fold_drafts(walk.state, look())
    walk.apply("binding", "g-0")
    walk.apply("binding", "h-0")
    assert look() == []
    walk.apply("n0", "b")  # of 4 devices: i-0, g-0, h-0 and 2 more
    assert look() == []
    walk.apply("binding", "h-0")
    (found,) = look()
    assert (found.gang, found.data.reason) == ("default/h", "superseded")


def test_members_that_run_are_found_again_when_the_log_has_lost_their_admission():
    """As after an older copy of the database: neither the tree nor the cluster has changed."""
    walk, comparison = Walk(), Reconciliation()
    look = lambda: comparison.decide(walk.cluster.seen, walk.state, walk.forest, walk.now)
    for name in PLACES["h"]:
        walk.apply("bind", name)
        walk.state = fold_drafts(walk.state, look())
    assert look() == []
    walk.apply("lose history", "h")
    found = look()
    assert {draft.data.object for draft in found if isinstance(draft.data, DriftDetected)} == {
        f"Pod/default/{name}" for name in PLACES["h"]
    }


def test_a_member_is_found_again_when_nothing_changed_but_its_node_that_is_back():
    """The node of one of two bound members is deleted and registers again, and nothing else changes then."""
    walk, comparison = Walk(), Reconciliation()

    def look():
        found = comparison.decide(walk.cluster.seen, walk.state, walk.forest, walk.now)
        walk.state = fold_drafts(walk.state, found)
        return [draft.data for draft in found]

    for name in PLACES["h"]:
        walk.apply("bind", name)
    while look():
        pass
    walk.apply("remove", "n1")
    assert [data.pod for data in look() if isinstance(data, MemberTerminated)] == ["default/h-1"]
    while look():
        pass
    walk.apply("register again", "n1")
    assert [(type(data), data.pod) for data in look()] == [(PodBound, "default/h-1")]


def test_a_member_of_a_group_that_is_made_again_belongs_to_one_root():
    """The log keeps the old root while a Binding of it is in flight; its members are those of the new one after that."""
    walk, comparison = Walk(), Reconciliation()
    old = next(uid for uid, root in walk.state.gangs.items() if root.gang == "default/h")

    def look():
        drafts = comparison.decide(walk.cluster.seen, walk.state, walk.forest, walk.now)
        assert in_order(drafts) == in_order(walk.full())
        walk.state = fold_drafts(walk.state, drafts)
        return [(draft.gang_uid == old, type(draft.data)) for draft in drafts]

    walk.apply("bind", "h-0")
    walk.apply("binding", "h-1")
    walk.apply("delete group", "h")
    walk.apply("make group", "h")
    assert look() == [(True, PodBound)]
    assert look() == []
    walk.apply("bind", "h-1")
    assert look() == [
        (True, PodBound),
        (True, GangRemoved),
        (False, GangObserved),
        *[(False, PodBound), (False, DriftDetected)] * 2,
    ]
    assert look() == [(False, GangScheduled)]
    assert {walk.state.gang_of[walk.cluster.pod(name).uid] for name in PLACES["h"]} == {"h-1"}


def record_compared(monkeypatch) -> list[str]:
    """Return a list that gets the name of each root that is compared as a whole from now on."""
    compared: list[str] = []
    inner = reconciliation.root_differences

    def record(view, state, root, **more):
        if state.gangs[root.uid] is root:
            compared.append(root.gang)
        return inner(view, state, root, **more)

    monkeypatch.setattr(reconciliation, "root_differences", record)
    return compared


def test_a_leaf_that_is_made_again_releases_its_tree_and_no_other_is_compared(monkeypatch):
    """In a namespace of three trees, of which none is running."""
    walk, comparison = Walk(), Reconciliation()
    look = lambda: comparison.decide(walk.cluster.seen, walk.state, walk.forest, walk.now)
    assert look() == []
    compared = record_compared(monkeypatch)
    walk.apply("delete group", "j")
    walk.apply("make group", "j")
    assert [type(draft.data) for draft in look()] == [ReservationReleased]
    assert compared == ["default/t"]


def test_members_that_are_bound_as_reserved_are_compared_alone(monkeypatch):
    """One by one; the last of the minimum makes the gang scheduled, which concerns the whole tree."""
    walk, comparison = Walk(), Reconciliation()
    look = lambda: comparison.decide(walk.cluster.seen, walk.state, walk.forest, walk.now)
    assert look() == []
    whole = record_compared(monkeypatch)
    for name in ("g-0", "g-1"):
        walk.apply("bind", name)
        found = look()
        assert [type(draft.data) for draft in found] == [PodBound]
        walk.state = fold_drafts(walk.state, found)
        assert look() == []
    assert whole == []
    walk.apply("bind", "g-2")
    assert [type(draft.data) for draft in look()] == [PodBound, GangScheduled]
    assert whole == ["default/g"]


@pytest.mark.parametrize("change", [("n0", "a"), ("nominate", "g-0"), ("another group", "")])
def test_what_concerns_no_tree_compares_none(change, monkeypatch):
    """An ordinary pod that fits, a nomination, a group of others."""
    walk, comparison = Walk(), Reconciliation()
    comparison.decide(walk.cluster.seen, walk.state, walk.forest, walk.now)
    monkeypatch.setattr(reconciliation, "root_differences", None)  # not called
    monkeypatch.setattr(reconciliation, "bound_outside", None)
    walk.apply(*change)
    assert comparison.decide(walk.cluster.seen, walk.state, walk.forest, walk.now) == []


# --- what else is kept from one look to the next -----------------------------------------------------


def altered(before, walk):
    """Return the members whose nomination was observed before and names another node now, and those observed now."""
    found, shown = set(), {}
    for node in walk.state.claims_on:
        for uid, reservation in reservations_on(walk.state, node).items():
            pod = walk.cluster.seen.pods.get(uid)
            if pod is None or pod.node is not None:
                continue
            if pod.nominated == reservation.node:
                shown[uid] = reservation.plan
            elif pod.nominated is not None and before.get(uid) == reservation.plan:
                found.add(pod.path)
    return found, shown


@examples(2_000, quick=45)
@given(st.lists(st.lists(CHANGES, min_size=1, max_size=3), max_size=14))
def test_nominations_and_wanting_members_are_those_of_a_fresh_look(looks):
    """Altered nominations, messages of nominated members, and whether a tree has members to place."""
    walk, drift, evidence, parts = Walk(), NominationDrift(), RejectionEvidence(), TreeParts()
    shown = {}
    for changes in looks:
        for change in changes:
            walk.apply(*change)
        view, state = walk.cluster.seen, walk.state
        found = drift.look(view, state, walk.now)
        expected, shown = altered(shown, walk)
        assert {draft.data.object for draft in found} == {f"Pod/{path}" for path in expected}
        evidence.note_messages(view, state)
        assert evidence._messages.keys() == {
            uid
            for uid in (reservation.uid for reservation in claims_of_kind(state, "reservation"))
            if uid in view.pods and view.pods[uid].node is None
        }
        for tree in walk.forest.trees.values():
            root = state.gangs.get(tree.root.uid)
            assert parts.wanting(tree, root) == bool(members_without_reservation(tree, root))


def test_a_nomination_that_another_client_changes_is_found_once():
    """Also where nothing else has changed."""
    walk, drift = Walk(), NominationDrift()
    walk.apply("nominate", "g-1")
    assert drift.look(walk.cluster.seen, walk.state, walk.now) == []
    walk.apply("renominate", "g-1")
    (found,) = drift.look(walk.cluster.seen, walk.state, walk.now)
    assert found.data.kind == "nomination-altered"
    assert drift.look(walk.cluster.seen, walk.state, walk.now) == []
