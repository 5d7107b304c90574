"""The page of the cluster in a real browser: states and reasons as filters, the table, 24 hours, sizes of nodes, what is taken along."""

from __future__ import annotations

import json
import urllib.request

import pytest
import yaml
from selenium.webdriver.common.keys import Keys

from tests.acceptance.test_page_views import NARROW, address
from tests.acceptance.test_preemption_kills import service, write
from tests.acceptance.test_ui import a_service_tree, gang_row, seen
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, RACK, a_gang, a_group, a_node, a_pod
from tests.support.service.workload_builders import a_job, a_template

__all__ = ["service"]
pytestmark = pytest.mark.postgres
WIDE = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
ROWS_SHOWN = """
const table = document.querySelector('#gang-table').getBoundingClientRect();
const inside = ({ top, bottom }) => top >= table.top && bottom <= Math.min(table.bottom, innerHeight) + 1;
return [...document.querySelectorAll('#gang-list tr')].filter((row) => inside(row.getBoundingClientRect())).length;
"""
LEAST_SIZES = """
const { layout } = await import('./layout.js');
const fleet = (racks, size) => ({ name: '', path: [], children: Array.from({ length: racks }, (_, rack) => ({
  name: `r${rack}`, path: [`r${rack}`], nodes: Array.from({ length: size }, (_, node) => ({ name: `r${rack}-n${node}` })) })) });
return [[25, 20, 'nodes'], [100, 20, 'nodes'], [125, 20, 'density']].map(([racks, size, grain]) => {
  const { cells, boxes } = layout(fleet(racks, size), { width: 600, height: 500, grain, count: racks * size });
  const places = grain === 'density' ? boxes.filter((box) => box.dense) : cells;
  return [cells.length, Math.min(...places.map((place) => Math.min(place.width, place.height)))];
});
"""
AMOUNTS = """
const { amountsOf } = await import('./model.js');
const now = { allocatable: { gpu: 8 }, members: { gpu: 6 }, ordinary: { gpu: 1 } };
return amountsOf({ had: { bound: { gpu: 2 }, reserved: { gpu: 1 } }, now }, 'gpu');
"""


def waiting(name, *, pods, namespace="default"):
    """Make a gang that has no place: its pods ask for more than a node has."""
    objects = a_gang(name, pods=pods, requests={GPU: 9}, topo=RACK, schedulingGates=GATED)
    for entry in objects:
        entry["metadata"]["namespace"] = namespace
    return objects


def names(browser):
    return browser.texts("#gang-list .name")


def chips(browser, which):
    return browser.texts(f"#{which} .chip")


async def test_states_and_reasons_are_filters_and_the_table_fills_the_window(
    service, browser, tmp_path
):
    """Counts by state, "26 wait: 4 pods in one rack", columns, order, 24 hours; all of it in the address; 1440 and 390 px, dark."""
    for n in range(26):
        write(service, f"llama-{n}", waiting(f"llama-{n:02}", pods=4))
    for n in range(3):
        write(service, f"eval-{n}", waiting(f"eval-{n}", pods=2, namespace="team-b"))
    write(service, "tree", a_service_tree("tree"))
    service.start()
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WIDE)
    browser.open(f"{service.url}/ui/")
    await seen(
        browser,
        lambda: chips(browser, "states") == ["all gangs 30", "unschedulable 29", "admitted 1"],
        "the states",
    )
    assert chips(browser, "reasons") == [
        "26 wait: 4 pods in one rack",
        "3 wait: 2 pods in one rack",
    ]
    assert browser.run(ROWS_SHOWN) >= 25
    assert browser.run("return document.documentElement.scrollHeight <= innerHeight")
    browser.picture(tmp_path / "wide.png")
    browser.click_text("#reasons .chip", "3 wait: 2 pods in one rack")
    await seen(browser, lambda: names(browser) == [f"team-b/eval-{n}" for n in range(3)], "three")
    assert "reason=2 pods in one rack" in address(browser).replace("+", " ")
    browser.click_text("#reasons .chip", "3 wait: 2 pods in one rack")
    browser.click_text("#states .chip", "admitted 1")
    await seen(browser, lambda: names(browser) == ["default/tree"], "one state")
    assert "state=admitted" in address(browser)
    browser.open("about:blank")
    browser.open(f"{service.url}/ui/#sort=-gang&columns=reason,kind")
    await seen(browser, lambda: names(browser)[:1] == ["team-b/eval-2"], "from the last name on")
    assert browser.texts("#gang-head button") == ["gang", "reason", "kind"]
    assert (
        browser.run("return document.querySelector('[data-column=gang]').ariaSort") == "descending"
    )
    assert "needs 2 pods in one rack" in gang_row_of(browser, "team-b/eval-2")
    browser.click_text("#gang-head button", "kind")
    await seen(browser, lambda: names(browser)[0] == "default/tree", "by kind")
    assert "sort=kind" in address(browser)
    browser.press("#gang-list tr:first-child a", Keys.ARROW_DOWN, Keys.ENTER)
    await seen(browser, lambda: f"gang={names(browser)[1]}" in address(browser), "the second row")
    await the_last_day(service, browser)
    browser.dark()
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", NARROW)
    browser.open("about:blank")
    browser.open(f"{service.url}/ui/#gang=team-b/eval-0")
    await seen(browser, lambda: browser.texts("#detail .answer") != [], "why it waits")
    assert browser.run("return document.documentElement.scrollWidth") == 390
    above = "return document.querySelector('#detail').getBoundingClientRect().bottom <= document.querySelector('#topology').getBoundingClientRect().top"
    assert browser.run(above), "the answer is above the map"
    browser.picture(tmp_path / "narrow.png")
    assert browser.complaints() == []


