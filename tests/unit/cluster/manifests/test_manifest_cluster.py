"""A cluster of files behaves like an API server as far as the service can see, across crashes too."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import msgspec
import pytest
import yaml

from extender.cluster.manifests.served import journal, manifest_cluster
from extender.cluster.manifests.served.manifest_cluster import OBJECTS_PER_SLICE, ManifestCluster
from extender.core.model.errors import BadInput, RequestRejected
from extender.core.model.ids import NodeName
from extender.core.model.pod_groups import leaf_key
from extender.core.workloads.tree_compiler import GroupSpec
from extender.ports.cluster_ports import Binding, Condition, K8sEvent, PodRef
from extender.ports.workload_ports import GroupLink, GroupManifest
from extender.runtime import periodic
from tests.support.service.manifest_builders import a_gang, a_group, a_node, a_pod, an_object
from tests.support.service.workload_builders import a_job, a_jobset, a_profile
from tests.support.waiting import eventually, patient

GATE = "gang-extender.dev/admission"
POLL_S = 0.01


class StoppedClock:
    def now_us(self) -> int:
        return 1

    def recording_us(self) -> int:
        return self.now_us()

    def monotonic_ms(self) -> int:
        return 1

    def thread_cpu_us(self) -> int:
        return 1

    def new_id(self) -> str:
        return "id"


@pytest.fixture
def write(tmp_path):
    def write(*things, name: str = "cluster.yaml", text: str | None = None) -> None:
        path = tmp_path / "manifests" / name
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump_all(things) if text is None else text)
        fresh.rename(path)

    return write


@pytest.fixture
def running(tmp_path):
    @asynccontextmanager
    async def running(fence=lambda: True):
        cluster = ManifestCluster(
            [str(tmp_path / "manifests")],
            tmp_path / "data",
            clock=StoppedClock(),
            fence=fence,
            poll_s=POLL_S,
        )
        await cluster.start()
        try:
            yield cluster
        finally:
            await cluster.stop()

    return running


def lines(tmp_path):
    body = (tmp_path / "data" / "cluster.jsonl").read_bytes()
    records = [msgspec.json.decode(line) for line in body.splitlines()]
    return [record for record in records if record["type"] != "manifests"]


def pod_named(cluster, name):
    return next((p for p in cluster.view().pods.values() if p.name == name), None)


def ref(cluster, name, uid=None) -> PodRef:
    return PodRef(namespace="default", name=name, uid=uid or pod_named(cluster, name).uid)


async def shown(cluster, holds):
    """Wait until the view is as it shall be, and be woken by each change of it."""
    async with patient("a change of the view"):
        while not holds():
            await cluster.changed(cluster.view().revision)


async def bind(cluster, name, node="n1", uid=None):
    await cluster.bind(Binding(pod=ref(cluster, name, uid), node=NodeName(node), plan="plan"))


async def test_effects_show_in_the_view_and_in_the_file(write, running, tmp_path) -> None:
    write(a_node("n1"), *a_gang("g", pods=1, schedulingGates=[{"name": GATE}, {"name": "other"}]))
    async with running() as cluster:
        assert cluster.not_ready_reason() == ""
        await cluster.nominate(ref(cluster, "g-0"), NodeName("n1"))
        assert pod_named(cluster, "g-0").nominated == "n1"
        await cluster.remove_gate(ref(cluster, "g-0"))
        await cluster.remove_gate(ref(cluster, "g-0"))
        assert pod_named(cluster, "g-0").gates == ("other",)
        with pytest.raises(RequestRejected, match="scheduling gates: other"):
            await bind(cluster, "g-0")
    assert [line["type"] for line in lines(tmp_path)] == ["nominated", "gate-removed"]


async def test_bind_has_the_answers_of_an_api_server(write, running) -> None:
    write(
        a_pod("p"),
        a_pod("q", node="n2"),
        a_pod("r", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    )
    async with running() as cluster:
        with pytest.raises(
            RequestRejected, match="Pod/default/p: not found, or not the one with UID other"
        ):
            await bind(cluster, "p", uid="other")
        with pytest.raises(RequestRejected, match="deleted"):
            await bind(cluster, "r")
        with pytest.raises(RequestRejected, match="is bound to n2, not to n1"):
            await bind(cluster, "q")
        await bind(cluster, "q", "n2")
        await bind(cluster, "p")
        await bind(cluster, "p")
        with pytest.raises(RequestRejected, match="is bound to n1, not to n2"):
            await bind(cluster, "p", "n2")
        with pytest.raises(RequestRejected, match="is bound to n1"):
            await cluster.nominate(ref(cluster, "p"), NodeName("n2"))
        pod = pod_named(cluster, "p")
        assert (pod.node, pod.phase, pod.plan, pod.nominated) == ("n1", "Running", "plan", None)
        assert cluster.view().usage["n1"].requests == {"cpu": 1000, "pods": 1}


async def test_of_many_contrary_binds_at_once_one_wins(write, running, tmp_path) -> None:
    write(a_pod("p"))
    async with running() as cluster:
        tried = [bind(cluster, "p", f"n{n % 2}") for n in range(20)]
        answers = await asyncio.gather(*tried, return_exceptions=True)
        assert pod_named(cluster, "p").node == "n0"
        assert [answer is None for answer in answers] == [n % 2 == 0 for n in range(20)]
    assert len(lines(tmp_path)) == 1


async def test_a_restart_finds_everything_and_a_torn_line_is_skipped(
    write, running, tmp_path
) -> None:
    write(*a_gang("g", pods=2))
    conditions = [Condition(type="T", status="True", reason="R", message="m")]
    async with running() as cluster:
        await bind(cluster, "g-0")
        await cluster.nominate(ref(cluster, "g-1"), NodeName("n1"))
        group = cluster.view().groups[leaf_key("default", "g")]
        await cluster.set_conditions(group.key, group.uid, conditions)
        before = cluster.view()
    with (tmp_path / "data" / "cluster.jsonl").open("ab") as file:
        file.write(b'{"type":"bound","at_us":1,"name":"g-1"')
    for _ in range(2):
        async with running() as cluster:
            after = cluster.view()
            assert (after.pods, after.groups, after.usage) == (
                before.pods,
                before.groups,
                before.usage,
            )
    async with running() as cluster:
        await bind(cluster, "g-1")
    async with running() as cluster:
        assert pod_named(cluster, "g-1").node == "n1"


async def test_a_line_of_several_megabytes_is_read(write, running, tmp_path) -> None:
    """Lines longer than one read are read, also when the end of one comes later."""
    write(a_node("n1", gpu=4), *a_gang("g", pods=2))
    async with running() as cluster:

        def bound(name):
            line = {"type": "bound", "at_us": 1, "namespace": "default", "name": name,
                    "uid": ref(cluster, name).uid, "node": "n1", "plan": "y" * (3 << 20)}  # fmt: skip
            return msgspec.json.encode(line) + b"\n"

        second = bound("g-1")
        with (tmp_path / "data" / "cluster.jsonl").open("ab", buffering=0) as file:
            file.write(bound("g-0") + second[: 2 << 20])
            await shown(cluster, lambda: pod_named(cluster, "g-0").node == "n1")
            assert pod_named(cluster, "g-1").node is None
            file.write(second[2 << 20 :])
            await shown(cluster, lambda: pod_named(cluster, "g-1").node == "n1")


async def test_a_line_without_end_is_an_error_that_names_the_file(
    write, running, tmp_path, monkeypatch
) -> None:
    """More than a line may have, and no newline: nothing behind it can be read, so the start fails and names the file."""
    monkeypatch.setattr(journal, "LINE_MAX_BYTES", 3 << 20)
    write(*a_gang("g", pods=1))
    async with running():
        pass
    path = tmp_path / "data" / "cluster.jsonl"
    before = len(path.read_bytes().splitlines())
    with path.open("ab") as file:
        file.write(b"x" * (4 << 20) + b"\n")
    with pytest.raises(BadInput, match=rf"cluster\.jsonl: line {before + 1} is longer than 3 MiB"):
        async with running():
            pass


async def test_conditions_are_merged_and_written_on_change_only(write, running, tmp_path) -> None:
    gang = a_gang("g", pods=1)
    gang[0]["status"] = {
        "conditions": [{"type": "Old", "status": "True", "reason": "R", "message": ""}]
    }
    write(*gang)
    async with running() as cluster:
        group = cluster.view().groups[leaf_key("default", "g")]
        for _ in range(2):
            new = Condition(type="New", status="False", reason="Waits", message="m")
            await cluster.set_conditions(group.key, group.uid, [new])
        stored = cluster.view().groups[group.key].conditions
        assert stored == (("Old", "True", "R", ""), ("New", "False", "Waits", "m"))
        with pytest.raises(RequestRejected, match="PodGroup/default/g"):
            await cluster.set_conditions(group.key, "other", [new])
        await cluster.notice(
            K8sEvent(kind="Pod", namespace="default", name="g-0", uid="", reason="R", message="m")
        )
    assert [line["type"] for line in lines(tmp_path)] == ["conditions", "event"]


async def test_changed_manifests_are_read_and_a_pod_that_left_is_another_when_it_returns(
    write, running
) -> None:
    write(a_pod("p"), a_pod("q"))
    async with running() as cluster:
        await bind(cluster, "p")
        old, kept = pod_named(cluster, "p"), pod_named(cluster, "q")
        write(a_pod("q"))
        await shown(cluster, lambda: pod_named(cluster, "p") is None)
        assert not cluster.view().usage
        with pytest.raises(RequestRejected):
            await bind(cluster, "p", uid=old.uid)
        write(a_pod("p"), a_pod("q"))
        await shown(cluster, lambda: pod_named(cluster, "p") is not None)
        new = pod_named(cluster, "p")
        assert (new.node, new.uid == old.uid) == (None, False)
        assert new.created_us > kept.created_us
        assert pod_named(cluster, "q") == kept
    async with running() as cluster:
        assert pod_named(cluster, "p").uid == new.uid


async def test_a_pod_that_left_between_two_runs_is_forgotten(write, running) -> None:
    write(a_pod("p"), a_pod("q"))
    async with running() as cluster:
        await bind(cluster, "p")
    write(a_pod("q"))
    async with running() as cluster:
        assert pod_named(cluster, "p") is None
    write(a_pod("p"), a_pod("q"))
    async with running() as cluster:
        assert pod_named(cluster, "p").node is None


async def test_a_manifest_that_breaks_keeps_the_last_good_state(write, running, caplog) -> None:
    write(a_node("n1"))
    async with running() as cluster:
        revision = cluster.view().revision
        write(text="kind: [")
        await eventually(lambda: "A manifest file is ignored" in caplog.text)
        assert cluster.not_ready_reason() == ""
        assert cluster.view().revision == revision
        write(a_node("n1"), a_node("n2"))
        await shown(cluster, lambda: "n2" in cluster.view().nodes)


async def test_a_manifest_that_never_was_good_is_doubted_until_it_is(write, running) -> None:
    write(text="kind: [")
    async with running() as cluster:
        assert "cluster.yaml" in cluster.not_ready_reason()
        write(a_node("n1"))
        await shown(cluster, lambda: "n1" in cluster.view().nodes)
        assert cluster.not_ready_reason() == ""


async def test_a_second_process_sees_the_lines_of_the_first(write, running) -> None:
    write(a_pod("p"))
    async with running() as one, running() as two:
        await bind(one, "p")
        await shown(two, lambda: pod_named(two, "p").node == "n1")
        with pytest.raises(RequestRejected, match="is bound to n1"):
            await bind(two, "p", "n2")


async def test_standard_input_is_refused(tmp_path) -> None:
    with pytest.raises(BadInput, match="--cluster -"):
        ManifestCluster(["-"], tmp_path, clock=StoppedClock())


async def test_a_path_that_is_not_there_is_refused(tmp_path) -> None:
    """A directory may still be empty: its files may come later."""
    with pytest.raises(BadInput, match=f"--cluster {tmp_path}/typo: no such file"):
        ManifestCluster([str(tmp_path), f"{tmp_path}/typo"], tmp_path, clock=StoppedClock())
    with pytest.raises(BadInput, match='--cluster "": no such file'):
        ManifestCluster([""], tmp_path, clock=StoppedClock())
    ManifestCluster([str(tmp_path)], tmp_path / "data", clock=StoppedClock())


async def test_a_file_that_cannot_be_opened_stops_the_start(write, tmp_path) -> None:
    write(a_node("n"))
    (tmp_path / "data").write_text("a file, not a directory")
    cluster = ManifestCluster(
        [str(tmp_path / "manifests")], tmp_path / "data", clock=StoppedClock()
    )
    with pytest.raises(OSError):
        await cluster.start()
    await cluster.stop()
    assert (tmp_path / "data").is_file()


# --- workloads


async def test_a_workload_has_its_pods(write, running, tmp_path) -> None:
    """Bound pods stay when the workload grows, and all goes with it; made again, it and its pods are new ones."""
    write(a_node("n1"), name="nodes.yaml")
    write(a_jobset(), name="work.yaml")
    async with running() as cluster:
        names = sorted(pod.name for pod in cluster.view().pods.values())
        (workload,) = cluster.workloads.view().objects
        assert (len(names), len(cluster.view().groups)) == (5, 0)
        await cluster.remove_gate(ref(cluster, names[0]))
        await bind(cluster, names[0])
        write(a_jobset(), a_job(parallelism=2), name="work.yaml")
        await shown(cluster, lambda: len(cluster.view().pods) == 7)
        assert pod_named(cluster, names[0]).node == "n1"
        uid = pod_named(cluster, names[0]).uid
        write(name="work.yaml")
        await shown(cluster, lambda: not cluster.view().pods)
        assert not cluster.workloads.view().objects
        await eventually(lambda: len(deleted(tmp_path)) == 9)
        write(a_jobset(), name="work.yaml")
        await shown(cluster, lambda: len(cluster.view().pods) == 5)
        assert {one.node for one in cluster.view().pods.values()} == {None}
        assert uid not in cluster.view().pods
        assert cluster.workloads.view().objects.keys() != {workload}
    assert Counter(deleted(tmp_path)) == {"Pod": 7, "JobSet": 1, "Job": 1}


def deleted(tmp_path):
    return [line["kind"] for line in lines(tmp_path) if line["type"] == "deleted"]


def a_group_of(cluster, minimum=2, name="fit", priority_class=""):
    """Return what the service writes for the only workload."""
    (owner,) = cluster.workloads.view().objects.values()
    spec = GroupSpec(
        kind="PodGroup", name=name, minimum=minimum, priority_class=priority_class
    )  # fmt: skip
    return GroupManifest(
        namespace="default", spec=spec, template_of=name, profile="default", owner_uid=owner.uid,
        owner_api_version=owner.api_version, owner_kind=owner.kind, owner_name=owner.name,
    )  # fmt: skip


async def test_groups_of_workloads_survive_a_restart_and_go_with_their_owner(
    write, running, tmp_path
) -> None:
    write(a_job(parallelism=2))
    key = leaf_key("default", "fit")
    async with running() as cluster:
        workloads = cluster.workloads
        await workloads.create_group(a_group_of(cluster))
        await workloads.create_group(a_group_of(cluster, 9))  # one that exists stays as it is
        uid = cluster.view().groups[key].uid
        await workloads.apply_group(a_group_of(cluster, 3), uid)
        assert cluster.view().groups[key].minimum == 3
        await cluster.set_conditions(
            key, uid, [Condition(type="Scheduled", status="True", reason="r", message="m")]
        )
    async with running() as cluster:
        group = cluster.view().groups[key]
        assert (group.uid, group.minimum, group.managed_by) == (uid, 3, "gang-extender-trees")
        assert group.owner_uid in cluster.workloads.view().objects
        assert group.conditions == (("Scheduled", "True", "r", "m"),)
        await cluster.workloads.delete_group(key, uid)
        assert key not in cluster.view().groups
        await cluster.workloads.delete_group(key, uid)  # gone already
        await cluster.workloads.create_group(a_group_of(cluster))
        again = cluster.view().groups[key].uid
        assert again != uid
        write(a_node("n"))
        await shown(cluster, lambda: not cluster.view().groups)
        await eventually(lambda: len(deleted(tmp_path)) == 5)
    assert Counter(deleted(tmp_path)) == {"PodGroup": 2, "Pod": 2, "Job": 1}


async def test_writes_of_groups_are_refused_as_by_an_api_server(write, running) -> None:
    write(a_job(), a_group("mine", gang=1))
    async with running() as cluster:
        workloads, key = cluster.workloads, leaf_key("default", "mine")
        mine = cluster.view().groups[key].uid
        await workloads.create_group(a_group_of(cluster, 2, "mine"))
        assert cluster.view().groups[key].minimum == 1
        with pytest.raises(RequestRejected, match=r"in a file; change or remove it there"):
            await workloads.apply_group(a_group_of(cluster, 2, "mine"), mine)
        with pytest.raises(RequestRejected, match=r"in a file; change or remove it there"):
            await workloads.delete_group(key, mine)
        await workloads.create_group(a_group_of(cluster))
        with pytest.raises(RequestRejected, match=r"not found with UID other"):
            await workloads.apply_group(a_group_of(cluster, 5), "other")
        late = a_group_of(cluster, 1, "late")
        write(a_node("n"))
        await shown(cluster, lambda: not cluster.view().pods)
        with pytest.raises(RequestRejected, match=r"Job fit is not in the files any more"):
            await workloads.create_group(late)


async def test_a_replica_that_does_not_lead_writes_nothing(write, running, tmp_path) -> None:
    """It sees what the leader writes; what was removed meanwhile is recorded when it leads, once."""
    leads = False
    write(a_job(parallelism=2))
    async with running(lambda: leads) as standby, running() as leader:
        await leader.workloads.create_group(a_group_of(leader))
        await shown(standby, lambda: standby.view().groups)
        assert standby.view().groups == leader.view().groups
        write(a_node("n"))
        await shown(standby, lambda: not standby.view().groups and not standby.view().pods)
        await eventually(lambda: len(deleted(tmp_path)) == 4)
    async with running(lambda: leads) as standby:
        write(a_job(parallelism=2))
        await shown(standby, lambda: standby.view().pods)
        write(a_node("n"))
        await shown(standby, lambda: not standby.view().pods)
        assert len(deleted(tmp_path)) == 4
        leads = True
        await eventually(lambda: len(deleted(tmp_path)) == 7)
    assert Counter(deleted(tmp_path)) == {"PodGroup": 1, "Pod": 4, "Job": 2}


async def test_an_unchanged_workload_is_the_same_object(write, running) -> None:
    """Files that are read again make no work for the service."""
    write(a_job(), a_profile("mine"), name="work.yaml")
    async with running() as cluster:
        before = cluster.workloads.view()
        write(a_node("n"), name="nodes.yaml")
        await shown(cluster, lambda: cluster.view().nodes)
        assert cluster.workloads.view() is before
        write(a_job(parallelism=3), a_profile("mine"), name="work.yaml")
        assert await cluster.workloads.changed(before.revision) == before.revision + 1
        (now,) = cluster.workloads.view().objects.values()
        assert now.spec["parallelism"] == 3
        assert cluster.workloads.view().profiles is before.profiles


async def test_a_wrong_workload_leaves_the_last_valid_state(write, running, caplog) -> None:
    write(a_job(parallelism=2), name="work.yaml")
    async with running() as cluster:
        write(a_job(parallelism="three"), name="work.yaml")
        write(a_profile("mine", {"kind": "Job", "gang": "none"}), name="profile.yaml")
        await eventually(lambda: "A manifest file is ignored" in caplog.text)
        assert len(cluster.view().pods) == 2
        assert cluster.not_ready_reason() == ""


async def test_a_group_in_a_file_is_not_linked(write, running):
    """The text has the annotation to write into the file; the group is as it was."""
    made = a_group("made", gang=2, version="scheduling.k8s.io/v1beta1")
    write(a_node("n0", cpu=2), made)
    async with running() as cluster:
        group = cluster.view().groups[leaf_key("default", "made")]
        link = GroupLink(
            key=group.key, uid=group.uid, api_version=group.api_version, parent="search"
        )
        with pytest.raises(
            RequestRejected, match=r"gang-extender.dev/parent.*write 'search' there"
        ):
            await cluster.workloads.link_group(link)
        assert cluster.view().groups[group.key] == group


# --- what a reading costs the calls of kube-scheduler --------------------------------------------------


def counted_slices(cluster, monkeypatch) -> list[int]:
    """Count the objects that are applied between two turns of the event loop."""
    slices = [0]
    inner, sleep = cluster._world.upsert, asyncio.sleep

    def upsert(thing) -> None:
        slices[-1] += 1
        inner(thing)

    async def yielded(seconds: float, *args) -> None:
        slices.append(0)
        await sleep(seconds, *args)

    monkeypatch.setattr(cluster._world, "upsert", upsert)
    monkeypatch.setattr(asyncio, "sleep", yielded)
    return slices


async def test_many_objects_are_applied_in_slices(write, running, monkeypatch):
    """A file with very many objects keeps the event loop for a few of them at a time; parents come first."""
    write(a_node("n0"))
    async with running() as cluster:
        slices = counted_slices(cluster, monkeypatch)
        count = 4 * OBJECTS_PER_SLICE
        groups = [a_group(f"g{n}", gang=1, parent="root") for n in range(count)]
        write(*groups, a_group("root", composite=True, gang=1), name="many.yaml")
        await shown(cluster, lambda: len(cluster.view().groups) == count + 1)
        assert sum(slices) == count + 1
        assert max(slices) <= OBJECTS_PER_SLICE + 1


async def test_only_changed_objects_of_a_changed_file_are_applied(write, running, monkeypatch):
    """Of a hundred groups one changes."""
    groups = [a_group(f"g{n}", gang=1) for n in range(100)]
    write(a_node("n0"), *groups)
    async with running() as cluster:
        slices = counted_slices(cluster, monkeypatch)
        write(a_node("n0"), *groups[:-1], a_group("g99", gang=7))
        key = leaf_key("default", "g99")
        await shown(cluster, lambda: cluster.view().groups[key].minimum == 7)
        assert sum(slices) == 1


async def test_a_replica_catches_up_with_the_files_and_what_another_one_wrote(write, running):
    """What was stored before the call is in the view after it, however seldom the files are read."""
    write(a_node("n1"), a_pod("p1"))
    async with running() as one, running() as other:
        await one.bind(Binding(pod=ref(one, "p1"), node=NodeName("n1")))
        write(a_pod("p2"), name="more.yaml")
        await other.catch_up()
        assert pod_named(other, "p1").node == "n1"
        assert pod_named(other, "p2") is not None


async def test_a_replica_without_changes_catches_up(write, running):
    """Nothing is waited for but the files."""
    write(a_node("n1"))
    async with running() as one:
        before = one.view()
        await asyncio.gather(one.catch_up(), one.catch_up())
        assert one.view() is before


async def test_a_defect_with_one_object_keeps_no_other(write, running, monkeypatch, caplog) -> None:
    """It stays as it was and changes later, without a change of its file; the others are followed."""
    monkeypatch.setattr(periodic, "FIRST_MS", 0)
    write(a_node("bad"), a_node("good"))
    async with running() as cluster:
        inner = cluster._world.upsert

        def fails(thing):
            if thing.metadata.name == "bad":
                raise ZeroDivisionError("the test fails it")
            inner(thing)

        def is_changed(name):
            return cluster.view().nodes[NodeName(name)].labels.get("changed")

        with monkeypatch.context() as broken:
            broken.setattr(cluster._world, "upsert", fails)
            write(*(a_node(name, {"changed": "yes"}) for name in ("bad", "good")))
            await shown(cluster, lambda: is_changed("good"))
            assert not is_changed("bad")
            assert cluster.not_ready_reason() == ""
        await shown(cluster, lambda: is_changed("bad"))
    assert {r.object for r in caplog.records if r.levelname == "ERROR"} == {"Node bad"}


@pytest.mark.parametrize("place", ["content", "whole"])
async def test_a_defect_with_a_file_keeps_no_other(write, running, monkeypatch, place) -> None:
    """A file whose content shows a defect is ignored; after one of the whole poll all files are read again."""
    monkeypatch.setattr(periodic, "FIRST_MS", 1)
    inner = manifest_cluster.entries_in

    def fails(documents, role):
        entries = inner(documents, role)
        if any(entry.obj.metadata.name == "bad" for entry in entries):
            raise ZeroDivisionError("the test fails it")
        return entries

    with monkeypatch.context() as broken:
        if place == "content":
            broken.setattr(manifest_cluster, "entries_in", fails)
        else:
            broken.setattr(ManifestCluster, "_take", lambda self, files: 1 / 0)
        write(a_node("bad"), name="bad.yaml")
        write(a_node("good"), name="good.yaml")
        async with running() as cluster:
            if place == "content":
                assert set(cluster.view().nodes) == {"good"}
                assert "a defect of this service" in cluster.ignored_sources()[0]
            else:
                assert "a defect of this service" in cluster.not_ready_reason()
                broken.undo()
                await shown(cluster, lambda: set(cluster.view().nodes) == {"good", "bad"})


async def test_a_storage_class_of_the_files_counts_and_may_change(write, running) -> None:
    zone = "topology.kubernetes.io/zone"
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    claim = an_object("PersistentVolumeClaim", "data", "v1", spec={"storageClassName": "fast"})

    def write_zones(*zones):
        allowed = [{"matchLabelExpressions": [{"key": zone, "values": list(zones)}]}]
        storage = an_object(
            "StorageClass", "fast", "storage.k8s.io/v1", "", provisioner="csi.example.com",
            volumeBindingMode="WaitForFirstConsumer", allowedTopologies=allowed,
        )  # fmt: skip
        write(a_node("n1"), a_pod("p", volumes=volumes), claim, *([storage] if zones else []))

    def allowed_zones(cluster):
        selectors = pod_named(cluster, "p").shape.selectors
        return [term.labels[0].values for one in selectors for term in one.terms]

    write_zones("a")
    async with running() as cluster:
        assert allowed_zones(cluster) == [("a",)]
        write_zones("b")
        await shown(cluster, lambda: allowed_zones(cluster) == [("b",)])
        write_zones()
        await shown(cluster, lambda: allowed_zones(cluster) == [])
        assert "is not bound" in pod_named(cluster, "p").shape.unmodelled[0]
