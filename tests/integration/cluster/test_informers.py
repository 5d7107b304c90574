"""Lists and watches when the API server or the network misbehaves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Container
from typing import Any

import msgspec
import pytest

from extender.cluster.api_server import api_discovery, informers, kubernetes_cluster
from extender.cluster.api_server.kubernetes_cluster import KubernetesCluster
from extender.cluster.types import KubernetesObject
from extender.core.model.errors import ClusterUnavailable
from extender.core.model.ids import NodeName
from extender.core.model.pod_groups import leaf_key
from extender.runtime import periodic
from tests.integration.cluster.fake_api import (
    FakeApi,
    Fault,
    a_node,
    a_pod,
    a_pod_group,
    counted,
)
from tests.support.waiting import eventually


async def synced(cluster: KubernetesCluster, fake: FakeApi) -> None:
    await cluster.start()
    await cluster.synced()
    await eventually(lambda: fake.watching("nodes") and fake.watching("pods"))


def names(cluster: KubernetesCluster) -> set[str]:
    return set(cluster.view().nodes.keys())


def lists(cluster: KubernetesCluster, label: str = "nodes") -> int:
    return counted("informer_lists", resource=label)


async def test_before_the_first_list_the_view_is_in_doubt(
    cluster: KubernetesCluster, fake: FakeApi
) -> None:
    """Nothing is decided from a cache that is not synced, and the doubt names it."""
    forbidden = Fault(lambda r: r.path == "/api/v1/pods", status=403, times=1000)
    fake.faults.append(forbidden)
    assert "not discovered" in cluster.not_ready_reason()
    await cluster.start()
    await eventually(lambda: "pods: not synced: 403" in cluster.not_ready_reason())
    forbidden.times = 0
    await cluster.synced()
    assert cluster.not_ready_reason() == ""


async def test_a_list_of_several_pages_is_applied_whole(
    cluster: KubernetesCluster, fake: FakeApi
) -> None:
    """1,200 nodes come in pages of 500."""
    for number in range(1200):
        fake.put("nodes", a_node(f"n{number}"))
    await synced(cluster, fake)
    assert len(cluster.view().nodes) == 1200
    assert fake.count("GET", "/api/v1/nodes", limit="500") == 3


async def test_changes_are_followed(cluster: KubernetesCluster, fake: FakeApi) -> None:
    """New, changed and deleted objects reach the view, and waiters wake."""
    await synced(cluster, fake)
    revision = cluster.view().revision
    fake.put("nodes", a_node("n1"))
    assert await cluster.changed(revision) != revision
    fake.put("pods", a_pod("p1"))
    await eventually(lambda: cluster.view().pods)
    pod = a_pod("p1", nodeName="n1")
    fake.put("pods", pod)
    await eventually(lambda: NodeName("n1") in cluster.view().usage)
    fake.remove("pods", "p1", "default")
    fake.remove("nodes", "n1")
    await eventually(lambda: not cluster.view().nodes and not cluster.view().pods)
    assert lists(cluster) == 1


async def test_a_cut_watch_goes_on_from_where_it_was(
    cluster: KubernetesCluster, fake: FakeApi
) -> None:
    """What happened meanwhile is delivered by the next watch, without a new list."""
    await synced(cluster, fake)
    fake.put("nodes", a_node("n1"))
    await eventually(lambda: names(cluster) == {"n1"})
    fake.cut_watches("nodes")
    fake.put("nodes", a_node("n2"))
    await eventually(lambda: names(cluster) == {"n1", "n2"})
    assert lists(cluster) == 1
    assert fake.count("GET", "/api/v1/nodes", watch="true") == 2


async def test_a_watch_from_too_old_a_version_ends_in_a_list_that_finds_deletions(
    cluster: KubernetesCluster, fake: FakeApi
) -> None:
    """410 as status: what vanished unseen is deleted, and there is doubt until then."""
    fake.put("nodes", a_node("n1"))
    fake.put("nodes", a_node("n2"))
    await synced(cluster, fake)
    hold = Fault(lambda r: r.path == "/api/v1/nodes" and "watch" not in r.query, times=1000)
    fake.faults.append(hold)
    fake.remove("nodes", "n1", notify=False)
    fake.put("nodes", a_node("n3"))
    fake.compacted = fake.version + 1
    fake.version += 5
    fake.cut_watches("nodes")
    await eventually(lambda: "nodes: not synced" in cluster.not_ready_reason())
    hold.times = 0
    await eventually(lambda: not cluster.not_ready_reason())
    assert names(cluster) == {"n2", "n3"}
    assert lists(cluster) == 2


async def test_an_expired_error_inside_a_watch_ends_in_a_list(
    cluster: KubernetesCluster, fake: FakeApi
) -> None:
    """410 as an ERROR item."""
    await synced(cluster, fake)
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    fake.send("nodes", msgspec.json.encode({"type": "ERROR", "object": status}) + b"\n")
    await eventually(lambda: lists(cluster) == 2)
    assert lists(cluster, "pods") == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"MODI\n',
        b"\xff\xfe\n",
        b'{"type":"SURPRISE","object":{}}\n',
        b'{"type":"MODIFIED","object":{"metadata":{"name":"x"}}}\n',
    ],
    ids=["torn", "garbage", "unknown", "versionless"],
)
async def test_a_line_in_doubt_ends_in_a_list(
    cluster: KubernetesCluster, fake: FakeApi, line: bytes
) -> None:
    """A guess about a change is never made."""
    fake.put("nodes", a_node("n1"))
    await synced(cluster, fake)
    fake.send("nodes", line)
    await eventually(lambda: lists(cluster) == 2 and not cluster.not_ready_reason())
    assert names(cluster) == {"n1"}


async def test_a_version_that_goes_back_ends_in_a_list(
    cluster: KubernetesCluster, fake: FakeApi
) -> None:
    """As after a restore of etcd."""
    await synced(cluster, fake)
    fake.put("nodes", a_node("n1"))
    await eventually(lambda: names(cluster) == {"n1"})
    fake.bookmark("nodes", 3)
    await eventually(lambda: lists(cluster) == 2)


async def test_a_bookmark_moves_the_version_on(cluster: KubernetesCluster, fake: FakeApi) -> None:
    """A quiet resource is not listed again after compaction, thanks to bookmarks."""
    await synced(cluster, fake)
    fake.version = 5000
    fake.bookmark("nodes", 5000)  # the watch has it before its end
    fake.compacted = 4000
    fake.cut_watches("nodes")
    await eventually(lambda: fake.count("GET", "/api/v1/nodes", resourceVersion="5000"))
    await eventually(lambda: fake.watching("nodes"))
    assert lists(cluster) == 1


async def test_an_object_that_cannot_be_read_does_not_stop_the_others(
    cluster: KubernetesCluster, fake: FakeApi
) -> None:
    """It is left out and counted; what was known of it stays."""
    await synced(cluster, fake)
    fake.put("nodes", a_node("n1"))
    await eventually(lambda: names(cluster) == {"n1"})
    broken = a_node("n1")
    broken["status"]["allocatable"]["cpu"] = {"not": "a quantity"}
    fake.put("nodes", broken)
    fake.put("nodes", a_node("n2"))
    await eventually(lambda: names(cluster) == {"n1", "n2"})
    assert counted("objects_unreadable", resource="nodes") == 1
    assert lists(cluster) == 1


async def test_a_pod_created_again_between_two_watches_is_another_pod(
    cluster: KubernetesCluster, fake: FakeApi
) -> None:
    """Same name, other UID: the old one is gone from the view and so is its capacity."""
    fake.put("nodes", a_node("n1"))
    fake.put("pods", a_pod("p", nodeName="n1"))
    await synced(cluster, fake)
    fake.remove("pods", "p", "default", notify=False)
    again = a_pod("p")
    again["metadata"]["uid"] = "another"
    fake.objects["pods"][("default", "p")] = again
    fake.version += 1
    again["metadata"]["resourceVersion"] = str(fake.version)
    fake.compacted = fake.version
    fake.cut_watches("pods")
    await eventually(lambda: lists(cluster, "pods") == 2)
    assert list(cluster.view().pods) == ["another"]
    assert not cluster.view().usage


async def test_a_silent_watch_is_opened_anew(
    cluster: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection may die without a word; bookmarks would have come."""
    monkeypatch.setattr(informers, "IDLE_S", 0.2)
    await synced(cluster, fake)
    await eventually(lambda: fake.count("GET", "/api/v1/nodes", watch="true") >= 2)
    assert lists(cluster) == 1


