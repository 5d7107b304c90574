"""Which reservations kube-scheduler would not honour any more, however many of them share a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.log.reservation_state import EMPTY
from extender.core.model.ids import NodeName
from extender.core.model.nodes import Taint
from extender.core.reconcile.reservation_checks import unfit_pods
from tests.support.service.fakes import FakeCluster
from tests.support.service.manifest_builders import a_gang, a_node
from tests.unit.core.reconcile.test_cluster_reconciliation import admitted


def pinned(*nodes: str, operator: str = "In") -> dict[str, object]:
    """Make the affinity of a pod that selects nodes by their name, as the pods of a DaemonSet do."""
    field = {"key": "metadata.name", "operator": operator, "values": list(nodes)}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def unfit(cluster: FakeCluster, where: dict[str, str]) -> dict[str, str]:
    """Admit gang g as given, and give the text per name of a pod that is judged unfit."""
    state = admitted(EMPTY, cluster, "g", where)
    root = state.gangs[cluster.group("g").uid]
    found = unfit_pods(cluster.seen, root, root.reservations)
    return {cluster.seen.pods[uid].name: text for uid, text in found.items()}


@pytest.mark.parametrize("pods", [1, 2, 5])
def test_members_pinned_to_one_node_by_name_are_all_fit_there(pods):
    """A node that a pod selects by its name is selected for each member on it (matchFields, In)."""
    cluster = FakeCluster(
        a_node("n0"), a_node("n1"), *a_gang("g", pods=pods, affinity=pinned("n0"))
    )
    assert unfit(cluster, {f"g-{n}": "n0" for n in range(pods)}) == {}


@pytest.mark.parametrize("pods", [1, 2, 5])
def test_members_on_a_node_excluded_by_name_are_all_unfit(pods):
    """A node that a pod excludes by its name is excluded for each member on it (matchFields, NotIn)."""
    affinity = pinned("n0", operator="NotIn")
    cluster = FakeCluster(a_node("n0"), a_node("n1"), *a_gang("g", pods=pods, affinity=affinity))
    text = "node n0 is not one that the pod selects any more:"
    found = unfit(cluster, {f"g-{n}": "n0" for n in range(pods)})
    assert found == {f"g-{n}": text for n in range(pods)}


NODES = ("n0", "n1", "n2")
AFFINITIES = st.one_of(
    st.none(),
    st.builds(
        lambda names, operator: pinned(*sorted(names), operator=operator),
        st.sets(st.sampled_from(NODES), min_size=1),
        st.sampled_from(("In", "NotIn")),
    ),
)


@given(
    affinity=AFFINITIES,
    selector=st.sampled_from(({}, {"pool": "a"})),
    pools=st.lists(st.sampled_from("ab"), min_size=3, max_size=3),
    cordoned=st.sets(st.sampled_from(NODES)),
    tainted=st.sets(st.sampled_from(NODES)),
    where=st.lists(st.sampled_from(NODES), min_size=1, max_size=7),
)
def test_a_verdict_does_not_depend_on_who_shares_the_node(
    affinity, selector, pools, cordoned, tainted, where
):
    """The text of each reservation is the one that it gets when it is the only reservation."""
    spec = {"nodeSelector": selector} | ({"affinity": affinity} if affinity else {})
    nodes = [a_node(n, {"pool": pool}) for n, pool in zip(NODES, pools, strict=True)]
    cluster = FakeCluster(*nodes, *a_gang("g", pods=len(where), **spec))
    for name in sorted(cordoned):
        cluster.change_node(name, unschedulable=True)
    for name in sorted(tainted):
        cluster.change_node(name, taints=(Taint(key="down", effect="NoSchedule"),))
    state = admitted(EMPTY, cluster, "g", {f"g-{n}": node for n, node in enumerate(where)})
    root = state.gangs[cluster.group("g").uid]
    together = unfit_pods(cluster.seen, root, root.reservations)
    alone = {}
    for uid, reservation in root.reservations.items():
        alone |= unfit_pods(cluster.seen, root, {uid: reservation})
    assert together == alone
    for uid, text in together.items():
        assert NodeName(text.split()[1]) == root.reservations[uid].node
