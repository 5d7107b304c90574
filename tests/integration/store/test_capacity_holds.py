"""A capacity hold on a real PostgreSQL: through a kill -9, at times of the past, from its stored input, and to its use."""

from __future__ import annotations

import asyncio
import json

import pytest
import yaml
from typer.testing import CliRunner

from extender.cli.main import app
from tests.support.service.fakes import GATED
from tests.support.service.manifest_builders import GPU, a_gang, a_node, a_pod
from tests.support.service.replicas import Replica
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

HOLDING = {"hold_capacity_after_s": 1, "hold_capacity_max_percent": 100, "preemption": "false"}


async def test_a_hold_survives_a_kill_and_ends_with_the_admission(database_url, tmp_path):
    """The next leader holds the same capacity; a small gang does not get it, and the large one does."""
    manifests = tmp_path / "manifests"
    manifests.mkdir()

    def write(name, objects):
        (tmp_path / name).write_text(yaml.safe_dump_all(objects))
        (tmp_path / name).rename(manifests / f"{name}.yaml")

    write("nodes", [a_node(f"n{i}", gpu=1) for i in range(2)])
    for i in range(2):
        write(f"runs-{i}", [a_pod(f"runs-{i}", node=f"n{i}", namespace="other", requests={GPU: 1})])
    first = Replica(tmp_path, database_url, manifests, "first", **HOLDING)
    second = None
    try:
        await first.until_leads()
        write("large", a_gang("large", pods=2, requests={GPU: 1}, schedulingGates=GATED))
        (held,) = await first.until_events("?type=CapacityHeld&gang=default/large")
        assert sorted(a["node"] for a in held["data"]["assignments"]) == ["n0", "n1"]
        (before,) = (await first.ask("/v1/state"))[1]["capacity_holds"]
        first.kill()
        second = Replica(tmp_path, database_url, manifests, "second", **HOLDING)
        await second.until_leads()
        assert (await second.ask("/v1/state"))[1]["capacity_holds"] == [before]
        write("small", a_gang("small", pods=1, requests={GPU: 1}, schedulingGates=GATED))
        await second.until_events("?type=GangUnschedulable&gang=default/small")
        (manifests / "runs-0.yaml").unlink()

        async def is_known():
            answer = (await second.ask("/v1/explain?name=small"))[1]
            return any("is held for trees" in text for text in answer["reasons"])

        await eventually(is_known, "the hold among the reasons", every_s=0.2)
        answer = (await second.ask("/v1/explain?name=large"))[1]["answer"]
        assert "capacity is held for it on 2 nodes as it frees: 1 of 2 pods would fit now" in answer
        (manifests / "runs-1.yaml").unlink()
        (admitted,) = await second.until_events("?type=GangAdmitted")
        assert admitted["gang"] == "default/large"
        (ended,) = await second.until_events("?type=CapacityHoldReleased&gang=default/large")
        assert ended["data"]["reason"] == "admitted"
        now = (await second.ask("/v1/state"))[1]["capacity_holds"]
        assert "default/large" not in {hold["gang"] for hold in now}
        then = (await second.ask(f"/v1/state?at={held['position']}"))[1]
        assert then["capacity_holds"] == [before]
        assert {node["node"]: node["capacity_holds"] for node in then["nodes"]} == {
            name: {GPU: 1, "pods": 1} for name in ("n0", "n1")
        }
    finally:
        first.end()
        if second is not None:
            second.end()
    # `verify` and `replay` have event loops of their own
    verified = await asyncio.to_thread(_run, "verify", "--database-url", database_url, "-o", "json")
    assert json.loads(verified.output)["findings"] == [], verified.output
    replayed = await asyncio.to_thread(
        _run, "decision", "replay", str(held["position"]), "--database-url", database_url
    )
    assert replayed.exit_code == 0, replayed.output


def _run(*words):
    return CliRunner().invoke(app, list(words))
