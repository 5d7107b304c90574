"""Two tenants whose trees wait for long: neither holds the capacity of the other for long, and both have their turn."""

from __future__ import annotations

from collections import Counter

from extender.core.log.events import CapacityHoldReleased
from extender.snapshots.state_loader import decode_state, encode_state
from tests.support.service.fakes import Stage
from tests.support.service.manifest_builders import GPU, a_group, a_node, a_pod
from tests.unit.queries.explain.test_explain_service import explaining

AFTER_S = 600
LASTS_S = 100
LEASE_MS = 3_600_000_000
NODES = 4
STEP_S = 20
DAY_S = 86_400


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


async def delay_of(stage):
    """Return the text of `explain` about the delay of the next hold of the first tenant's tree."""
    reasons, _ = await explained(stage, "podgroup/first/large")
    (text,) = [text for text in reasons if "no capacity is held for it before" in text]
    return text


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


async def explained(stage, name):
    """Return reasons and help of `explain` about a gang."""
    found = await explaining(stage)(name)
    return found.reasons, found.help


async def test_a_tree_that_only_its_own_namespace_blocks_gets_none_and_explain_has_the_reason():
    """What would help is true: without the named pods it is admitted."""
    stage = await full("first")
    stage.cluster.add(*a_tree("large", 2, namespace="first"))
    await stage.settled()
    await later(stage, AFTER_S)
    assert holders(stage) == []
    reasons, help_ = await explained(stage, "podgroup/first/large")
    assert any("as soon as only pods of its own namespace leave" in text for text in reasons)
    (text,) = [text for text in help_ if "have ended" in text]
    names = text.partition(": ")[2].split(", ")
    assert len(names) == 2
    for name in names:
        stage.cluster.delete_pod(name)
    await stage.settled()
    assert stage.root("first/large").phase == "admitted"
    await stage.killed()


async def test_a_tree_that_needs_pods_of_others_to_leave_gets_one_although_its_own_run_too():
    stage = await full("first", "second")
    stage.cluster.add(*a_tree("large", 3, namespace="first"))
    await stage.settled()
    await later(stage, AFTER_S)
    assert holders(stage) == []
    assert "percent" in "".join((await explained(stage, "podgroup/first/large"))[0])
    await stage.killed()
    stage = await full("first", "second", hold_capacity_max_percent=75)
    stage.cluster.add(*a_tree("large", 3, namespace="first"))
    await stage.settled()
    await later(stage, AFTER_S)
    assert holders(stage) == ["first/large"]
    await stage.killed()


async def test_a_hold_of_its_own_begins_when_the_own_pods_that_blocked_it_are_gone():
    """Others took what these freed: a search follows at once, and the sentence is gone."""
    stage = await full("first", "second")
    stage.cluster.add(*a_tree("large", 2, namespace="first"))
    await stage.settled()
    await later(stage, AFTER_S)
    assert holders(stage) == []
    for name in ("runs-0", "runs-2"):
        node = stage.cluster.pod(f"first/{name}").node
        stage.cluster.delete_pod(f"first/{name}")
        stage.cluster.add(a_pod(f"new-{name}", node=node, namespace="second", requests={GPU: 1}))
    await stage.settled()
    reasons, _ = await explained(stage, "podgroup/first/large")
    assert not any("own namespace" in text for text in reasons)
    await later(stage, STEP_S)
    assert holders(stage) == ["first/large"]
    await stage.killed()


async def test_explain_has_that_a_tree_needs_more_than_the_share_and_what_would_help():
    """Both ways out are true: a smaller minimum, and the percentage."""
    stage = await full("other")
    stage.cluster.add(*a_tree("large", 3, namespace="first"))
    await stage.settled()
    await later(stage, AFTER_S)
    reasons, help_ = await explained(stage, "podgroup/first/large")
    (text,) = [text for text in reasons if "no capacity is held" in text]
    assert (
        "its minimum needs nvidia.com/gpu 3; the nodes that its pods may use have nvidia.com/gpu 4, "
        "of which 50 percent may be held for one namespace"
    ) in text
    (text,) = [text for text in help_ if "to have capacity held" in text]
    assert "at most nvidia.com/gpu 2, or set GANG_EXTENDER_HOLD_CAPACITY_MAX_PERCENT to 75" in text
    group = stage.cluster.group("large")
    stage.cluster.change_group("large", minimum=group.minimum - 1)
    await later(stage, 60)
    assert holders(stage) == ["first/large"]
    await stage.killed()


async def test_two_tenants_that_are_never_admitted_hold_a_part_of_the_capacity_for_a_part_of_the_time():
    """Over two days; before, each had all of it for an hour of each two."""
    stage = await full("other", hold_capacity_for_s=3600)
    for name in ("first", "second"):
        stage.cluster.add(*a_tree("large", 2, namespace=name))
    await stage.settled()
    held_s, step_s = Counter(), 600
    for _ in range(0, 2 * DAY_S, step_s):
        await later(stage, step_s, step_s)
        held_s.update(dict.fromkeys(holders(stage), step_s))
        assert len(stage.leader.committed.claims_on) <= NODES
    for name in ("first/large", "second/large"):
        assert 5 * 3600 <= held_s[name] <= 7 * 3600, held_s
    assert "its namespace had holds of 6h" in await delay_of(stage)
    await stage.killed()


async def test_what_a_namespace_held_is_known_after_a_restart():
    """The delay follows from the log, from its snapshots too, and `explain` has it."""
    stage = await full("other")
    stage.cluster.add(*a_tree("large", 2, namespace="first"))
    await stage.settled()
    await later(stage, AFTER_S + LASTS_S)
    (ended,) = stage.event_data(CapacityHoldReleased)
    assert ended.reason == "expired"
    before = stage.leader.committed.unused_holds
    assert before["first"].until_us == before["first"].ended_us + LASTS_S * 1_000_000
    delay = await delay_of(stage)
    assert "its namespace had holds of 100s in all that no admission followed" in delay
    assert decode_state(encode_state(stage.leader.committed)).unused_holds == before
    await stage.killed()
    again = Stage(
        database=stage.database, cluster=stage.cluster, clock=stage.clock, preemption=False,
        hold_capacity_after_s=AFTER_S, hold_capacity_for_s=LASTS_S, ttl_ms=LEASE_MS,
    )  # fmt: skip
    await again.lead()
    assert again.leader.committed.unused_holds == before
    await again.settled()
    assert holders(again) == []
    assert await delay_of(again) == delay
    await later(again, LASTS_S)
    assert holders(again) == ["first/large"]
    await again.killed()
