"""The views of the page in a real browser: search, preemptions, reports, one event, "would it fit"; links, Back, keys, 390 px."""

from __future__ import annotations

from collections import Counter

import pytest
import yaml
from selenium.webdriver.common.keys import Keys

from deploy.demo.kube_scheduler import Player
from extender.core.log.events import PreemptionPlanned
from extender.store.log.postgres_event_log import PostgresEventLog
from tests.acceptance.test_preemption_kills import full_nodes, preemptor, service, write
from tests.acceptance.test_process_kills import play_until, recorded
from tests.acceptance.test_ui import a_service_tree, gang_row, positions, seen
from tests.support.logs.fake_store import Script
from tests.support.logs.many_preemptions import preemption_log
from tests.support.logs.postgres import fresh_database, run
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, a_gang, a_node
from tests.support.service.replicas import Replica
from tests.support.service.workload_builders import a_job, a_template
from tests.support.waiting import eventually

__all__ = ["service"]
pytestmark = pytest.mark.postgres
SHOW_MORE = """
const rows = [];
for (let n = 0; n < 8; n++) {
  [...document.querySelectorAll('#preemptions-more button')].find((e) => e.textContent === 'Show 100 more').click();
  rows.push(document.querySelectorAll('#preemption-list > li').length);
}
return rows;
"""
NARROW = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


def found(browser):
    return browser.texts("#found a")


def address(browser):
    return browser.run("return decodeURIComponent(location.hash)")


def focused(browser, selector):
    return browser.run(f"return document.activeElement.closest('{selector}') !== null")


def waits(name="huge", **more):
    return a_gang(name, pods=20, requests={GPU: 8}, schedulingGates=GATED, **more)


def lacks_one(name, pods):
    """Make a gang that has a member less than its minimum."""
    return a_gang(name, pods=pods, minimum=pods + 1, requests={GPU: 1}, schedulingGates=GATED)


def search(browser, text):
    browser.one("#search-text").clear()
    browser.press("#search-text", text)


async def test_search_explanations_links_and_keys(service, browser, tmp_path):
    """Every kind is found by a part of its name; a result explains itself; Back and Escape lead back."""
    job = a_job(parallelism=2, template=a_template({GPU: 1}, schedulerName="gang-scheduler"),
                metadata={"uid": "01234567"})  # fmt: skip
    write(service, "job", [job])
    write(service, "tree", a_service_tree("tree"))
    write(service, "huge", waits())
    service.start()
    browser.open(f"{service.url}/ui/")
    await seen(browser, lambda: "unschedulable" in gang_row(browser, "huge"), "huge in the list")
    browser.press("body", Keys.TAB)
    assert focused(browser, "#skip")
    browser.press("#skip", Keys.ENTER)
    assert focused(browser, "#content")
    browser.press("body", "/")
    assert focused(browser, "#search-text")
    for text, expected in (
        ("tree-a", {"PodGroup default/tree-a", "Pod default/tree-a-0", "Pod default/tree-a-1"}),
        ("job fit", {"Job default/fit"}),
        ("r0-n1", {"Node r0-n1"}),
        ("absent", set()),
    ):
        search(browser, text)
        await seen(browser, lambda e=expected, t=text: f"q={t}" in address(browser).replace("+", " ")
                   and "Searching" not in browser.text("#found-text")
                   and set(found(browser)) == e, text)  # fmt: skip
    assert "Nothing is called absent" in browser.text("#found-text")
    search(browser, "r0-n1")
    await seen(browser, lambda: found(browser) == ["Node r0-n1"], "one node")
    browser.click_text("#found a", "Node r0-n1")
    await seen(browser, lambda: "Node r0-n1" in browser.text("#detail .answer"), "what it has")
    browser.click_text("#gang-list .name", "default/fit-01234567")
    await seen(browser, lambda: browser.shown("#detail .workload"), "the gang of the Job")
    browser.click_text("#detail .workload a", "Job default/fit")
    await seen(browser, lambda: "about=Job/default/fit" in address(browser)
               and "Job default/fit" in browser.text("#detail .answer"), "the workload")  # fmt: skip
    browser.picture(tmp_path / "workload.png")
    search(browser, "tree-a-1")
    await seen(browser, lambda: found(browser) == ["Pod default/tree-a-1"], "one pod")
    browser.press("#search-text", Keys.ENTER)
    assert focused(browser, "#found")
    browser.press("#found a", Keys.ENTER)
    await seen(browser, lambda: "a member of CompositePodGroup default/tree" in browser.text("#detail .answer"),
               "why")  # fmt: skip
    assert "about=Pod/default/tree-a-1" in address(browser)
    assert focused(browser, "#detail h2")
    browser.picture(tmp_path / "search.png")
    browser.click_text("#detail .related a", "CompositePodGroup default/tree")
    await seen(browser, lambda: len(browser.texts("#detail .level")) == 3, "its gang")
    assert "gang=default/tree" in address(browser)
    browser.run("history.back()")
    await seen(browser, lambda: "default/tree-a-1" in browser.text("#detail h2"), "the pod again")
    browser.press("#detail h2", Keys.ESCAPE)
    await seen(browser, lambda: not browser.shown("#detail"), "nothing selected")
    browser.press("#search-text", Keys.ESCAPE)
    await seen(browser, lambda: browser.shown("#topology"), "the cluster again")
    browser.click_text("#gang-list .name", "default/huge")
    await seen(
        browser, lambda: "fits an empty cluster" in browser.text("#detail .checks"), "the checks"
    )
    assert "minCount" in browser.text("#detail .help")
    browser.run("document.querySelector('#detail .again').focus()")
    write(service, "next", waits("next"))
    await seen(browser, lambda: "unschedulable" in gang_row(browser, "next"), "the next gang")
    assert focused(browser, "#detail .again"), "the focus stays where it is when the page updates"
    assert "waits for" in browser.text("#detail")
    assert browser.complaints() == []


