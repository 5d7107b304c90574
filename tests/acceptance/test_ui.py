"""The page in a real browser, on the real service with its own PostgreSQL; the demo's player is kube-scheduler.

Pictures of every step are left in pytest's folder for temporary files; a person looks at them.
"""

from __future__ import annotations

import json
import subprocess

import pytest
from selenium.webdriver.common.keys import Keys

from deploy.demo.kube_scheduler import Player
from extender.store.embedded.os_account import prepare_server_home
from tests.acceptance.test_preemption_kills import full_nodes, preemptor, write
from tests.acceptance.test_process_kills import play_until, recorded, service
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import (
    GPU,
    RACK,
    a_fleet,
    a_gang,
    a_group,
    a_node,
    a_pod,
)
from tests.support.service.workload_builders import a_job, a_template
from tests.support.waiting import eventually, until

__all__ = ["service"]
pytestmark = pytest.mark.postgres
MARKUP = "<img src=x onerror=document.title='broken'>"
LONG = "ünï-" + "x" * 230 + "-名前"


def a_service_tree(name):
    """Make a root of two leaves of two pods, in one rack."""
    root = a_group(name, gang=2, composite=True, topo=RACK)
    leaves = [a_group(f"{name}-{part}", gang=2, parent=name) for part in "ab"]
    pods = [
        a_pod(f"{name}-{part}-{n}", f"{name}-{part}", requests={GPU: 3}, schedulingGates=GATED)
        for part in "ab" for n in range(2)
    ]  # fmt: skip
    return [root, *leaves, *pods]


def gang_row(browser, name):
    rows = browser.texts("#gang-list tr")
    return next((row for row in rows if row.startswith(f"default/{name}")), "")


def positions(browser):
    return [
        int(number)
        for number in browser.run(
            "return [...document.querySelectorAll('#events li')].map((e) => e.dataset.position)"
        )
    ]


async def seen(browser, condition, what):
    """Wait until the page shows something; the error has what it shows instead."""
    try:
        return await eventually(condition, what, every_s=0.05)
    except AssertionError as error:
        shown = browser.text("header, #fault, #sums, #detail, #gangs")
        raise AssertionError(f"{error}; the page: {shown[:3000]}") from error


@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.full)], ids=["short", "whole"]
)
async def test_the_page_shows_what_is_what_was_and_what_comes(service, browser, tmp_path, whole):
    """Empty; a gang is placed; one waits, with the reason; back in time; live again; over a restart.

    The `whole` story also has: one preempts; over an older log; strange names.
    """
    write(service, "beside", [a_pod("beside", node="r1-n3", requests={GPU: 5})])
    service.start()
    player = Player(service.url, service.manifests, service.data / "cluster.jsonl")
    try:
        browser.open(f"{service.url}/ui/")
        await seen(browser, lambda: "free 59" in browser.text("#sums"),
                   "capacity and the ordinary pod")  # fmt: skip
        assert browser.shown("#empty")
        await placed(service, player, browser, tmp_path)
        await waits(service, browser)
        if whole:
            await preempts(service, player, browser, tmp_path)
        await back_in_time(service, browser, tmp_path)
        await over_a_restart(service, browser, tmp_path)
        if whole:
            await over_an_older_log(service, browser, tmp_path)
            await strange_names(service, browser, tmp_path)
    finally:
        await player.close()


@pytest.mark.full
async def test_a_gang_shows_the_workload_that_it_was_made_for(service, browser):
    """Of a Job in a file; a gang that a user wrote has no such line."""
    template = a_template({GPU: 1}, schedulerName="gang-scheduler")
    job = a_job(parallelism=2, template=template, metadata={"uid": "01234567"})
    write(service, "fit", [job])
    write(service, "tree", a_service_tree("tree"))
    service.start()
    browser.open(f"{service.url}/ui/")
    for name in ("fit-01234567", "tree"):
        await seen(browser, lambda name=name: gang_row(browser, name), f"{name} in the list")
    browser.click_text("#gang-list .name", "default/fit-01234567")
    await seen(browser, lambda: browser.texts("#detail .workload") == ["made for Job default/fit"],
               "its workload")  # fmt: skip
    browser.click_text("#gang-list .name", "default/tree")
    await seen(browser, lambda: "default/tree" in browser.text("#detail h2"), "the other gang")
    assert browser.texts("#detail .workload") == []


