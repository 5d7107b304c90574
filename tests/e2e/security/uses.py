"""Everything that the service does with the Kubernetes API, sent by its own code as dry runs, and the right that it takes.

Events alone are written for real: the second one needs the first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec

from extender.cluster.api_server.api_discovery import dry_runs
from extender.cluster.api_server.kubernetes_cluster import KubernetesAccessReviews
from extender.cluster.connection.api_client import ApiServer, Request
from extender.cluster.write.event_recorder import WRITE_SERIES_EVERY_MS, EventRecorder
from extender.cluster.write.group_writer import GroupStatusWriter, TreeGroupWriter, write_finalizers
from extender.cluster.write.log_head_configmap import LogHeadConfigMap
from extender.cluster.write.pod_writer import PodWriter, read_pod
from extender.core.log.anchors import Anchor
from extender.core.model.cluster_view import Guard
from extender.core.model.errors import RequestRejected
from extender.core.model.ids import (
    Epoch,
    GangUid,
    GroupKey,
    GroupKind,
    NodeName,
    PlanId,
    PodUid,
    Position,
)
from extender.core.model.pod_groups import Group
from extender.core.reconcile.finalizer_rules import FinalizerChange
from extender.ports.access_ports import AccessRight, Caller
from extender.ports.cluster_ports import Binding, Condition, K8sEvent, PodRef
from extender.ports.workload_ports import GroupLink
from extender.ports.written_names import DISRUPTION_TARGET, EXPLAINED
from extender.ports.written_names import SCHEDULED as SCHEDULED_OF
from extender.runtime.system_clock import SystemClock
from tests.controlplane.api import Object
from tests.e2e.security.attempts import BUILTIN, FINALIZER, a_made_group

Right = tuple[str, str, str]  # API group, resource, verb
Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Use:
    """Something that the service does."""

    name: str
    rights: frozenset[Right]  # without any of them it fails
    call: Call


BUILTIN_GROUP, OUR_GROUP = "scheduling.k8s.io", "gang-extender.dev"
NODE = NodeName("n1")


class DryRunning(ApiServer):
    """The connection of the service; every write is a dry run."""

    async def call(self, request: Request) -> bytes:
        """Send a request as a dry run, but for reads and Events."""
        if request.method == "GET" or "/events" in request.path:
            return await super().call(request)
        if request.method == "DELETE":  # its query does not count beside its body
            body = {**msgspec.json.decode(request.body or b"{}"), "dryRun": ["All"]}
            request = msgspec.structs.replace(request, body=msgspec.json.encode(body))
        query = {**request.query, "dryRun": "All"}
        return await super().call(msgspec.structs.replace(request, query=query))


# What the informers list and watch, and what they are for.
READS = {
    "nodes": ("", "/api/v1/nodes"),
    "pods": ("", "/api/v1/pods"),
    "persistentvolumes": ("", "/api/v1/persistentvolumes"),
    "persistentvolumeclaims": ("", "/api/v1/persistentvolumeclaims"),
    "resourceclaims": ("resource.k8s.io", "/apis/resource.k8s.io/v1/resourceclaims"),
    "priorityclasses": (BUILTIN_GROUP, "/apis/scheduling.k8s.io/v1/priorityclasses"),
    "poddisruptionbudgets": ("policy", "/apis/policy/v1/poddisruptionbudgets"),
}


class Uses:
    """What the service does, one by one."""

    def __init__(self, server: ApiServer, minor: str, stored: dict[str, Object]) -> None:
        """Keep the connection.

        Args:
            server: As the account of the service.
            minor: The version of Kubernetes.
            stored: Pods and groups of `attempts.objects` as they are stored, by name.
        """
        self._server, self._stored = server, stored
        self._builtin = f"{BUILTIN_GROUP}/{BUILTIN[minor]}"
        self._clock = SystemClock()
        self._pods = PodWriter(server, self._clock)
        self._trees = TreeGroupWriter(server)
        self._head = LogHeadConfigMap(server)

    def all(self) -> tuple[Use, ...]:
        """Return all uses."""
        return (
            *self._on_pods(),
            *self._on_groups(),
            *self._on_trees(),
            *self._on_others(),
            *self._reads(),
        )

    def _on_pods(self) -> Iterator[Use]:
        held, free, running = (self._pod(name) for name in ("held", "free", "running"))
        pods = self._pods
        member = Binding(pod=free, node=NODE, plan=PlanId("plan-1"))
        alone = Binding(pod=free, node=NODE)
        status = frozenset({("", "pods/status", "patch")})
        patch, bind = (
            frozenset({("", "pods", "patch")}),
            frozenset({("", "pods/binding", "create")}),
        )
        delete, evict = (
            frozenset({("", "pods", "delete")}),
            frozenset({("", "pods/eviction", "create")}),
        )
        yield Use("nominate a pod", status, lambda: pods.nominate(held, NODE))
        yield Use("withdraw a nomination", status, lambda: pods.nominate(held, None))
        yield Use("explain why a pod waits", status, lambda: pods.explain_waiting(held, "text"))
        yield Use("mark a victim", status, lambda: pods.mark_disrupted(running, "text"))
        yield Use("remove a gate", patch, lambda: pods.remove_gate(held))
        yield Use("remove a gate that is gone", patch, lambda: pods.remove_gate(free))
        yield Use("bind a member", bind, lambda: pods.bind(member))
        yield Use("bind without a plan", bind, lambda: pods.bind(alone))
        yield Use("delete a victim", delete, lambda: pods.evict(running, "deleted"))
        yield Use("delete a pod that waits", delete, lambda: pods.evict(free, "deleted"))
        yield Use("evict a victim", evict, lambda: pods.evict(running, "evicted"))
        get = frozenset({("", "pods", "get")})
        yield Use("read a pod", get, lambda: read_pod(self._server, held))

    def _on_groups(self) -> Iterator[Use]:
        for name in ("user", "composite", "builtin", "builtin-composite"):
            if name not in self._stored:  # not served
                continue
            group = self._group(name)
            where, plural = group.api_version.partition("/")[0], f"{group.key.kind.lower()}s"
            patch = (where, f"{plural}/status", "patch")
            for kind in (SCHEDULED_OF[group.key.kind], EXPLAINED, DISRUPTION_TARGET):
                text = f"write {kind} of {name}"
                yield Use(text, frozenset({patch}), self._condition(group, kind))
            get = (where, plural, "get")
            outdated = msgspec.structs.replace(group, resource_version="1")
            text = f"write a condition of {name} after a conflict"
            yield Use(text, frozenset({patch, get}), self._condition(outdated, EXPLAINED))
            if where == OUR_GROUP:
                right = frozenset({(where, plural, "patch")})
                yield Use(f"protect {name}", right, self._finalizer(name, group))

    def _on_trees(self) -> Iterator[Use]:
        trees = self._trees
        kinds: tuple[GroupKind, ...] = ("PodGroup", "CompositePodGroup")
        for kind in kinds:
            made, plural = a_made_group(kind, "new"), f"{kind.lower()}s"
            right = frozenset({(OUR_GROUP, plural, "create")})
            yield Use(f"create a {kind}", right, partial(trees.create_group, made))
            name = "made" if kind == "PodGroup" else "made-composite"
            uid = self._stored[name]["metadata"]["uid"]
            changed = a_made_group(kind, name, 3, "another")
            right = frozenset({(OUR_GROUP, plural, "patch")})
            yield Use(f"change a {kind}", right, partial(trees.apply_group, changed, uid))
            right = frozenset({(OUR_GROUP, plural, "delete")})
            yield Use(f"delete a {kind}", right, partial(trees.delete_group, changed.key, uid))
        link = GroupLink(
            key=GroupKey("default", "builtin", "PodGroup"),
            uid=self._stored["builtin"]["metadata"]["uid"],
            api_version=self._builtin,
            parent="composite",
        )
        right = frozenset({(BUILTIN_GROUP, "podgroups", "patch")})
        yield Use("link a built-in group", right, lambda: trees.link_group(link))

    def _on_others(self) -> Iterator[Use]:
        anchor = Anchor(position=Position(1), epoch=Epoch(1), chain=bytes(32))
        maps = {verb: ("", "configmaps", verb) for verb in ("get", "patch", "create")}
        first = frozenset({maps["patch"], maps["create"]})
        yield Use("publish the end of the log", first, lambda: self._head.publish([anchor]))
        yield Use("read the end of the log", frozenset({maps["get"]}), self._head.published)
        events = {verb: ("events.k8s.io", "events", verb) for verb in ("create", "patch")}
        yield Use("write an Event", frozenset({events["create"]}), partial(self._event, 1))
        yield Use("count an Event", frozenset(events.values()), partial(self._event, 2))
        kinds = {"workloads", "podgroups"}
        kinds |= {"compositepodgroups"} if "builtin-composite" in self._stored else set()
        probe = {("", "pods", "create")} | {(BUILTIN_GROUP, kind, "create") for kind in kinds}
        yield Use("try full objects", frozenset(probe), self._probe)
        reviews = KubernetesAccessReviews(self._server)
        token, subject = (
            ("authentication.k8s.io", "tokenreviews", "create"),
            ("authorization.k8s.io", "subjectaccessreviews", "create"),
        )
        yield Use("review a token", frozenset({token}), partial(reviews.authenticate, "invented"))
        wanted = partial(reviews.authorize, Caller(user="ann"), AccessRight("list"))
        yield Use("review a right", frozenset({subject}), wanted)

    def _reads(self) -> Iterator[Use]:
        paths = {(group, name): path for name, (group, path) in READS.items()}
        for name in ("user", "composite", "builtin", "builtin-composite"):
            if name in self._stored:
                version, kind = self._stored[name]["apiVersion"], self._stored[name]["kind"]
                plural = f"{kind.lower()}s"
                paths[version.partition("/")[0], plural] = f"/apis/{version}/{plural}"
        for (group, plural), path in paths.items():
            read = partial(self._server.call, Request(method="GET", path=path))
            yield Use(f"list {path}", frozenset({(group, plural, "list")}), read)
            yield Use(
                f"watch {path}", frozenset({(group, plural, "watch")}), partial(self._watch, path)
            )

    async def _watch(self, path: str) -> None:
        """Open a watch, and close it at once."""
        async with self._server.watch(path, {"watch": "true", "timeoutSeconds": "1"}, idle_s=5.0):
            return

    def _pod(self, name: str) -> PodRef:
        uid = PodUid(self._stored[name]["metadata"]["uid"])
        return PodRef(namespace="default", name=name, uid=uid)

    def _group(self, name: str) -> Group:
        stored = self._stored[name]
        return Group(
            key=GroupKey("default", name, stored["kind"]),
            uid=GangUid(stored["metadata"]["uid"]),
            resource_version=stored["metadata"]["resourceVersion"],
            api_version=stored["apiVersion"],
        )

    def _condition(self, group: Group, kind: str) -> Call:
        condition = Condition(type=kind, status="True", reason="Tested", message="text")

        async def write() -> None:
            writer = GroupStatusWriter(self._server, self._clock)
            await writer.set_conditions(group, [condition])

        return write

    def _finalizer(self, name: str, group: Group) -> Call:
        metadata = self._stored[name]["metadata"]
        guard = Guard(uid=group.uid, resource_version=group.resource_version)
        finalizers = (*metadata.get("finalizers", ()), FINALIZER)
        change = FinalizerChange(group=group.key, guard=guard, finalizers=finalizers)
        return lambda: write_finalizers(self._server, change)

    async def _event(self, times: int) -> None:
        """Write an Event several times; the recorder forgets an Event that it could not write."""
        recorder = EventRecorder(self._server, self._clock, instance="e2e")
        uid = self._stored["held"]["metadata"]["uid"]
        notice = K8sEvent(
            kind="Pod", namespace="default", name="held", uid=uid, reason="Used", message="text"
        )
        for _ in range(times):
            await recorder.record(notice, "v1")
            if notice not in recorder._written:
                raise RequestRejected("an Event was refused")
            for series in recorder._written.values():
                series.written_ms -= WRITE_SERIES_EVERY_MS

    async def _probe(self) -> None:
        results = await dry_runs(self._server, lambda: None)
        refused = [one.problem for one in results if one.kept is None]
        if refused:
            raise RequestRejected("; ".join(refused))