@pytest.mark.full
async def test_the_first_sentence_of_a_gang_is_that_of_the_commands(service, browser):
    """Refused, and not looked at because its namespace has too many new gangs."""
    service.environ["GANG_EXTENDER_MAX_NEW_GANGS_PER_MINUTE"] = "2"
    write(service, "huge", waits())
    service.start()
    browser.open(f"{service.url}/ui/")
    await seen(browser, lambda: "unschedulable" in gang_row(browser, "huge"), "huge in the list")

    async def agree(name, within):
        """Wait until `explain` has these words; then the page has the same answer."""

        def answer():
            return service.get(f"/v1/explain?name=PodGroup/default/{name}")["answer"]

        await eventually(lambda: within in answer(), f"the answer about {name}")
        browser.run(f"location.hash = 'about=PodGroup/default/{name}'")
        await seen(
            browser, lambda: answer() in browser.text("#detail .answer"), f"the answer about {name}"
        )

    await agree("huge", "can never be placed on these nodes")
    # the last of them has its turn in half an hour
    write(service, "many", [part for n in range(60) for part in waits(f"many-{n:02}")])
    await eventually(lambda: service.get("/v1/search?q=many-59")["found"], "the last gang")
    await agree("many-59", "more than 2 new gangs per minute")
    assert browser.complaints() == []


