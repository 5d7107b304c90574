"""Rules between the members of one gang (H10): kube-scheduler judges them in an order that we do not see."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.e2e.scenarios.conftest import Story, member
from tests.e2e.scenarios.test_broken_trees import until_condition, until_event
from tests.support.service.manifest_builders import RACK, a_group, a_node, a_pod

pytestmark = [pytest.mark.e2e, pytest.mark.lived_in("long")]
ONE = {"nvidia.com/gpu": 1}
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
Object = dict[str, Any]


def rule(kind: str, key: str, **labels: str) -> Object:
    """Make a required rule of a pod about pods with labels."""
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def labelled(name: str, group: str, app: str, **spec: Any) -> Object:
    made = member(name, group, requests=ONE, **spec)
    made["metadata"]["labels"]["app"] = app
    return made


def check_rounds(events: list[Object], most: int) -> None:
    """Check that what was learned led somewhere soon."""
    kinds = [f["type"] for f in events]
    assert kinds.count("GangAdmitted") <= most, [(f["type"], f["summary"]) for f in events]


@pytest.mark.full
@pytest.mark.lived_in("long")
async def test_one_member_per_node(story: Story) -> None:
    """Members that keep away from each other: the first rack is too small for that, which is planned for."""
    await story.create(
        *(a_node(f"a{i}", {RACK: "a"}, gpu=2) for i in range(2)),
        *(a_node(f"b{i}", {RACK: "b"}, gpu=8) for i in range(4)),
        a_group("g", gang=4, topo=RACK),
    )
    apart = rule("podAntiAffinity", HOST, app="g")
    await story.create(*(labelled(f"g-{n}", "g", "g", affinity=apart) for n in range(4)))
    bound = await story.until_bound(4, prefix="g-")
    assert set(bound.values()) == {"b0", "b1", "b2", "b3"}
    events = await story.check_events()
    check_rounds(events, 1)
    assert not [f for f in events if f["type"] == "NodeRejected"]


@pytest.mark.kubernetes("1.37", "1.36")
@pytest.mark.parametrize("first", ["needs", "needed"])
@pytest.mark.lived_in("long")
async def test_a_member_that_needs_another(story: Story, first: str) -> None:
    """A runs only in the zone of B: whichever is older, both are bound, in one zone."""
    await story.create(
        *(a_node(f"{row}{i}", {ZONE: f"z{i}"}, gpu=1) for i in range(4) for row in "mn"),
        a_group("g", gang=2),
    )
    a = labelled("g-a", "g", "a", affinity=rule("podAffinity", ZONE, app="b"))
    b = labelled("g-b", "g", "b")
    await story.create(*((a, b) if first == "needs" else (b, a)))
    bound = await story.until_bound(2, prefix="g-")
    assert bound["g-a"][1] == bound["g-b"][1], bound
    check_rounds(await story.check_events(), 3)


@pytest.mark.full
async def test_a_rule_that_nothing_fulfils_is_reported(story: Story) -> None:
    """Proved, with the rule in the reason; the pod that it asks for comes, and the gang goes."""
    await story.create(
        *(a_node(f"n{i}", {ZONE: f"z{i}"}, gpu=8) for i in range(2)), a_group("g", gang=1)
    )
    near = rule("podAffinity", ZONE, app="db")
    await story.create(labelled("g-0", "g", "g", affinity=near))
    text = f"pod affinity over {ZONE} keeps it off the 2 nodes it could run on"
    await until_condition(story, "PodGroup", "g", "Unschedulable", text)
    assert not await story.bound()
    await story.create(a_pod("db", node="n1", metadata={"labels": {"app": "db"}}))
    assert await story.until_bound(1, prefix="g-") == {"g-0": "n1"}
    check_rounds(await story.check_events(), 1)


@pytest.mark.full
async def test_a_rule_that_the_planner_does_not_see_is_reported(story: Story) -> None:
    """Not "Unschedulable", which would ask for another node; pod and group report what may be the cause."""
    await story.create(a_node("n0", gpu=8), a_node("n1", gpu=8), a_group("g", gang=1))
    alone = rule("podAffinity", ZONE, app="nowhere")
    (term,) = alone["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    term["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
    await story.create(labelled("g-0", "g", "g", affinity=alone))
    text = f"pod affinity over {ZONE}"
    await until_condition(story, "PodGroup", "g", "UnsupportedDependency", text)
    await until_event(story, "g-0", f"rules between pods may be the cause: {text}")
    assert not await story.bound()


@pytest.mark.full
async def test_members_spread_over_zones(story: Story) -> None:
    """No zone gets more than one member above another, whatever else it could hold; all are bound at once."""
    await story.create(
        *(a_node(f"a{i}", {ZONE: "a"}, gpu=8) for i in range(3)),
        *(a_node(f"{zone}0", {ZONE: zone}, gpu=8) for zone in "bc"),
        a_group("g", gang=7),
    )
    spread = {
        "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "g"}},
    }  # fmt: skip
    await story.create(
        *(labelled(f"g-{n}", "g", "g", topologySpreadConstraints=[spread]) for n in range(7))
    )
    bound = await story.until_bound(7, prefix="g-")
    assert sorted(Counter(node[0] for node in bound.values()).values()) == [2, 2, 3]
    check_rounds(await story.check_events(), 2)


@pytest.mark.full
async def test_members_that_all_want_one_zone(story: Story) -> None:
    """Affinity to one another is planned as a domain: the zone that holds them all, not the first that holds one."""
    await story.create(
        *(
            a_node(f"{zone}{i}", {ZONE: zone}, gpu=gpus)
            for zone, gpus in (("a", 1), ("b", 2))
            for i in range(2)
        ),
        a_group("g", gang=4),
    )
    near = rule("podAffinity", ZONE, app="g")
    await story.create(*(labelled(f"g-{n}", "g", "g", affinity=near) for n in range(4)))
    bound = await story.until_bound(4, prefix="g-")
    assert {node[0] for node in bound.values()} == {"b"}
    check_rounds(await story.check_events(), 1)


@pytest.mark.full
async def test_pods_that_run_already_keep_members_off(story: Story) -> None:
    """A foreign pod with anti-affinity against the gang's labels: its zone is not even tried."""
    away = rule("podAntiAffinity", ZONE, app="g")
    await story.create(
        *(a_node(f"{zone}{i}", {ZONE: zone}, gpu=1) for zone in "ab" for i in range(2)),
        a_pod("hermit", node="a0", affinity=away),
        a_group("g", gang=2),
    )
    await story.create(*(labelled(f"g-{n}", "g", "g") for n in range(2)))
    bound = await story.until_bound(2, prefix="g-")
    assert set(bound.values()) == {"b0", "b1"}
    events = await story.check_events()
    check_rounds(events, 1)
    assert not [f for f in events if f["type"] == "NodeRejected"]