async def test_an_api_server_that_does_not_answer_is_doubted(
    cluster: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches are not trusted beyond a stated age; trust comes back by itself."""
    monkeypatch.setattr(kubernetes_cluster, "ASK_EVERY_S", 0.05)
    monkeypatch.setattr(kubernetes_cluster, "SILENT_MS", 300)
    await synced(cluster, fake)
    fake.silent = True
    await eventually(lambda: "the API server has not answered" in cluster.not_ready_reason())
    fake.silent = False
    await eventually(lambda: not cluster.not_ready_reason())


async def much_goes_on(cluster: KubernetesCluster, fake: FakeApi) -> None:
    """Create thirty pods, one after the other: a retry without pauses has sent as many requests by then."""
    for number in range(30):
        fake.put("pods", a_pod(f"p{number}"))
        await eventually(lambda number=number: len(cluster.view().pods) > number)


async def test_an_api_server_that_fails_is_asked_with_pauses(
    cluster: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch that is refused again and again backs off instead of spinning."""
    monkeypatch.setattr(informers, "PAUSE_FIRST_S", 3600.0)
    monkeypatch.setattr(informers, "PAUSE_MAX_S", 3600.0)
    await synced(cluster, fake)
    fake.faults.append(
        Fault(lambda r: r.path == "/api/v1/nodes", status=500, body=b"oops", times=1000)
    )
    fake.cut_watches("nodes")
    before = fake.count("GET", "/api/v1/nodes")
    await much_goes_on(cluster, fake)
    assert fake.count("GET", "/api/v1/nodes") - before < 10


async def test_a_watch_that_ends_at_once_does_not_spin(
    cluster: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that closes every watch with 200 is asked with pauses as well."""
    monkeypatch.setattr(informers, "PAUSE_FIRST_S", 3600.0)
    monkeypatch.setattr(informers, "PAUSE_MAX_S", 3600.0)
    await synced(cluster, fake)
    fake.faults.append(Fault(lambda r: r.path == "/api/v1/nodes", status=200, body=b"", times=1000))
    fake.cut_watches("nodes")
    before = fake.count("GET", "/api/v1/nodes")
    await much_goes_on(cluster, fake)
    assert fake.count("GET", "/api/v1/nodes") - before < 10


async def test_kinds_installed_later_are_noticed_and_removed_ones_forgotten(
    cluster: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRDs come and go while we run."""
    monkeypatch.setattr(kubernetes_cluster, "DISCOVER_EVERY_S", 0.1)
    monkeypatch.setattr(kubernetes_cluster, "DISCOVER_MISSING_S", 0.1)
    await synced(cluster, fake)
    fake.put("podgroups", a_pod_group("g"))
    assert not cluster.view().groups
    fake.groups["gang-extender.dev/v1alpha1"] = ["podgroups"]
    key = leaf_key("default", "g")
    await eventually(lambda: key in cluster.view().groups)
    await eventually(lambda: fake.watching("podgroups"))
    assert not cluster.not_ready_reason()
    fake.groups["gang-extender.dev/v1alpha1"] = []
    fake.cut_watches("podgroups")
    await eventually(lambda: not cluster.view().groups)
    await eventually(lambda: not cluster.not_ready_reason())


async def test_the_newest_known_version_of_a_builtin_kind_is_read(
    fake: FakeApi, cluster: KubernetesCluster
) -> None:
    """1.37 serves CompositePodGroup in one version and PodGroup in two; each is read once."""
    fake.groups["scheduling.k8s.io/v1beta1"] = ["podgroups", "podgroups/status", "workloads"]
    fake.groups["scheduling.k8s.io/v1alpha3"] = ["podgroups", "compositepodgroups"]
    await cluster.start()
    await cluster.synced()
    found = await api_discovery.discover(cluster._server)
    assert {r.path for r in found if r not in api_discovery.ALWAYS} == {
        "/apis/scheduling.k8s.io/v1beta1/podgroups",
        "/apis/scheduling.k8s.io/v1alpha3/compositepodgroups",
    }


async def test_stop_leaves_nothing_behind(cluster: KubernetesCluster, fake: FakeApi) -> None:
    """No task and no connection outlives it."""
    before = asyncio.all_tasks()
    await synced(cluster, fake)
    await cluster.stop()
    await eventually(lambda: not fake.watching("nodes"))
    mine = {t for t in asyncio.all_tasks() - before if t.get_name().startswith("cluster ")}
    assert not mine


def labelled(name: str, **labels: str) -> dict[str, Any]:
    node = a_node(name)
    node["metadata"]["labels"] |= labels
    return node


def failing_for(
    cluster: KubernetesCluster, verb: str, wanted: Container[str]
) -> Callable[..., None]:
    """Return a method of the objects of a cluster that raises for some names."""
    inner = getattr(cluster._world, verb)

    def outer(item: KubernetesObject) -> None:
        if item.metadata.name in wanted:
            raise ZeroDivisionError("the test fails it")
        inner(item)

    return outer


async def test_a_defect_with_one_object_keeps_no_other(
    cluster: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It stays as it was, and changes later; the others are followed, and decisions go on."""
    monkeypatch.setattr(periodic, "FIRST_MS", 1)
    for name in ("bad", "gone"):
        fake.put("nodes", a_node(name))
    await synced(cluster, fake)
    before = counted("object_faults", part="cluster")
    defective = {"bad", "new", "gone"}
    monkeypatch.setattr(cluster._world, "upsert", failing_for(cluster, "upsert", defective))
    monkeypatch.setattr(cluster._world, "delete", failing_for(cluster, "delete", defective))
    fake.put("nodes", labelled("bad", changed="yes"))
    fake.put("nodes", a_node("new"))
    fake.remove("nodes", "gone")
    fake.put("nodes", a_node("good"))
    await eventually(lambda: "good" in cluster.view().nodes, "the others")
    assert names(cluster) == {"bad", "gone", "good"}
    assert not cluster.view().nodes[NodeName("bad")].labels.get("changed")
    assert cluster.not_ready_reason() == ""
    assert counted("object_faults", part="cluster") >= before + 3
    objects = {record.object for record in caplog.records if record.levelname == "ERROR"}
    assert objects == {"nodes bad", "nodes new", "nodes gone"}

    defective.clear()  # and nothing else changes

    def recovered() -> bool:
        labels = cluster.view().nodes[NodeName("bad")].labels
        return names(cluster) == {"bad", "new", "good"} and labels.get("changed") == "yes"

    await eventually(recovered, "the objects that were left out")


async def test_an_object_of_a_list_is_not_left_out(
    cluster: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log may have it: without it, it would be recorded as gone. Nothing is decided until the defect has gone."""
    monkeypatch.setattr(periodic, "FIRST_MS", 1)
    fake.put("nodes", a_node("bad"))
    with monkeypatch.context() as broken:
        broken.setattr(cluster._world, "upsert", failing_for(cluster, "upsert", {"bad"}))
        await cluster.start()
        await eventually(lambda: "nodes: not synced: a defect" in cluster.not_ready_reason())
    await cluster.synced()
    assert names(cluster) == {"bad"}


async def test_a_defect_with_many_objects_is_one_of_the_resource(
    cluster: KubernetesCluster, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view without all of them would be worse than none."""
    monkeypatch.setattr(periodic, "LEFT_OUT_MAX", 2)
    await synced(cluster, fake)
    with monkeypatch.context() as broken:
        wanted = [f"n{number}" for number in range(3)]
        broken.setattr(cluster._world, "upsert", failing_for(cluster, "upsert", wanted))
        for name in wanted:
            fake.put("nodes", a_node(name))
        await eventually(lambda: "a defect" in cluster.not_ready_reason(), "the defect is reported")
    await cluster.synced()
    turns = itertools.count()

    def recovered() -> bool:
        fake.put("nodes", labelled("good", turn=str(next(turns))))
        return names(cluster) == {*wanted, "good"}

    await eventually(recovered, "the nodes")


# --- catching up


async def holding_back(cluster: KubernetesCluster, fake: FakeApi, monkeypatch) -> list[bytes]:
    """Sync the cluster; from then on watches of pods deliver nothing, as from an API server whose cache lags."""
    await synced(cluster, fake)
    kept: list[bytes] = []
    inner = fake.send

    def send(plural: str, line: bytes) -> None:
        if plural == "pods":
            kept.append(line)
        else:
            inner(plural, line)

    monkeypatch.setattr(fake, "send", send)
    return kept


async def test_a_view_that_lags_catches_up_by_its_watch(cluster, fake, monkeypatch) -> None:
    """The call ends when the watch has delivered what was stored before it; nothing is listed again."""
    monkeypatch.setattr(informers, "CATCH_UP_S", 60)
    fake.put("nodes", a_node("n1"))
    kept = await holding_back(cluster, fake, monkeypatch)
    fake.put("pods", a_pod("p1", nodeName="n1"))
    call = asyncio.create_task(cluster.catch_up())
    await eventually(lambda: fake.count("GET", "/pods", limit="1"))
    await asyncio.sleep(0.05)
    assert not call.done()
    assert not cluster.view().pods
    monkeypatch.undo()
    monkeypatch.setattr(informers, "CATCH_UP_S", 60)
    fake.send("pods", kept[0])
    for plural in {resource.name for resource in cluster._informers.of} - {"pods"}:
        fake.bookmark(plural, fake.version)
    await call
    assert {pod.node for pod in cluster.view().pods.values()} == {"n1"}
    assert lists(cluster, "pods") == 1


def cluster_informer(cluster, plural):
    return next(one for resource, one in cluster._informers.of.items() if resource.name == plural)


async def test_a_watch_that_stays_behind_is_replaced_by_a_list(cluster, fake, monkeypatch) -> None:
    """The view has what was stored before the call, although no watch delivers anything."""
    await holding_back(cluster, fake, monkeypatch)
    fake.put("nodes", a_node("n1"))
    fake.put("pods", a_pod("p1", nodeName="n1"))
    await cluster.catch_up()
    assert {pod.node for pod in cluster.view().pods.values()} == {"n1"}
    assert lists(cluster, "pods") == 2
    assert cluster.not_ready_reason() == ""
    monkeypatch.undo()
    fake.put("pods", a_pod("p2", nodeName="n1"))
    await eventually(lambda: len(cluster.view().pods) == 2)  # the watch goes on from the list


async def test_versions_that_are_no_numbers_are_caught_up_by_a_list(cluster, fake) -> None:
    """Before Kubernetes 1.35 a version is an opaque text."""
    await synced(cluster, fake)
    listed = lists(cluster)
    cluster_informer(cluster, "nodes")._version = "opaque"
    await cluster.catch_up()
    assert lists(cluster) == listed + 1


async def test_catching_up_fails_where_the_version_cannot_be_read(cluster, fake) -> None:
    """The error names the resource; the view stays usable."""
    await synced(cluster, fake)
    fake.faults.append(
        Fault(
            lambda r: r.path == "/api/v1/pods" and r.query.get("limit") == "1", status=403, times=9
        )
    )
    with pytest.raises(ClusterUnavailable, match=r"pods: .*403"):
        await cluster.catch_up()
    assert cluster.not_ready_reason() == ""


async def test_catching_up_is_given_up_after_a_time(cluster, fake, monkeypatch) -> None:
    """Where lists fail as well, the error names what is not synced."""
    monkeypatch.setattr(kubernetes_cluster, "CATCH_UP_S", 1)
    await holding_back(cluster, fake, monkeypatch)
    fake.put("pods", a_pod("p1"))
    fake.faults.append(
        Fault(
            lambda r: r.path == "/api/v1/pods" and r.query.get("limit") == "500",
            status=403,
            times=99,
        )
    )
    with pytest.raises(ClusterUnavailable, match=r"not caught up .* pods: not synced"):
        await cluster.catch_up()