@pytest.mark.full
async def test_filters_are_in_the_address_and_long_lists_are_whole(service, browser):
    """Namespace and state; 230 gangs, their events from the first on, and 230 members of one gang."""
    # each of them lacks a member, so that none is planned
    write(service, "many", [part for n in range(230) for part in lacks_one(f"g{n}", pods=1)])
    other = waits("other")
    for thing in other:
        thing["metadata"]["namespace"] = "team-b"
    write(service, "other", other)
    write(service, "wide", lacks_one("wide", pods=230))
    service.start()

    def states():
        return Counter(gang["state"] for gang in service.get("/v1/gangs"))

    # a page that is open meanwhile draws its lists anew after each of them
    all_wait = {"waiting": 231, "unschedulable": 1}
    await eventually(lambda: states() == all_wait, "all wait", every_s=0.2, state=service.tail)
    browser.open(f"{service.url}/ui/")
    await seen(
        browser, lambda: "232 gangs, 232 pending" in browser.text("#gang-count"), "all gangs"
    )
    assert len(browser.texts("#gang-list tr")) == 200
    browser.click_text("#gang-more button", "Show 32 more")
    assert len(browser.texts("#gang-list tr")) == 232
    assert browser.text("#gang-more") == ""
    total = len(service.get("/v1/events?limit=1000"))
    await seen(browser, lambda: len(positions(browser)) >= 200, "the newest events")
    for _ in range(total // 200):
        before = len(positions(browser))
        browser.click_text("#feed-more button", "Show earlier events")
        await seen(browser, lambda n=before: len(positions(browser)) > n, "earlier events")
    assert positions(browser)[-1] == 1
    assert positions(browser) == list(range(positions(browser)[0], 0, -1))
    browser.press("#namespace", "team-b")
    await seen(browser, lambda: len(browser.texts("#gang-list tr")) == 1, "one namespace")
    await seen(
        browser, lambda: set(browser.texts("#events .gang-name")) == {"team-b/other"}, "its events"
    )
    browser.open("about:blank")
    browser.open(f"{service.url}/ui/#namespace=team-b&state=scheduled")
    await seen(browser, lambda: "No gang matches" in browser.text("#gang-more"), "both filters")
    browser.open(f"{service.url}/ui/#gang=default/wide")
    await seen(browser, lambda: len(browser.texts("#detail .members li")) == 100, "members")
    browser.click_text("#detail .more", "Show 100 more of 230")
    browser.click_text("#detail .more", "Show 30 more of 230")
    assert len(browser.texts("#detail .members li")) == 230


async def test_preemptions_reports_and_one_event(service, browser, tmp_path):
    """Who was evicted for whom and why; the event of the plan with its cost in words; a report as a table; narrow."""
    write(service, "full", full_nodes(0))
    service.start()
    browser.open(f"{service.url}/ui/#view=preemptions")
    await seen(browser, lambda: browser.text("#link").startswith("● follows"), "the stream")
    assert "There was no preemption" in browser.text("#preemptions-more")
    write(service, "hi", preemptor(0))
    player = Player(service.url, service.manifests, service.data / "cluster.jsonl")
    try:
        await play_until(player, lambda: len(recorded(service, "bound", "hi0")) == 2, "hi0 bound")
    finally:
        await player.close()
    (line,) = service.get("/v1/preemptions")
    victims = [pod["pod"] for unit in line["victims"] for pod in unit["pods"]]
    assert victims
    await seen(browser, lambda: "there is news" in browser.text("#preemptions-again"), "the news")
    browser.click("#preemptions-again")
    await seen(
        browser, lambda: browser.text("#preemptions-text") == "1 preemption", "the preemption"
    )
    assert not browser.shown("#topology")
    browser.click("#preemption-list summary")
    text = browser.text("#preemption-list")
    assert line["explanation"] in text
    assert set(browser.texts("#preemption-list tbody td:nth-child(3)")) == set(victims)
    assert "highest priority of a victim" in text
    assert str(line["cost"]["weight"]) not in text
    browser.picture(tmp_path / "preemptions.png")
    browser.press("#preemption-filter", "nothing-like-it")
    assert "None matches" in browser.text("#preemptions-more")
    browser.one("#preemption-filter").clear()
    browser.press("#preemption-filter", victims[0])
    assert len(browser.texts("#preemption-list > li")) == 1
    browser.click_text("#preemption-list a", f"event {line['position']}")
    await seen(browser, lambda: "highest priority" in browser.text("#detail .cost"), "its cost")
    detail = browser.text("#detail")
    assert "PreemptionPlanned of default/hi0" in detail
    assert "How it was decided" in detail
    browser.click_text("#detail button", "Show the state as of this event")
    await seen(
        browser, lambda: f"event {line['position']} of" in browser.text("#when"), "the moment"
    )
    browser.run("history.back()")
    await seen(browser, lambda: browser.text("#mode") == "Now", "now again")
    browser.click_text("#views a", "Reports")
    await seen(browser, lambda: "gang" in browser.texts("#report-table th button"), "a table")
    browser.press("#report", "preemption-pairs")
    await seen(browser, lambda: "report=preemption-pairs" in address(browser)
               and "pods" in browser.texts("#report-table th button"), "the pairs")  # fmt: skip
    assert "default/hi0" in browser.texts("#report-table td a")
    browser.click_text("#report-table th button", "pods")
    assert (
        browser.run("return document.querySelector('[data-column=pods]').ariaSort") == "descending"
    )
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", NARROW)
    for view in ("", "preemptions", "reports", "fit", "search"):
        browser.run(f"location.hash = 'view={view}&q=hi&event={line['position']}'")
        await seen(browser, lambda: browser.shown("#detail .cost"), view)
        assert browser.run("return document.documentElement.scrollWidth") == 390, view
        browser.picture(tmp_path / f"narrow-{view}.png")
    assert browser.complaints() == []


@pytest.fixture(scope="module")
def long_log(postgres_url, template_database, tmp_path_factory):
    """A service on a log with 1,150 preemptions; gives it and the positions of their plans, newest first."""
    folder = tmp_path_factory.mktemp("long")
    manifests = folder / "nodes.yaml"
    manifests.write_text(yaml.safe_dump_all([a_node("n1", gpu=8)]))

    async def write(url):
        async with PostgresEventLog(url) as log:
            grant = await log.take(holder="a", address="", ttl_ms=1000)
            events, _ = preemption_log(Script(grant), 1150, 3)
            await log.append(grant, events)
        plans = [e.position for e in events if isinstance(e.data, PreemptionPlanned)]
        return plans[::-1]

    with fresh_database(postgres_url, template=template_database) as url:
        plans = run(write(url))
        served = Replica(folder, url, manifests, "a")
        try:
            run(served.until_leads())
            yield served, plans
        finally:
            served.end()


def listed(browser):
    """Return the positions of the preemptions that are shown, in their order."""
    links = browser.texts("#preemption-list .line a:last-of-type")
    return [int(text.removeprefix("event ")) for text in links]


@pytest.mark.full
async def test_preemptions_are_newest_first_and_can_be_read_to_the_oldest(
    long_log, browser, tmp_path
):
    """Pages of 1,000: the newest is the first row, and Show more reaches the first preemption of the log."""
    served, plans = long_log
    browser.open(f"{served.url}/#view=preemptions&span=all")
    await seen(
        browser,
        lambda: browser.text("#preemptions-text") == "the newest 1,000 preemptions",
        "a page",
    )
    assert listed(browser) == plans[:100]
    browser.click_text("#preemptions-more button", "Show 100 more")
    assert listed(browser) == plans[:200]
    browser.picture(tmp_path / "newest.png")
    # at once, because the list is laid out anew for each look of a browser
    assert browser.run(SHOW_MORE) == [*range(300, 1001, 100)]
    browser.click_text("#preemptions-more button", "Show more: read earlier ones")
    await seen(browser, lambda: len(listed(browser)) == 1100, "earlier ones")
    assert browser.text("#preemptions-text") == "1,150 preemptions"
    browser.click_text("#preemptions-more button", "Show 50 more")
    assert listed(browser) == plans
    assert browser.text("#preemptions-more") == ""
    browser.press("#preemption-filter", "ns/v1")
    assert "of 1,150 preemptions" in browser.text("#preemptions-text")
    browser.one("#preemption-filter").clear()
    browser.click("#preemptions-again")
    await seen(browser, lambda: listed(browser) == plans[:100], "the newest again")
    assert browser.complaints() == []


@pytest.mark.full
async def test_another_moment_is_read_once(long_log, browser):
    """By the address, by an event, and by the way back to now: one request for the state each."""
    served, plans = long_log
    browser.open(f"{served.url}/")
    await seen(browser, lambda: browser.text("#mode") == "Now", "now")
    requests = (
        "return performance.getEntriesByType('resource').map((e) => decodeURIComponent(e.name))"
        ".filter((name) => name.includes('/v1/state'))"
    )
    for number, position in enumerate(plans[5:8]):
        browser.run("performance.clearResourceTimings()")
        if number:
            browser.run(
                f"document.querySelector('#events [data-position=\"{position}\"] .at').click()"
            )
        else:
            browser.run(f"location.hash = 'at={position}'")
        await seen(
            browser, lambda p=position: f"event {p} of" in browser.text("#when"), "the moment"
        )
        await seen(browser, lambda p=position: positions(browser)[0] == p, "the events up to there")
        assert [url.partition("?")[2] for url in browser.run(requests)] == [f"at={position}"]
    assert browser.complaints() == []


async def test_would_it_fit(service, browser, tmp_path):
    """A pasted manifest is planned on the live cluster: the place, or why not and what would help; nothing is reserved."""
    service.start()
    browser.open(f"{service.url}/ui/#view=fit")
    await seen(
        browser, lambda: browser.text("#mode") == "Now" or browser.shown("#empty"), "the page"
    )

    def ask(text):
        browser.driver.execute_script(
            "document.getElementById('manifest').value = arguments[0]", text
        )
        browser.press("#manifest", Keys.CONTROL, Keys.ENTER)

    ask("")
    await seen(browser, lambda: "Paste the manifests" in browser.text("#fit-text"), "what to do")
    ask(yaml.safe_dump_all(a_gang("small", pods=2, requests={GPU: 8})))
    await seen(browser, lambda: "default/small fits." in browser.text("#fit-text"), "it fits")
    assert len(browser.texts("#fit-answer td:last-child a")) == 2
    browser.picture(tmp_path / "fits.png")
    ask(yaml.safe_dump_all(waits()))
    await seen(
        browser, lambda: "default/huge does not fit." in browser.text("#fit-text"), "it does not"
    )
    assert "needs 20 pods" in browser.text("#fit-answer")
    assert "minCount" in browser.text("#fit-answer .help")
    browser.picture(tmp_path / "does-not-fit.png")
    ask("kind: Pod\n\tname: x")
    await seen(browser, lambda: "manifest: line 2" in browser.text("#fit-text"), "the line")
    ask("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}")
    await seen(
        browser,
        lambda: "Deployment of apps/v1 is not planned" in browser.text("#fit-text"),
        "the kind",
    )
    ask(yaml.safe_dump(a_node("more", gpu=8)))
    await seen(browser, lambda: "nothing to plan" in browser.text("#fit-text"), "no tree")
    assert [e["type"] for e in service.get("/v1/events") if e["gang"]] == []
    assert [line for line in browser.complaints() if "400" not in line] == []