async def placed(service, player, browser, folder):
    """A gang comes while the page is open; its tree shows what each level has."""
    write(service, "tree", a_service_tree("tree"))
    player.reload()
    await play_until(player, lambda: len(recorded(service, "bound", "tree")) == 4, "tree bound")
    await seen(browser, lambda: "scheduled" in gang_row(browser, "tree"), "tree in the list")
    assert not browser.shown("#empty")
    browser.click_text("#gang-list .name", "default/tree")
    await seen(browser, lambda: browser.texts("#detail .level .badge") == ["bound"] * 3, "levels")
    assert "in rack" in browser.text("#detail .place")
    assert "at least 2 groups" in browser.text("#detail")
    assert "bound 12, reserved 0" in browser.text("#sums")
    browser.picture(folder / "placed.png")


async def waits(service, browser):
    """A gang without a place stands first, with the reason; its groups are shown before it is admitted."""
    write(service, "huge", a_gang("huge", pods=20, requests={GPU: 8}, schedulingGates=GATED))
    await seen(browser, lambda: "needs 20 pods" in gang_row(browser, "huge"), "the reason of huge")
    assert "unschedulable" in gang_row(browser, "huge")
    browser.click_text("#gang-list .name", "default/huge")
    await seen(browser, lambda: browser.texts("#detail .level .badge") == ["waits"], "its level")
    assert "20 waiting" in browser.text("#detail .level")


async def preempts(service, player, browser, folder):
    """Victims and their preemptor are in the events, and on the map while it lasts."""
    write(service, "full", full_nodes(0))
    write(service, "hi", preemptor(0))
    player.reload()
    await play_until(player, lambda: len(recorded(service, "bound", "hi0")) == 2, "hi0 bound")
    await seen(browser, lambda: "scheduled" in gang_row(browser, "hi0"), "hi0 in the list")
    types = browser.text("#events .type")
    assert "PreemptionPlanned" in types
    assert "VictimGone" in types
    browser.picture(folder / "preempted.png")


async def back_in_time(service, browser, folder):
    """The slider, by keys: the state of that time; what the log does not have of it is shown as unknown."""
    head = int(browser.one("#slider").get_attribute("max"))
    admitted = service.get("/v1/events?type=GangAdmitted&gang=default/tree&limit=1")[0]["position"]
    browser.press("#slider", *[Keys.ARROW_LEFT] * (head - admitted))
    await seen(browser, lambda: f"event {admitted} of" in browser.text("#when"), "the moment")
    assert browser.text("#mode") == "Then"
    assert gang_row(browser, "huge") == ""
    assert "admitted" in gang_row(browser, "tree")
    sums = browser.text("#sums")
    assert "reserved 12" in sums
    assert "free not known" in sums
    assert "other pods not known" in sums
    assert "Ordinary pods are not in the log" in browser.text("#limitations")
    await seen(browser, lambda: positions(browser)[:1] == [admitted], "the events up to then")
    browser.click_text("#gang-list .name", "default/tree")
    await seen(
        browser, lambda: browser.texts("#detail .level .badge") == ["reserved"] * 3, "levels"
    )
    await explained_then(service, browser, admitted)
    browser.picture(folder / "then.png")
    write(service, "later", a_gang("later", pods=1, requests={GPU: 99}, schedulingGates=GATED))
    await seen(
        browser, lambda: int(browser.one("#slider").get_attribute("max")) > head, "new events"
    )
    assert f"event {admitted} of" in browser.text("#when"), "the past stays as it is"
    await a_time_before_the_log(browser, admitted)
    browser.press("#slider", Keys.END)
    await seen(browser, lambda: "unschedulable" in gang_row(browser, "later"), "now again")
    assert browser.text("#mode") == "Now"
    browser.click("#feed-gang")
    await seen(
        browser,
        lambda: set(browser.texts("#events .gang-name")) == {"default/tree"},
        "its events alone",
    )
    browser.click("#feed-gang")
    await seen(
        browser, lambda: "LeaseAcquired" in browser.texts("#events .type"), "all events again"
    )