NAME_ENDS = """
const end = document.querySelector('#gang-list .end');
const cell = end.closest('th').getBoundingClientRect();
const begin = end.previousSibling;
return [end.textContent, end.parentElement.title, begin.scrollWidth > begin.clientWidth, end.getBoundingClientRect().right <= cell.right + 1];
"""
TO_COPY = """
getSelection().selectAllChildren(document.querySelector('#gang-list .cut'));
window.addEventListener('copy', (event) => { window.copied = event.clipboardData.getData('text/plain'); }, { once: true });
"""
STACKED = """
const row = document.querySelector('#gang-list tr');
const [name, reason] = ['th', '.reason'].map((part) => row.querySelector(part).getBoundingClientRect());
return [reason.top >= name.bottom - 1, reason.width, row.getBoundingClientRect().width, row.getBoundingClientRect().height];
"""


async def test_refused_workloads_and_long_names(service, browser, tmp_path):
    """A refused workload is a row of the first view; a name keeps its end, on 390 px too."""
    template = a_template({GPU: 1}, schedulerName="gang-scheduler")
    name = "refused-" + "x" * 60
    write(service, "refused", [a_job(name, parallelism=2, template=template, annotations={"gang-extender.dev/min": "lots"})])  # fmt: skip
    write(service, "large", waiting("large", pods=4))
    service.start()
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WIDE)
    browser.open(f"{service.url}/ui/")
    await seen(
        browser,
        lambda: chips(browser, "states") == ["all gangs 1", "unschedulable 1", "refused 1"],
        "the states",
    )
    assert "1 gang, 1 pending, 1 refused" in browser.text("#gang-count")
    row = gang_row_of(browser, f"default/{name}")
    assert "'lots' is not a number of at least 1" in row
    assert browser.run(NAME_ENDS) == ["x" * 10, f"default/{name}", True, True]
    browser.run(TO_COPY)
    browser.press("body", Keys.CONTROL + "c")
    await seen(browser, lambda: browser.run("return window.copied") == f"default/{name}", "a copy")
    browser.picture(tmp_path / "refused.png")
    browser.click_text("#gang-list .name", f"default/{name}")
    await seen(browser, lambda: browser.texts("#detail .answer") != [], "why it is refused")
    assert "'lots' is not a number" in browser.text("#detail .answer")
    assert f"about=Job/default/{name}" in address(browser)
    assert browser.run("return document.querySelector('#gang-list tr.chosen .state').textContent") == "refused"  # fmt: skip
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", NARROW)
    browser.open("about:blank")
    browser.open(f"{service.url}/ui/")
    await seen(browser, lambda: len(names(browser)) == 2, "both rows")
    below, width, whole, height = browser.run(STACKED)
    assert below
    assert width >= whole - 20
    assert height < 100
    assert browser.run(NAME_ENDS) == ["x" * 10, f"default/{name}", True, True]
    assert browser.run("return document.documentElement.scrollWidth") == 390
    browser.picture(tmp_path / "refused-narrow.png")
    assert browser.complaints() == []


