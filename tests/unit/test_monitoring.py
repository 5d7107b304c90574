"""Alerting rules and dashboards name only metrics and labels that exist; each alert has a page and its tests."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import yaml
from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from docs.site.reference import METRIC_UNITS, metrics_page
from extender.core.log.events import AnyEventData
from extender.telemetry import Metrics

ROOT = Path(__file__).resolve().parents[2]
MONITORING, PAGES = ROOT / "deploy/monitoring", ROOT / "docs/alerts"
# a metric, and the matchers in braces
_SELECTOR = re.compile(r"(gang_extender_\w+)(?:\{([^}]*)\})?")
FROM_PROMETHEUS = {"cluster", "instance", "job"}  # labels of the target
# of each series of a panel: the installation and the replica that are chosen
SELECTED = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
OF_AN_INSTALLATION = ["cluster", "job"]
RUNBOOKS = "https://docs.example.com/gang-extender/docs/alerts"


@functools.cache
def rules():
    """Return the alerting rules."""
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@functools.cache
def boards():
    """Return the dashboards by name."""
    files = sorted((MONITORING / "dashboards").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in files}


def queries():
    """Yield the place and the text of each query of an alert or a panel."""
    for rule in rules():
        yield f"rules.yaml: {rule['alert']}", rule["expr"]
    for name, board in boards().items():
        for panel in board["panels"]:
            for target in panel["targets"]:
                place = f"dashboards/{name}.json: {panel['title']} {target['refId']}"
                yield place, target["expr"]


def series():
    """Return the labels of each series name of the service."""
    found = {}
    for value in vars(Metrics()).values():
        if isinstance(value, MetricWrapperBase):
            for family in value.describe():
                names = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
                for suffix in names.get(family.type, ("",)):
                    more = {"le"} if suffix == "_bucket" else set()
                    found[family.name + suffix] = set(value._labelnames) | more
    return found


def faults_of(query, labels_of):
    """Yield what is wrong with a query, given the labels of each series."""
    selectors = _SELECTOR.findall(query)
    if not selectors:
        yield "it names no metric of the service"
    labels_there = set(FROM_PROMETHEUS)
    for metric, matchers in selectors:
        if metric not in labels_of:
            yield f"{metric} does not exist"
            continue
        labels_there |= labels_of[metric]
        labels = set(re.findall(r"(\w+)\s*[=!]", matchers)) - labels_of[metric] - FROM_PROMETHEUS
        yield from (f"{metric} has no label {label}" for label in sorted(labels))
    for part in re.findall(r"by \(([^)]*)\)", query):
        grouped = {label.strip() for label in part.split(",")} - labels_there
        yield from (f"no metric of it has the label {label}" for label in sorted(grouped))


def test_each_query_names_series_and_labels_that_exist():
    """A metric that was renamed or lost a label is found here, not by an empty panel."""
    labels_of = series()
    offences = [
        f"{place}: {fault}" for place, query in queries() for fault in faults_of(query, labels_of)
    ]
    assert not offences, "\n".join(offences)


def test_what_is_counted_is_counted_for_each_installation(subtests):
    """Two clusters with one leader each are not one with two: aggregates are by cluster and job, also where series are joined."""
    for place, query in queries():
        with subtests.test(place):
            for word, labels in re.findall(
                r"\b(sum|max|min|avg|count|on|ignoring)\b(?: by)? ?(?:\(([\w, ]*)\))?", query
            ):
                assert labels.split(", ")[:2] == OF_AN_INSTALLATION, (word, labels)


def test_a_panel_shows_the_cluster_that_is_chosen(subtests):
    """Each series of it, and its name; alone where Prometheus has no label cluster."""
    for name, board in boards().items():
        variables = [one["name"] for one in board["templating"]["list"]]
        assert variables == ["datasource", "cluster", "job", "instance"], name
        for panel in board["panels"]:
            for target in panel["targets"]:
                with subtests.test(f"{name}: {panel['title']}"):
                    selectors = [matchers for _, matchers in _SELECTOR.findall(target["expr"])]
                    assert all(matchers.startswith(SELECTED) for matchers in selectors)
                    assert target["legendFormat"].startswith("{{cluster}} ")


# Metrics that neither an alert nor a panel uses, and why they are there.
NOT_SHOWN = {
    "gang_extender_apiserver_dropped_fields": "changes when the control plane does; docs/runbook/feature-gates.md names it",
    "gang_extender_manifest_files_ignored": "only of a service with --cluster; docs/workloads.md names it",
    "gang_extender_moves_left": "only while moves are made; docs/how-to/make-room.md names it",
    "gang_extender_moves_ended": "only after moves were made; docs/how-to/make-room.md names it",
}


def test_each_metric_is_used_by_an_alert_or_a_panel():
    """A metric without a reader is not measured; an exception has its reason, and a document that names it."""
    used = {name for _, query in queries() for name, _ in _SELECTOR.findall(query)}
    unused = {
        family.name
        for family in Metrics().registry.collect()
        if not {family.name + end for end in ("", "_total", "_bucket", "_sum", "_count")} & used
    }
    assert unused == set(NOT_SHOWN)
    for name, why in NOT_SHOWN.items():
        file = re.search(r"[\w/-]+\.md", why).group()
        assert name in (ROOT / file).read_text(), name


def test_metrics_page_of_the_reference_has_each_metric_with_its_uses():
    page = "\n".join(metrics_page())
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    families = {
        family.name + "_total" * (family.type == "counter")
        for family in Metrics().registry.collect()
    }
    assert set(rows) == families
    for rule in rules():
        for metric, _ in _SELECTOR.findall(rule["expr"]):
            row = rows[re.sub(r"_(bucket|sum|count)$", "", metric)]
            assert f"[{rule['alert']}](../../alerts/{rule['alert']}.md)" in row
    assert {row.split(" | ")[3] for row in rows.values()} == {"number", *METRIC_UNITS.values()}


def test_no_series_has_the_time_of_its_creation():
    """As `/metrics` prints it; the client library would add a series `_created` for each counter and histogram."""
    metrics = Metrics()
    metrics.extender_request_duration_seconds.labels("filter").observe(0.1)
    text = generate_latest(metrics.registry).decode()
    assert "gang_extender_extender_request_duration_seconds_count" in text
    assert "_created" not in text


def test_label_values_of_queries_exist():
    """A query for an event type asks for one that the log has."""
    names = {event.__name__ for event in AnyEventData.__args__}
    asked = set(re.findall(r'type="(\w+)"', " ".join(query for _, query in queries())))
    assert asked
    assert asked <= names | {"podgroup"}


def test_each_alert_has_a_page_and_tests(subtests):
    """One test in which it fires, one in which it does not; a page with what to do, linked from the list."""
    tests = yaml.load((MONITORING / "rules_test.yaml").read_text(), Loader=yaml.CSafeLoader)[
        "tests"
    ]
    list_of_pages = (PAGES / "README.md").read_text()
    for rule in rules():
        name = rule["alert"]
        with subtests.test(name):
            assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS}/{name}.html"
            page = (PAGES / f"{name}.md").read_text()
            assert page.startswith(f"# {name}\n")
            assert "## Look at" in page
            assert "## What to do" in page
            assert f"[{name}]({name}.md)" in list_of_pages
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            fires = [bool(check["exp_alerts"]) for test in tests for check in test["alert_rule_test"]
                     if check["alertname"] == name]  # fmt: skip
            assert {*fires} == {False, True}


def test_no_page_is_without_a_rule():
    """A rule that is removed takes its page along."""
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == {r["alert"] for r in rules()}


def test_no_two_panels_have_one_place():
    """Panels do not overlap, and identifiers are unique in a dashboard."""
    for name, board in boards().items():
        assert board["uid"] == f"gang-extender-{name}"
        cells = [
            (x, y)
            for panel in board["panels"]
            for place in [panel["gridPos"]]
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(cells) == len(set(cells))
        assert max(x for x, _ in cells) < 24
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
