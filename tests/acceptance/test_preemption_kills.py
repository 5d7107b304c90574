"""Kill the real service while it preempts: the same victims, none beside them, and the capacity stays the preemptor's."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import yaml

from deploy.demo.kube_scheduler import Player
from tests.acceptance.test_process_kills import a_service, play_until, recorded
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, a_gang, a_group, a_node, a_pod
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres
POINTS = ["planned", "marked", "first gone", "all gone", "nominated"]
VICTIMS = 4


@pytest.fixture
def service(database_url):
    """A service on a database that goes on when it is killed."""
    with a_service(GANG_EXTENDER_DATABASE_URL=database_url) as made:
        yield made


def write(service, name, objects):
    hidden = service.folder / f"{name}.tmp"
    hidden.write_text(yaml.safe_dump_all(objects))
    hidden.rename(service.manifests / f"{name}.yaml")


def full_nodes(number):
    """Give two nodes of their own, a unit that fills them, and pods of low priority on a node beside them."""
    where = {"story": str(number)}
    nodes = [a_node(f"s{number}-{n}", where, gpu=8) for n in range(3)]
    unit = [
        a_pod(f"low{number}-{n}", f"low{number}", node=f"s{number}-{n % 2}", requests={GPU: 4}, priority=1)
        for n in range(VICTIMS)
    ]  # fmt: skip
    beside = a_pod(f"beside{number}", node=f"s{number}-2", requests={GPU: 8}, priority=2)
    group = a_group(f"low{number}", gang=VICTIMS, whole=True, priority=1)
    return [*nodes, group, *unit, beside]


def preemptor(number):
    group, *members = a_gang(
        f"hi{number}", pods=2, requests={GPU: 8}, schedulingGates=GATED, priority=9,
        nodeSelector={"story": str(number)},
    )  # fmt: skip
    group["spec"]["priority"] = 9
    return [group, *members]


def of_gang(service, kind, number):
    events = service.get(f"/v1/events?type={kind}&limit=1000")  # the log may not have the gang yet
    return [event for event in events if event["gang"] == f"default/hi{number}"]


async def reached(service, point, number):
    """Wait for a point of the preemption; where the next one is passed already the story is the next one's."""
    low, hi = f"low{number}", f"hi{number}"
    looks = {
        "planned": lambda: of_gang(service, "PreemptionPlanned", number),
        "marked": lambda: recorded(service, "disruption-target", low),
        "first gone": lambda: recorded(service, "evicted", low),
        "all gone": lambda: len(recorded(service, "evicted", low)) == VICTIMS,
        "nominated": lambda: recorded(service, "nominated", hi),
    }
    await eventually(looks[point], f"{hi} {point}")


@pytest.mark.parametrize(
    "points",
    [POINTS[1:3], pytest.param([POINTS[0], *POINTS[3:]], marks=pytest.mark.full)],
    ids=" and ".join,
)
async def test_a_kill_at_any_point_of_a_preemption_changes_nothing(service, points):
    """SIGKILL at each point: one plan, each victim gone once, the preemptor runs where its capacity was made."""
    service.start()
    player = Player(service.url, service.manifests, service.data / "cluster.jsonl")
    try:
        for number, point in enumerate(points):
            write(service, f"full{number}", full_nodes(number))
            write(service, f"hi{number}", preemptor(number))
            await reached(service, point, number)
            service.kill()
            await player.close()
            service.start()
            player.reload()
            await eventually(
                lambda n=number: len(recorded(service, "gate-removed", f"hi{n}")) == 2, "let go"
            )
            await play_until(
                player,
                lambda n=number: of_gang(service, "PreemptionCompleted", n),
                f"completed after a kill when {point}",
            )
    finally:
        await player.close()
    for number, point in enumerate(points):
        (plan,) = of_gang(service, "PreemptionPlanned", number)
        victims = {p["uid"] for unit in plan["data"]["victims"] for p in unit["pods"]}
        gone = Counter(f["data"]["uid"] for f in of_gang(service, "VictimGone", number))
        assert gone == dict.fromkeys(victims, 1), point
        assert len(victims) == VICTIMS, point
        assert {e["uid"] for e in recorded(service, "evicted", f"low{number}")} == victims, point
        assert not recorded(service, "evicted", "beside"), "no other pod"
        assert of_gang(service, "PreemptionCancelled", number) == [], point
        where = {e["node"] for e in recorded(service, "bound", f"hi{number}")}
        assert where == {f"s{number}-0", f"s{number}-1"}, point
    (line,) = service.get("/v1/preemptions?preemptor=default/hi0")
    assert (line["outcome"], line["bound"]) == ("completed", 2)
    assert all(pod["gone"] for unit in line["victims"] for pod in unit["pods"])
    asked = service.run("preemptions", "--victim", "low1-0", "-o", "json")
    assert asked.returncode == 0, asked
    (preemption,) = json.loads(asked.stdout)
    assert preemption["preemptor"] == "PodGroup/default/hi1"