def gang_row_of(browser, gang):
    return next(row for row in browser.texts("#gang-list tr") if row.startswith(gang))


async def the_last_day(service, browser):
    """The charts have what the report has; keys read a time of them, and Enter leads there."""
    labels = [f".chart:nth-child({n}) button" for n in (1, 2)]

    def label(which):
        return browser.run(f"return document.querySelector('{labels[which]}').ariaLabel") or ""

    browser.run("location.reload()")
    await seen(
        browser, lambda: label(0).startswith("Pending gangs, over 24 hours: 29; most 29"), "29"
    )
    assert label(1).startswith("Used nvidia.com/gpu, over 24 hours: 12 of ")
    assert "0 bound, 12 reserved" in label(1)
    browser.press(labels[0], Keys.ARROW_LEFT)
    assert " at " in label(0)
    rows = service.get("/v1/reports/usage?limit=10000")["rows"]
    newest = {
        (row["state"], row["resource"]): row["amount"]
        for row in rows
        if row["at"] == rows[-1]["at"]
    }
    assert newest["pending", "gangs"] == 29
    assert newest["reserved", GPU] == 12
    assert len({row["at"] for row in rows}) == 97


async def test_the_slider_is_where_it_works(service, browser):
    """Not before there is a second event, and not in views that are about now or about a span of time."""
    write(service, "tree", a_service_tree("tree"))
    service.start()
    browser.open(f"{service.url}/ui/")
    await seen(browser, lambda: "admitted" in gang_row(browser, "tree"), "tree in the list")
    assert browser.shown("#slider")
    assert "UTC" in browser.text("#when")
    for view in ("Preemptions", "Reports", "Would it fit?"):
        browser.click_text("#views a", view)
        assert not browser.shown("#slider"), view
        assert not browser.shown("#strip"), view
    browser.click_text("#views a", "Cluster")
    assert browser.shown("#slider")
    browser.press("#slider", Keys.ARROW_LEFT)
    await seen(browser, lambda: browser.text("#mode") == "Then", "a moment of the past")
    browser.click_text("#views a", "Reports")
    await seen(browser, lambda: browser.text("#mode") == "Now", "a report is not of a moment")
    assert browser.complaints() == []


async def test_an_explanation_is_asked_for_again_without_an_event(service, browser):
    """A pod without a group comes to a node: no event, and the answer about the node changes by itself."""
    service.start()
    browser.open(f"{service.url}/ui/#node=r0-n0")
    await seen(browser, lambda: "Node r0-n0" in browser.text("#detail .answer"), "the answer")
    before, events = browser.text("#detail .answer"), service.get("/v1/events?limit=1000")
    write(service, "ordinary", [a_pod("ordinary", node="r0-n0", requests={GPU: 3})])
    await seen(browser, lambda: "1 pod" in browser.text("#detail .answer"), "the new answer")
    assert browser.text("#detail .answer") != before
    types = {event["type"] for event in service.get("/v1/events?limit=1000")[len(events) :]}
    assert types <= {"CapacityMeasured"}
    assert browser.complaints() == []


async def test_commands_and_yaml_are_taken_along(service, browser):
    """Of a gang, a node and a pod: commands that name it, also at a moment, and YAML that is what /v1 has."""
    write(service, "tree", a_service_tree("tree"))
    service.start()
    browser.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"origin": service.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    browser.open(f"{service.url}/ui/#gang=default/tree")
    await seen(browser, lambda: len(browser.texts("#detail .copyable code")) == 3, "the commands")
    assert browser.texts("#detail .copyable code") == [
        "gang-extender explain CompositePodGroup/default/tree",
        "kubectl get compositepodgroups.gang-extender.dev tree -n default -o yaml",
        "gang-extender history default/tree",
    ]
    browser.click("#detail .take summary")
    await seen(browser, lambda: browser.text("#detail .yaml pre") != "", "the YAML")
    shown = yaml.safe_load(browser.text("#detail .yaml pre"))
    (gang,) = service.get("/v1/state")["gangs"]
    tree = service.get("/v1/gangs/default/tree/tree")
    assert shown == gang | {"groups": tree["groups"]}

    def copied():
        # again each time: with the next event the page draws its buttons anew, and what they show is gone
        browser.click("#detail .copyable .copy")
        return browser.text("#detail .copyable .copy").startswith("Copied")

    await seen(browser, copied, "copied")
    pasted = browser.driver.execute_async_script(
        "const done = arguments[0]; navigator.clipboard.readText().then(done, (error) => done(String(error)))"
    )
    assert pasted == "gang-extender explain CompositePodGroup/default/tree"
    position = service.get("/v1/events?type=GangAdmitted&limit=1")[0]["position"]
    browser.run(f"location.hash = 'at={position}&gang=default/tree'")
    await seen(
        browser,
        lambda: (
            browser.texts("#detail .copyable code")[:1]
            == [f"gang-extender explain CompositePodGroup/default/tree --at {position}"]
        ),
        "as of then",
    )
    browser.run("location.hash = 'node=r0-n0'")
    await seen(
        browser,
        lambda: (
            browser.texts("#detail .copyable code")
            == ["gang-extender explain Node/r0-n0", "kubectl get node r0-n0 -o yaml"]
        ),
        "of a node",
    )
    assert browser.complaints() == []