async def explained_then(service, browser, position):
    """The gang and one of its pods are explained as the log had them then, with what it does not have."""

    def then(name):
        return service.get(f"/v1/explain?name={name}&at={position}")

    def shows(found):
        text = browser.text("#detail .explanation")
        return found["answer"] in text and all(part in text for part in found["limitations"])

    gang = then("CompositePodGroup/default/tree")
    assert gang["limitations"]
    assert gang["answer"] != service.get("/v1/explain?name=default/tree")["answer"]
    await seen(browser, lambda: shows(gang), "why the gang was so")
    browser.run(
        "[...document.querySelectorAll('#detail details')].forEach((one) => { one.open = true; })"
    )
    browser.click_text("#detail .members a", "default/tree-a-0")
    await seen(browser, lambda: shows(then("Pod/default/tree-a-0")), "why the pod was so")
    assert browser.text("#mode") == "Then"
    browser.run("history.back()")
    await seen(browser, lambda: len(browser.texts("#detail .level")) == 3, "the gang again")
    await seen(browser, lambda: shows(gang), "its explanation again")


async def a_time_before_the_log(browser, position):
    """The page reports a moment that it cannot show; what was shown stays, until another is asked for."""
    browser.run("document.getElementById('jump-time').value = '2020-01-01T00:00:00'")
    browser.run("document.querySelector('#jump button').click()")
    await seen(
        browser, lambda: "nothing had been recorded by 2020-01-01" in browser.text("#fault"), "why"
    )
    await seen(browser, lambda: positions(browser)[:1] == [position], "the moment before")
    assert f"event {position} of" in browser.text("#when")


async def over_a_restart(service, browser, folder):
    """SIGKILL: the page reports that there is no answer, keeps what it had, and goes on without a gap or a repeat."""
    before = positions(browser)
    service.kill()
    await seen(browser, lambda: browser.one("#link").get_attribute("class") == "lost", "the loss")
    await seen(browser, lambda: "does not give the state" in browser.text("#fault"), "the fault")
    assert browser.text("#mode") == "Last known"
    assert gang_row(browser, "tree")
    browser.picture(folder / "lost.png")
    service.start()
    write(service, "after", a_gang("after", pods=1, requests={GPU: 99}, schedulingGates=GATED))
    await seen(browser, lambda: "unschedulable" in gang_row(browser, "after"), "what came after")
    await seen(browser, lambda: not browser.shown("#fault"), "no fault")
    events = service.get("/v1/events?limit=1000")
    await seen(
        browser, lambda: positions(browser)[0] >= len(events) > before[0], "the newest event"
    )
    numbers = positions(browser)
    assert numbers == list(range(numbers[0], 0, -1))
    summaries = dict(zip(numbers, browser.texts("#events .summary"), strict=True))
    assert {f["position"]: f["summary"] for f in events if f["position"] in summaries} == summaries


def killed(service):
    """SIGKILL, and wait until PostgreSQL has ended as well; return its folder."""
    service.kill()
    cluster = prepare_server_home(service.data).cluster
    until(lambda: not (cluster / "postmaster.pid").exists(), "PostgreSQL has ended")
    return cluster


async def over_an_older_log(service, browser, folder):
    """An older copy of the database comes back while the page is open: what it lost is not shown any more."""
    cluster = killed(service)
    copy = folder / "older"
    subprocess.run(["cp", "-a", cluster, copy], check=True)
    service.start()
    lost = [f"lost{n}" for n in range(6)]
    for name in lost:
        write(service, name, a_gang(name, pods=1, requests={GPU: 99}, schedulingGates=GATED))
    for name in lost:
        await seen(browser, lambda name=name: "unschedulable" in gang_row(browser, name), name)
    known = service.get("/v1/events?limit=1000")
    end = known[-1]["position"]
    await seen(browser, lambda: positions(browser)[0] >= end, "the newest event")
    # where the end of the log is published, outside of the database
    mark = service.data / "log-end.json"
    await eventually(
        lambda: int(json.loads(mark.read_bytes())["position"]) >= end, "the end published"
    )
    killed(service)
    subprocess.run(["rm", "-r", cluster], check=True)
    subprocess.run(["cp", "-a", copy, cluster], check=True)
    for name in lost[1:]:
        (service.manifests / f"{name}.yaml").unlink()
    service.start()
    await seen(browser, lambda: "Everything was read again" in browser.text("#fault"), "the loss")
    await seen(browser, lambda: "HistoryTruncated" in browser.texts("#events .type"), "the event")
    browser.picture(folder / "older.png")

    def agrees():
        events = {f["position"]: f["summary"] for f in service.get("/v1/events?limit=1000")}
        numbers, words = positions(browser), browser.texts("#events .summary")
        summaries = dict(zip(numbers, words, strict=True))
        return numbers[0] == max(events) and all(events[n] == text for n, text in summaries.items())

    await seen(browser, agrees, "the events that there are")
    assert not any(gang_row(browser, name) for name in lost[1:])


