"""A real Prometheus scrapes a real run: each query of rules and dashboards is answered, and rules behave as in their tests.

Prometheus and promtool are those of Debian's package prometheus.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import aiohttp
import pytest
import yaml

from deploy.demo.ports import free_port
from tests.support.failure_report import show_log
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "deploy/monitoring"
GOLDEN = ROOT / "tests/golden"
# Panels without a series until something rare happens in a cluster; their metrics are announced all the same.
MAY_BE_EMPTY = {
    "overview: Certificates end in": "the run has no TLS",
    "overview: Requests refused": "no request was refused",
    "overview: Rights of readers": "the run has no authentication",
    "overview: TLS handshakes that failed": "the run has no TLS",
    "gangs: Search by namespace": "no search was long",
    "preemptions: Searches for victims": "there is no preemption",
    "waiting: What waiting gangs request": "the first measurement of the capacity ends within a minute",
    "waiting: Capacity by use": "the first measurement of the capacity ends within a minute",
    "waiting: What would free capacity": "the first measurement of the capacity ends within a minute",
    "log-and-lease: Findings of the verification": "the first verification ends within a minute",
    "log-and-lease: Time since a verification": "the first verification ends within a minute",
    "log-and-lease: Lists from kube-apiserver": "the cluster is made of manifests",
}
pytestmark = pytest.mark.postgres


def program(name):
    """Return the path of a program of Prometheus; without it the test is skipped, and fails in CI."""
    found = shutil.which(name)
    if found is None:
        words = f"{name} is missing; it is in Debian's package prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", "rules.yaml"),
        pytest.param(("test", "rules", "rules_test.yaml"), marks=pytest.mark.full),
    ],
    ids=["are rules", "fire"],
)
def test_each_rule_fires_when_it_should_and_only_then(words):
    """promtool checks the rules, and runs a test with an alert and one without for each."""
    done = subprocess.run(
        [program("promtool"), *words], cwd=MONITORING, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def prometheus(service, tmp_path_factory):
    """Prometheus with our rules, which scrapes the service each 0.2 s; gives its address."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(yaml.safe_dump({
        "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(MONITORING / "rules.yaml")],
        "scrape_configs": [{
            "job_name": "gang-extender", "static_configs": [{"targets": [service.url.removeprefix("http://")]}],
        }],
    }))  # fmt: skip
    address = f"127.0.0.1:{free_port()}"
    show_log(folder / "log")
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(
            [
                program("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}",
                "--scrape.discovery-reload-interval=100ms",
            ], stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield f"http://{address}"
    finally:
        running.terminate()
        running.wait()


async def get(url, path, **parameters):
    """Return `data` of an answer of Prometheus; None while it does not answer."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(url + path, params=parameters) as reply:
                found = await reply.json(content_type=None)
        except (aiohttp.ClientConnectionError, json.JSONDecodeError):
            return None
    assert found["status"] == "success", (parameters, found)
    return found["data"]


def queries():
    """Yield name and query of each target of each panel, with the variables of Grafana filled in."""
    for path in sorted((MONITORING / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = re.sub(r"\$(cluster|job|instance)", ".*", target["expr"])
                query = query.replace("$__rate_interval", "1m")
                assert "$" not in query
                yield f"{path.stem}: {panel['title']}", query


async def test_each_panel_shows_something(service, prometheus):
    """All queries are answered; those that are empty are listed here, with the reason, and their metrics exist."""
    async with aiohttp.ClientSession() as session:
        for line in (GOLDEN / "wire/node-names.jsonl").read_text().splitlines()[:3]:
            call = json.loads(line)  # filter, prioritize, bind of one pod
            async with session.post(
                f"{service.verbs_url}/scheduler/{call['verb']}", json=call["request"]
            ) as reply:
                await reply.read()
    empty = {}

    async def shown():
        answers = {
            name: await get(prometheus, "/api/v1/query", query=query) for name, query in queries()
        }
        empty.clear()
        empty.update(
            (name, query)
            for name, query in queries()
            if not (answers[name] and answers[name]["result"])
        )
        return set(empty) <= set(MAY_BE_EMPTY)

    await eventually(shown, "something on each panel", every_s=0.2, state=lambda: sorted(empty))
    announced = await get(prometheus, "/api/v1/metadata")
    for name, query in empty.items():
        for metric in re.findall(r"gang_extender_\w+", query):
            family = re.sub(r"_(bucket|sum|count)$", "", metric)
            assert {family, family.removesuffix("_total")} & set(announced), (name, metric)


async def test_no_alert_fires_in_a_healthy_run(prometheus):
    """The rules are loaded and evaluated; nothing is pending but what waits for verification."""

    async def evaluated():
        groups = ((await get(prometheus, "/api/v1/rules")) or {"groups": []})["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return rules if rules and all(rule["health"] == "ok" for rule in rules) else None

    rules = await eventually(evaluated, "the evaluation of all rules", every_s=0.2)
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
