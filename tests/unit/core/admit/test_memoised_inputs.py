"""What is kept from one look to the next equals what a fresh look gives, whatever happened in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extender.core.capacity.free_capacity import NodeRowCache
from extender.core.log.reservation_state import EMPTY
from extender.core.model.cluster_view import forest_after, without_node
from extender.core.model.ids import NIL_GANG, NodeName
from extender.core.reconcile.drift import ReconcileContext
from extender.core.reconcile.reconciliation import Reconciliation
from tests.support.service.fakes import FakeCluster, forest_of
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
from tests.unit.core.reconcile.test_cluster_reconciliation import admitted
from tests.unit.core.support import fold_drafts

NODES = ("n0", "n1", "n2")
MEMBERS = ("g-0", "g-1")
CHANGES = st.sampled_from(
    [
        *(("assign", name, node) for name in ("a", "b", *MEMBERS) for node in NODES),
        *(("delete", name, "") for name in ("a", "b", *MEMBERS)),
        *(("leave", name, "") for name in MEMBERS),
        *(("cordon", name, "") for name in NODES),
        *(("shrink", name, "") for name in NODES),
        *(("remove", name, "") for name in NODES),
        ("expire", "", ""),
        ("fold", "", ""),
        ("nothing", "", ""),
    ]
)


class Walk:
    """Two ordinary pods and a gang of two on three nodes, with or without reservations."""

    def __init__(self, *, held: bool) -> None:
        self.cluster = FakeCluster(
            *(a_node(name, gpu=2) for name in NODES),
            *a_gang("g", pods=2, requests={GPU: 1}),
            a_pod("a", requests={GPU: 1}),
            a_pod("b", requests={GPU: 2}),
        )
        self.state = EMPTY
        if held:
            self.state = admitted(EMPTY, self.cluster, "g", {"g-0": "n0", "g-1": "n1"})
        self.forest = forest_of(self.cluster.seen)
        self.now = ReconcileContext(actor="test", cause="test")

    def apply(self, what: str, name: str, node: str) -> None:
        cluster, before = self.cluster, self.cluster.seen
        if what == "expire":
            uids = frozenset() if self.now.expired else frozenset(self.state.gangs)
            self.now = ReconcileContext(actor="test", cause="test", expired=uids)
        elif what == "fold":
            drafts = Reconciliation().decide(cluster.seen, self.state, self.forest, self.now)
            self.state = fold_drafts(self.state, drafts)
        elif what == "remove":
            cluster.seen = without_node(cluster.seen, NodeName(name))
        elif name in cluster.seen.nodes:
            node_now = cluster.seen.nodes[NodeName(name)]
            if what == "cordon":
                cluster.change_node(name, unschedulable=not node_now.unschedulable)
            else:
                cluster.change_node(name, allocatable={**node_now.allocatable, GPU: 0})
        elif any(pod.name == name for pod in cluster.seen.pods.values()):
            if what == "assign":
                cluster.change_pod(name, node=NodeName(node))
            elif what == "leave":
                cluster.change_pod(name, group=None)
            elif what == "delete":
                cluster.delete_pod(name)
        self.forest = forest_after(before, self.forest, cluster.seen)


@given(st.booleans(), st.lists(CHANGES, max_size=14))
def test_kept_rows_are_those_of_a_fresh_look(held, changes):
    """A row is looked at when its node, its usage or what is held on it changed, and only then made anew."""
    walk, kept = Walk(held=held), NodeRowCache()
    for change in changes:
        walk.apply(*change)
        rows = [
            made.rows(view, made.taken(view, walk.state, priority=0, gang_uid=NIL_GANG))
            for made in (kept, NodeRowCache())
            for view in (walk.cluster.seen,)
        ]
        assert rows[0] == rows[1]