async def strange_names(service, browser, folder):
    """Markup in names and labels stays text; 253 characters and other scripts fit, also small and dark."""
    nodes = [
        a_node(LONG, {RACK: MARKUP}, gpu=16),
        a_node("n1", {RACK: MARKUP}, gpu=8),
        a_node("n2", {RACK: "架子-" + "z" * 240}, gpu=8),
    ]
    write(service, "strange", nodes)
    write(service, "long", a_gang(LONG, pods=1, requests={GPU: 10}, schedulingGates=GATED))
    write(service, "markup", a_gang(MARKUP, pods=1, requests={GPU: 99}, schedulingGates=GATED))
    browser.dark()
    browser.driver.set_window_size(520, 1000)
    browser.open(f"{service.url}/ui/")
    await seen(browser, lambda: "admitted" in gang_row(browser, LONG), "the long one")
    await seen(browser, lambda: "unschedulable" in gang_row(browser, MARKUP), "the markup")
    for name in (LONG, MARKUP):
        browser.click_text("#gang-list .name", f"default/{name}")
        await seen(browser, lambda name=name: name in browser.text("#detail h2"), "its detail")
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        browser.picture(folder / f"{len(name)}.png")
    browser.press("#map", Keys.ARROW_RIGHT, Keys.ENTER)
    await seen(browser, lambda: "Node" in browser.text("#detail h2"), "a node by keys")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.run("return document.title") == "s0-0 - gang-extender"
    assert browser.complaints() == []


@pytest.mark.long
async def test_five_thousand_nodes_are_drawn_by_density_and_can_be_looked_into(
    service, browser, tmp_path
):
    """Nodes as squares in racks that can be looked into, sums of racks, and every node where it is asked for."""
    fleet = a_fleet("10 blocks x 25 racks x 20 nodes", gpu=8)
    ordinary = [
        a_pod(f"o-{n}", node=node["metadata"]["name"], requests={GPU: 2})
        for n, node in enumerate(fleet) if n % 4 == 0
    ]  # fmt: skip
    (service.manifests / "fleet.yaml").write_text(
        "\n---\n".join(json.dumps(thing) for thing in [*fleet, *ordinary])
    )
    write(service, "g", a_gang("g", pods=100, requests={GPU: 8}, schedulingGates=GATED))
    service.start()
    browser.driver.set_window_size(1360, 1000)
    browser.open(f"{service.url}/ui/")
    await seen(browser, lambda: "admitted" in gang_row(browser, "g"), "the gang")
    assert browser.text("#sums").startswith(
        "5,000 nodes, drawn by density: nvidia.com/gpu, 40,000 units"
    )
    assert "reserved 800, claimed 0, other pods 2,500" in browser.text("#sums")
    browser.picture(tmp_path / "density.png")
    browser.press("#map", Keys.ARROW_RIGHT, Keys.ENTER)
    await seen(browser, lambda: browser.text("#sums").startswith("20 nodes:"), "one rack")
    assert browser.shown("#crumbs")
    browser.click_text("#crumbs button", "cluster")
    browser.press("#grain", "sums")
    await seen(browser, lambda: "drawn as sums" in browser.text("#sums"), "sums of racks")
    browser.picture(tmp_path / "sums.png")
    # letters within a second after those before would be taken as their continuation
    browser.press("#grain", Keys.ARROW_UP, Keys.ARROW_UP)
    await seen(browser, lambda: browser.text("#sums").startswith("5,000 nodes:"), "every node")
    browser.picture(tmp_path / "nodes.png")
    assert browser.complaints() == []
