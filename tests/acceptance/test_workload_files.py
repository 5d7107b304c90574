"""A JobSet file in the folder of `serve --cluster`: placed as a tree, all or nothing, without a group written by hand.

The service runs as in production, on an embedded PostgreSQL; the demo's player has kube-scheduler's part.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deploy.demo.kube_scheduler import Player
from tests.acceptance.test_process_kills import WITHIN_S, play_until, recorded, service
from tests.support.service.fakes import until

__all__ = ["service"]
EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
RACK = "topology.example.com/rack"
BLOCK = "topology.example.com/block"
pytestmark = [pytest.mark.postgres, pytest.mark.timeout(600)]


def put(service, name, replicas=2):
    """Write an example into the folder of the service, by rename, with a number of slices."""
    text = (EXAMPLES / name).read_text().replace("replicas: 2", f"replicas: {replicas}")
    hidden = service.folder / f"{name}.tmp"
    hidden.write_text(text)
    hidden.rename(service.manifests / name)


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
        await until(
            lambda: [g["state"] for g in gangs().values()] == ["unschedulable"],
            "a refusal",
            WITHIN_S,
        )
        (name,) = gangs()
        assert recorded(service, "nominated", "pretrain") == []
        put(service, "jobset.yaml")
        await until(
            lambda: len(recorded(service, "gate-removed", "pretrain")) == 9, "let go", WITHIN_S
        )
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
        for number in range(2):
            racks = {one[RACK] for pod, one in labels.items() if f"-worker-{number}-" in pod}
            assert len(racks) == 1
    finally:
        await player.close()
    (service.manifests / "jobset.yaml").unlink()
    await until(lambda: not gangs(), "the end of the gang", WITHIN_S)