def test_nodes_are_of_a_size_to_hit(service, browser):
    """24 px with 500 nodes, 16 with 2,000; of 2,500 the racks are hit. Members without recorded amounts are drawn as bound."""
    service.start()
    browser.open(f"{service.url}/ui/")
    (few, hit), (more, smaller), (most, racks) = browser.run(
        f"return (async () => {{ {LEAST_SIZES} }})()"
    )
    assert (few, more, most) == (500, 2000, 2500)
    assert hit >= 24
    assert smaller >= 16
    assert racks >= 24
    amounts = browser.run(f"return (async () => {{ {AMOUNTS} }})()")
    assert (amounts["bound"], amounts["other"], amounts["free"]) == (5, 1, 1)


def ask(service, path, body):
    """Send a body to the service and return the answer."""
    request = urllib.request.Request(
        f"{service.url}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)], ids=["desktop", "phone"])
async def test_moves_and_the_map_before_and_after(service, browser, tmp_path, size):
    """A question by keys, its rows and the map after; then the moves that are under way, with the claim on the map."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "t", "uid": "job", "controller": True}
    members = [
        a_pod(f"t-{n}", "t", node=f"n{n}", requests={GPU: 4}, metadata={"ownerReferences": [job]})
        for n in range(2)
    ]
    nodes = [a_node(f"n{n}", {RACK: f"r{n // 2}"}, gpu=4) for n in range(4)]
    write(service, "moves", [*nodes, a_group("t", gang=1), *members])
    service.start()
    width, height = size
    shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 800}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    browser.open(f"{service.url}/ui/#view=moves")
    await seen(
        browser, lambda: browser.text("#moves-state") == "no moves are under way", "that none are"
    )
    assert not browser.shown("#moves-moment")
    await seen(browser, lambda: "bound 8" in browser.text("#sums"), "the members on the map")
    browser.press("#moves-kind", "d")
    browser.press("#moves-subject", "n0", Keys.ENTER)
    await seen(browser, lambda: "drain n0: 1 move" in browser.text("#moves-text"), "the moves")
    (row,) = browser.texts("#moves-answer tbody tr")
    (move,) = ask(service, "/v1/moves", {"drain": ["n0"]})["moves"]
    assert row == f"1default/t-0default/tn0{move['to']}0"

    def first_node():
        browser.run("document.activeElement.blur()")
        browser.press("#map", Keys.ARROW_RIGHT)
        return browser.text("#map-text")

    assert "n0; rack r0; nvidia.com/gpu of 4, in units; bound: 4" in first_node()
    browser.press("#moves-moment [value=before]", Keys.ARROW_DOWN)
    await seen(browser, lambda: "in units; free: 4" in first_node(), "n0 is empty after the moves")
    browser.picture(tmp_path / "after.png")
    browser.dark()
    browser.picture(tmp_path / "after-dark.png")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    ask(service, "/v1/moves/apply", {"drain": ["n0"]})
    await seen(browser, lambda: browser.texts("#moves-under-way .badge") == ["now"], "the row")
    await seen(
        browser, lambda: "claimed 4" in browser.text("#sums"), "what is held on the new node"
    )
    ask(service, "/v1/moves/control", {"action": "pause"})
    await seen(browser, lambda: browser.texts("#moves-under-way .badge") == ["paused"], "paused")
    assert "gang-extender moves resume" in browser.text("#moves-under-way code")
    assert browser.texts("#moves button:not(.copy)") == ["Which moves?"]  # it only reads
    browser.picture(tmp_path / "under-way.png")
    assert browser.complaints() == []
