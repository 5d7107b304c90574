"""Two tenants whose trees wait for long: neither holds the capacity of the other for long, and both have their turn."""

from __future__ import annotations

from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_group, a_node, a_pod

AFTER_S = 600
LASTS_S = 100
LEASE_MS = 3_600_000_000
NODES = 4
STEP_S = 20


def a_tree(name, pods, *, namespace, gpu=1, **spec):
    """Return a flat gang of a namespace."""
    members = (
        a_pod(f"{name}-{i}", name, namespace=namespace, requests={GPU: gpu}, **spec)
        for i in range(pods)
    )
    return [a_group(name, gang=pods, namespace=namespace), *members]


def occupied(*namespaces):
    """Return a pod of one GPU on each node, of these namespaces by turns."""
    return [
        a_pod(
            f"runs-{i}", node=f"n{i}", namespace=namespaces[i % len(namespaces)], requests={GPU: 1}
        )
        for i in range(NODES)
    ]


async def full(*namespaces, **settings):
    """Lead a cluster of four GPUs that pods use which never end."""
    options = {"hold_capacity_after_s": AFTER_S, "hold_capacity_for_s": LASTS_S}
    stage = Stage(
        *(a_node(f"n{i}", gpu=1) for i in range(NODES)), *occupied(*namespaces),
        ttl_ms=LEASE_MS, preemption=False, **{**options, **settings},
    )  # fmt: skip
    await stage.lead()
    return stage


def holders(stage):
    """Return the trees for which capacity is held."""
    return sorted(hold.gang for hold in stage.leader.committed.capacity_holds.values())


async def later(stage, seconds, step_s=STEP_S):
    """Advance the clock in steps, with passes after each."""
    for _ in range(0, seconds, step_s):
        stage.clock.advance(step_s)
        await stage.settled()


async def test_the_second_tenant_has_its_turn_when_the_hold_of_the_first_ends():
    """Its search found no place beside that hold, and looks again at once when the hold has ended, not after a pause."""
    stage = await full("other", hold_capacity_max_percent=100)
    stage.cluster.add(*a_tree("large", NODES, namespace="first"))
    await stage.settled()
    stage.cluster.add(*a_tree("large", NODES, namespace="second"))
    await stage.settled()
    await later(stage, AFTER_S)
    assert holders(stage) == ["first/large"]
    await later(stage, LASTS_S)
    assert holders(stage) == ["second/large"]
    await stage.killed()
