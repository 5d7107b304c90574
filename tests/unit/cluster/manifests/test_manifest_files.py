"""Files of a served cluster that are not valid, and a data directory that belongs to other files."""

from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import yaml

from extender.cluster.manifests.served.manifest_cluster import FileWatcher, ManifestCluster
from extender.core.model.errors import BadInput
from extender.core.model.ids import NodeName
from extender.ports.cluster_ports import Binding, PodRef
from extender.runtime.system_clock import SystemClock
from extender.telemetry import METRICS
from tests.support.service.manifest_builders import a_node, a_pod
from tests.support.waiting import eventually

POLL_S = 0.01


class Folder:
    """Manifests of a test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def write(self, name: str, *things, text: str | None = None) -> str:
        fresh = self.path / f"{name}.new"
        fresh.write_text(yaml.safe_dump_all(things) if text is None else text)
        fresh.rename(self.path / name)
        return str(self.path / name)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path / "manifests")


@asynccontextmanager
async def serving(data, *paths, fence=lambda: True):
    cluster = ManifestCluster(
        [str(p) for p in paths], data, clock=SystemClock(), fence=fence, poll_s=POLL_S
    )
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


def types_in(data) -> Counter[str]:
    body = (data / "cluster.jsonl").read_bytes()
    return Counter(msgspec.json.decode(line)["type"] for line in body.splitlines())


def names(cluster) -> set[str]:
    return {str(n) for n in cluster.view().nodes} | {p.name for p in cluster.view().pods.values()}


async def bind(cluster, name: str) -> None:
    (pod,) = (p for p in cluster.view().pods.values() if p.name == name)
    ref = PodRef(namespace="default", name=name, uid=pod.uid)
    await cluster.bind(Binding(pod=ref, node=NodeName("n1"), plan="plan"))


def of_class(thing, name: str):
    thing["spec"]["priorityClassName"] = name
    return thing


def a_class(name: str):
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 5,
    }


async def test_a_broken_file_keeps_its_content_and_the_others_go_on(folder, tmp_path) -> None:
    folder.write("nodes.yaml", a_node("n1"))
    broken = folder.write("pods.yaml", a_pod("p"))
    async with serving(tmp_path / "data", folder.path) as cluster:
        folder.write("pods.yaml", text="kind: [")
        folder.write("nodes.yaml", a_node("n1"), a_node("n2"))
        await eventually(lambda: "n2" in names(cluster))
        assert names(cluster) == {"n1", "n2", "p"}
        assert cluster.not_ready_reason() == ""
        (note,) = cluster.ignored_sources()
        assert note.startswith(f"ignored file: {broken}: line 2, column")
        assert note.endswith("; its last valid content stays in use")
        sample = {"file": broken}
        assert (
            METRICS.registry.get_sample_value("gang_extender_manifest_files_ignored", sample) == 1
        )
        folder.write("pods.yaml", a_pod("q"))
        await eventually(lambda: "q" in names(cluster))
        assert names(cluster) == {"n1", "n2", "q"}
        assert cluster.ignored_sources() == ()
        assert (
            METRICS.registry.get_sample_value("gang_extender_manifest_files_ignored", sample)
            is None
        )


async def test_a_file_that_is_not_valid_beside_the_others_is_ignored(folder, tmp_path) -> None:
    """It can be read, and names a PriorityClass that no file has; then another file has it."""
    folder.write("a.yaml", a_node("n1"))
    folder.write("b.yaml", of_class(a_pod("p"), "missing"))
    folder.write("c.yaml", a_pod("q"))
    async with serving(tmp_path / "data", folder.path) as cluster:
        assert names(cluster) == {"n1", "q"}
        (note,) = cluster.ignored_sources()
        assert 'no PriorityClass "missing" in the files; its objects are not there' in note
        folder.write("d.yaml", a_class("missing"))
        await eventually(lambda: "p" in names(cluster))
        assert cluster.ignored_sources() == ()


async def test_files_that_need_each_other_are_read_in_any_order(folder) -> None:
    """A third one is not valid, so they are tried one by one."""
    folder.write("a.yaml", of_class(a_pod("p"), "late"))
    folder.write("b.yaml", of_class(a_pod("x"), "missing"))
    folder.write("z.yaml", a_class("late"))
    found = await FileWatcher([str(folder.path)]).changed({})
    assert found is not None
    assert [Path(name).name for name in found.ignored] == ["b.yaml"]
    assert {entry.obj.metadata.name for entry in found.manifest.entries} == {"p", "late"}


async def test_a_removed_file_that_others_need_leaves_all_as_it_was(folder, tmp_path) -> None:
    folder.write("a.yaml", of_class(a_pod("p"), "high"))
    high = folder.write("b.yaml", a_class("high"))
    async with serving(tmp_path / "data", folder.path) as cluster:
        assert names(cluster) == {"p"}
        Path(high).unlink()
        await eventually(lambda: 'no PriorityClass "high"' in cluster._fault)
        assert names(cluster) == {"p"}
        assert cluster.not_ready_reason() == ""
    assert "deleted" not in types_in(tmp_path / "data")


async def test_what_a_broken_file_may_have_is_not_recorded_as_deleted(folder, tmp_path) -> None:
    """After a restart its last valid content is not known: not ready, until it is valid."""
    data = tmp_path / "data"
    folder.write("nodes.yaml", a_node("n1"))
    broken = folder.write("pods.yaml", a_pod("p"))
    async with serving(data, folder.path) as cluster:
        await bind(cluster, "p")
    folder.write("pods.yaml", text="kind: [")
    async with serving(data, folder.path) as cluster:
        reason = cluster.not_ready_reason()
        assert "Pod default/p is recorded in cluster.jsonl and is in no valid file" in reason
        assert broken in reason
        folder.write("nodes.yaml", a_node("n1"), a_node("n2"))
        folder.write("pods.yaml", a_pod("p"), a_pod("q"))
        await eventually(lambda: "q" in names(cluster))
        assert cluster.not_ready_reason() == ""
        assert [p.node for p in cluster.view().pods.values() if p.name == "p"] == ["n1"]
    assert "deleted" not in types_in(data)


async def test_a_data_directory_of_other_manifests_is_refused(folder, tmp_path) -> None:
    data, other = tmp_path / "data", Folder(tmp_path / "other")
    folder.write("a.yaml", a_node("n1"), a_pod("p"))
    other.write("b.yaml", a_node("n2"))
    async with serving(data, folder.path) as cluster:
        await bind(cluster, "p")
        with pytest.raises(BadInput, match=f"belongs to other manifests, {folder.path}, whose"):
            async with serving(data, other.path):
                pass
        assert names(cluster) == {"n1", "p"}
    assert types_in(data) == {"manifests": 1, "bound": 1}


async def test_paths_may_be_added_and_moved(folder, tmp_path) -> None:
    data, other = tmp_path / "data", Folder(tmp_path / "other")
    folder.write("a.yaml", a_node("n1"), a_pod("p"))
    other.write("b.yaml", a_node("n2"))
    async with serving(data, folder.path) as cluster:
        await bind(cluster, "p")
    async with serving(data, other.path, folder.path) as cluster:
        assert names(cluster) == {"n1", "n2", "p"}
    moved = tmp_path / "moved"
    folder.path.rename(moved)
    async with serving(data, moved, other.path) as cluster:
        assert names(cluster) == {"n1", "n2", "p"}
    assert types_in(data) == {"manifests": 3, "bound": 1}


async def test_a_service_whose_paths_are_not_the_newest_records_no_removal(
    folder, tmp_path
) -> None:
    """Another one added a path: what is missing here may be there."""
    data, other = tmp_path / "data", Folder(tmp_path / "other")
    folder.write("a.yaml", a_node("n1"))
    other.write("b.yaml", a_pod("p"))
    async with serving(data, folder.path) as old, serving(data, folder.path, other.path) as new:
        await bind(new, "p")
        folder.write("a.yaml", a_node("n1"), a_node("n2"))
        await eventually(lambda: "n2" in names(old) and "n2" in names(new))
        other.write("b.yaml", a_pod("q"))
        await eventually(lambda: types_in(data)["deleted"] == 1)
    assert types_in(data) == {"manifests": 2, "bound": 1, "deleted": 1}
