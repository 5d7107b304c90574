"""A JobSet file in the folder of `serve --cluster`: placed as a tree, all or nothing, without a group written by hand.

The service runs as in production; the demo's player has kube-scheduler's part.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from deploy.demo.kube_scheduler import Player
from tests.acceptance.test_preemption_kills import service
from tests.acceptance.test_process_kills import play_until, recorded
from tests.support.service.replicas import Replica
from tests.support.waiting import eventually

__all__ = ["service"]
EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
RACK = "topology.example.com/rack"
BLOCK = "topology.example.com/block"
pytestmark = pytest.mark.postgres


def put(service, name, replicas=2):
    """Write an example into the folder of the service, by rename, with a number of slices."""
    text = (EXAMPLES / name).read_text().replace("replicas: 2", f"replicas: {replicas}")
    hidden = service.folder / f"{name}.tmp"
    hidden.write_text(text)
    hidden.rename(service.manifests / name)


def groups(data):
    """Return name and UID of each group that was written to a cluster, in order."""
    lines = [json.loads(line) for line in (data / "cluster.jsonl").read_bytes().splitlines()]
    return [(one["name"], one["uid"]) for one in lines if one["type"].endswith("pod-group")]


async def test_the_jobset_of_the_examples_runs_as_a_whole(service):
    """Too large for a block it waits with nothing bound; with two slices all nine pods run; when it is removed, it is gone."""
    (service.manifests / "fleet.yaml").unlink()
    shutil.copy(EXAMPLES / "cluster.yaml", service.manifests)
    put(service, "jobset.yaml", replicas=5)
    service.start()

    def gangs():
        return {gang["gang"]: gang for gang in service.get("/v1/gangs")}

    player = Player(service.url, service.manifests, service.data / "cluster.jsonl")
    try:
        assert len([key for key in player.raw if key[1].startswith("pretrain-")]) == 21
        await eventually(
            lambda: [g["state"] for g in gangs().values()] == ["unschedulable"], "a refusal"
        )
        (name,) = gangs()
        assert recorded(service, "nominated", "pretrain") == []
        put(service, "jobset.yaml")
        await eventually(lambda: len(recorded(service, "gate-removed", "pretrain")) == 9, "let go")
        player.reload()
        await play_until(
            player,
            lambda: gangs()[name]["state"] == "scheduled" and gangs()[name]["bound"] == 9,
            "all nine bound",
        )
        found = service.get(f"/v1/gangs/{name}")
        labels = {
            member["pod"]: player.view.nodes[member["node"]].labels for member in found["members"]
        }
        assert len({one[BLOCK] for one in labels.values()}) == 1
        assert found["workload"] == "JobSet/default/pretrain"
        (tree,) = service.get("/v1/trees")
        assert (tree["outcome"], tree["groups"]) == ("compiled", 5)
        assert tree["roots"] == [
            {"name": name.partition("/")[2], "kind": "CompositePodGroup", "state": "scheduled"}
        ]
        answer = service.run("decision", "replay", str(tree["position"]))
        assert (answer.returncode, answer.stderr) == (0, "")
        for number in range(2):
            racks = {one[RACK] for pod, one in labels.items() if f"-worker-{number}-" in pod}
            assert len(racks) == 1
    finally:
        await player.close()
    (service.manifests / "jobset.yaml").unlink()
    await eventually(lambda: not gangs(), "the end of the gang")
    await eventually(lambda: service.get("/v1/trees") == [], "the end of the tree")
    (retired,) = service.get("/v1/events?type=TreeRetired")
    assert retired["data"]["reason"] == "deleted"


async def test_trees_survive_a_kill_and_a_refused_workload_is_held(service):
    """After a restart the groups are the same objects; a workload with a wrong annotation is listed, and its pods wait."""
    (service.manifests / "fleet.yaml").unlink()
    shutil.copy(EXAMPLES / "cluster.yaml", service.manifests)
    put(service, "jobset.yaml")
    service.start()

    def trees():
        return {one["workload"]: one["outcome"] for one in service.get("/v1/trees")}

    await eventually(lambda: len(recorded(service, "gate-removed", "pretrain")) == 9, "let go")
    before = groups(service.data)
    assert len(before) == 5
    service.kill()
    text = (EXAMPLES / "job.yaml").read_text()
    annotated = text.replace("annotations: {", "annotations: {gang-extender.dev/gang: per-job, ")
    assert annotated != text
    (service.manifests / "job.yaml").write_text(annotated)
    service.start()
    await eventually(lambda: "refused" in trees().values(), "a refusal")
    (name,) = (name for name, outcome in trees().items() if outcome == "refused")
    assert trees() == {name: "refused", "default/pretrain": "compiled"}
    (line,) = (s for s in service.run("trees").stdout.splitlines() if s.startswith(name))
    assert "per-job" in line
    assert groups(service.data) == before
    assert recorded(service, "gate-removed", name.partition("/")[2]) == []
    (service.manifests / "job.yaml").write_text(text)
    await eventually(lambda: trees()[name] == "compiled", "a tree")
    await eventually(lambda: len(groups(service.data)) == 6, "its group")
    assert len(service.get("/v1/events?type=TreeCompiled")) == 2


async def test_a_standby_finds_the_groups_of_the_leader(database_url, tmp_path):
    """Two replicas share the record of the cluster; the one that takes over writes only what is new."""
    manifests, data = tmp_path / "manifests", tmp_path / "shared"
    manifests.mkdir()
    for name in ("cluster.yaml", "jobset.yaml"):
        shutil.copy(EXAMPLES / name, manifests)
    first, second = [
        Replica(tmp_path, database_url, manifests, name, data="shared") for name in ("r0", "r1")
    ]
    try:
        await first.until_events("?type=TreeCompiled")
        if await second.leads():
            first, second = second, first
        await eventually(lambda: len(groups(data)) == 5, "groups")
        await second.until("/readyz", 200)
        before = groups(data)
        first.kill()
        await second.until_leads()
        shutil.copy(EXAMPLES / "job.yaml", tmp_path / "job.new")
        (tmp_path / "job.new").rename(manifests / "job.yaml")
        await second.until_events("?type=TreeCompiled", 2)
        await eventually(lambda: len(groups(data)) == 6, "the new group")
        assert groups(data)[:5] == before
        assert await second.events("?type=GangRemoved") == []
        _, trees = await second.ask("/v1/trees")
        assert [one["outcome"] for one in trees] == ["compiled", "compiled"]
    finally:
        first.end()
        second.end()
