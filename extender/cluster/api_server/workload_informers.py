"""The `Workloads` port on a real API server: informers of the workload kinds that are served, and writes of groups.

The CRD of a kind may appear or go at any time: discovery is repeated every minute, and whenever a resource disappears.
These informers never make the view of the cluster not ready: without them no new tree is made, and trees that exist are
scheduled as before.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from immutables import Map

from extender.cluster import types as api
from extender.cluster.api_server.api_discovery import served_groups, served_resources
from extender.cluster.api_server.informers import Informer, Resource
from extender.cluster.connection.api_client import APPLY_PATCH, ApiResponse, ApiServer, Request
from extender.cluster.read.object_decoding import profile_of, workload_of
from extender.cluster.write.pod_writer import fault_of, rfc3339
from extender.cluster.write.tree_group_writer import TreeGroupWriter
from extender.core.model.errors import ClusterUnavailable
from extender.core.workloads.admission_checks import API_VERSION as KUEUE
from extender.core.workloads.admission_checks import (
    CONTROLLER,
    AdmissionCheck,
    CheckAnswer,
    Flavor,
    QueuedWorkload,
    queued_workload,
)
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.tree_policy import TreeProfile
from extender.core.workloads.workload_kind import WorkloadKind
from extender.core.workloads.workload_object import (
    GROUP_TEMPLATE_ANNOTATION,
    TEMPLATES_KIND,
    TREE_LABEL,
    WorkloadObject,
    pod_templates,
)
from extender.ports.log_ports import Clock
from extender.ports.workload_ports import WorkloadView
from extender.runtime.periodic import Changes, PeriodicTask
from extender.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

DISCOVER_EVERY_S = 60.0
RETRY_S = 1.0
ROLES = "deploy/kubernetes/workloads/rbac.yaml"
# Our own kind first: until the built-in one is read too, it counts.
TEMPLATE_VERSIONS = ("gang-extender.dev/v1alpha1", "scheduling.k8s.io/v1beta1")
PROFILES = Resource(
    name="treeprofiles", kind=api.TreeProfile, api_version="gang-extender.dev/v1alpha1"
)
# By the kinds of the copy: a Workload of Kueue is not one of ours. Checks first, the others are read for them.
OF_KUEUE = {
    f"Kueue {kind}": Resource(name=name, kind=api.WorkloadManifest, api_version=KUEUE)
    for kind, name in (
        ("AdmissionCheck", "admissionchecks"),
        ("ResourceFlavor", "resourceflavors"),
        ("Workload", "workloads"),
    )
}


class WorkloadInformers:
    """Keeps the workloads of all served kinds, and writes their groups."""

    def __init__(self, server: ApiServer, kinds: Sequence[WorkloadKind], clock: Clock) -> None:
        """Start without informers; `run` discovers what is served."""
        self._server = server
        self._kinds = tuple(kinds)
        self._clock = clock
        self._store = WorkloadStore()
        writer = TreeGroupWriter(server)
        self.create_group, self.apply_group = writer.create_group, writer.apply_group
        self.link_group, self.delete_group = writer.link_group, writer.delete_group
        self._informers: dict[Resource, Informer] = {}
        self._tasks: dict[Resource, asyncio.Task[None]] = {}
        self._forbidden: set[Resource] = set()  # logged
        self._changed = Wakeup()
        self._rediscover = Wakeup()

    # --- reading

    def view(self) -> WorkloadView:
        """Return the newest view."""
        return self._store.view

    async def changed(self, revision: int) -> int:
        """Wait until the revision of the view differs from `revision`; return the new one."""
        while self._store.view.revision == revision:
            await self._changed.wait(self._changed.revision)
        return self._store.view.revision

    async def run(self) -> None:
        """Discover and watch until cancelled."""
        discovery = PeriodicTask(
            name="workload_discovery",
            work=self._discover,
            every_s=DISCOVER_EVERY_S,
            retry_s=RETRY_S,
            changes=Changes(lambda: self._rediscover.revision, self._rediscover.wait),
            expected=(ClusterUnavailable,),
            failure="discovery of workload kinds failed",
        )
        try:
            await discovery.run()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # --- writing

    async def answer_check(self, queued: QueuedWorkload, check: str, answer: CheckAnswer) -> None:
        """Write the answer to a check of a Workload of Kueue; see the port.

        The resourceVersion is a precondition: an answer never reaches a Workload that Kueue has admitted meanwhile, which
        it would evict for it.
        """
        entry: dict[str, object] = {
            "name": check,
            "state": answer.state,
            "message": answer.message,
            "lastTransitionTime": rfc3339(self._clock.now_us()),
        }
        if answer.state == "Retry":
            entry["requeueAfterSeconds"] = answer.retry_after_s
        metadata = {
            "name": queued.name,
            "namespace": queued.namespace,
            "uid": queued.uid,
            "resourceVersion": queued.resource_version,
        }
        path = f"/apis/{KUEUE}/namespaces/{queued.namespace}/workloads/{queued.name}"
        # A manager for each check: what an apply leaves out of what its manager applied before is removed.
        manager = f"{CONTROLLER}-{hashlib.sha256(check.encode()).hexdigest()[:16]}"
        await self._apply_status(path, "Workload", metadata, {"admissionChecks": [entry]}, manager)

    async def activate_check(self, check: AdmissionCheck) -> None:
        """Write that an AdmissionCheck is answered; see the port."""
        condition = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "gang-extender answers this check",
            "lastTransitionTime": rfc3339(self._clock.now_us()),
            "observedGeneration": check.generation,
        }
        path = f"/apis/{KUEUE}/admissionchecks/{check.name}"
        metadata = {"name": check.name, "uid": check.uid}
        await self._apply_status(path, "AdmissionCheck", metadata, {"conditions": [condition]})

    async def _apply_status(
        self,
        path: str,
        kind: str,
        metadata: dict[str, str],
        status: dict[str, object],
        manager: str = CONTROLLER,
    ) -> None:
        body = {"apiVersion": KUEUE, "kind": kind, "metadata": metadata, "status": status}
        request = Request(
            method="PATCH",
            path=f"{path}/status",
            query={"fieldManager": manager, "force": "true"},
            body=msgspec.json.encode(body),
            content_type=APPLY_PATCH,
            effect=True,
        )
        try:
            await self._server.call(request)
        except ApiResponse as refusal:
            raise fault_of(f"status of {kind} {metadata['name']}", refusal) from refusal

    # --- the sink of the informers

    def upsert(self, api_object: api.Watched) -> None:
        """Add or replace an object."""
        if isinstance(api_object, api.WorkloadManifest):
            put = {
                TEMPLATES_KIND: self._store.put_templates,
                "Kueue AdmissionCheck": self._store.put_check,
                "Kueue ResourceFlavor": self._store.put_flavor,
                "Kueue Workload": self._store.put_queued,
            }.get(api_object.kind)
            if put is not None:
                put(api_object)
            else:
                self._store.upsert(api_object)
        elif isinstance(api_object, api.TreeProfile):
            self._store.put_profile(profile_of(api_object))

    def delete(self, api_object: api.Watched) -> None:
        """Remove an object."""
        if isinstance(api_object, api.TreeProfile):
            self._store.delete_profile(api_object.metadata.name)
        elif isinstance(api_object, api.WorkloadManifest) and api_object.kind == TEMPLATES_KIND:
            self._store.delete_templates(api_object)
        elif isinstance(api_object, api.WorkloadManifest) and api_object.kind in OF_KUEUE:
            self._store.delete_of_kueue(api_object)
        else:
            self._store.delete(api_object.metadata.uid)

    # --- details

    async def _discover(self) -> None:
        """Keep one informer for every kind that is served."""
        desired: dict[Resource, str] = {}
        for api_version in TEMPLATE_VERSIONS:
            if "workloads" in await served_resources(self._server, api_version):
                resource = Resource(
                    name="workloads", kind=api.WorkloadManifest, api_version=api_version
                )
                desired[resource] = TEMPLATES_KIND
        if "treeprofiles" in await served_resources(self._server, PROFILES.api_version):
            desired[PROFILES] = "TreeProfile"
        groups = await served_groups(self._server)
        for kind in self._kinds:
            served = await self._served(kind) if kind.group in groups else None
            if served is not None:
                desired[served] = kind.kind
        if KUEUE.partition("/")[0] in groups:
            of_kueue = await served_resources(self._server, KUEUE)
            desired |= {each: kind for kind, each in OF_KUEUE.items() if each.name in of_kueue}
        for resource in [resource for resource in desired if not await self._allowed(resource)]:
            del desired[resource]
        for resource in [resource for resource in self._informers if resource not in desired]:
            task = self._tasks.pop(resource)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._informers.pop(resource).purge()
            log.info("workload kind is not served any more", extra={"resource": resource.label})
        self._store.set_absent(
            frozenset(kind.kind for kind in self._kinds if kind.group not in groups)
        )
        self._changed.wake()
        if PROFILES not in desired:  # there are none, and that is known
            self._store.set_synced("TreeProfile", synced=True)
        self._store.set_served(frozenset(desired.values()))
        for resource, name in desired.items():
            running = self._tasks.get(resource)
            if running is None or running.done():
                log.info("workload kind is served", extra={"resource": resource.label})
                self._informers[resource] = self._informer(resource, name)
                self._tasks[resource] = asyncio.get_running_loop().create_task(
                    self._follow(resource), name=f"workloads {resource.label}"
                )

    async def _allowed(self, resource: Resource) -> bool:
        """Return whether the account may list a resource; without its ClusterRole a kind is switched off."""
        request = Request(method="GET", path=resource.path, query={"limit": "1"})
        try:
            await self._server.call(request)
        except ApiResponse as refusal:
            if refusal.status == HTTPStatus.FORBIDDEN and resource not in self._forbidden:
                self._forbidden.add(resource)
                log.info(
                    "workload kind is switched off: no right to list it",
                    extra={"resource": resource.label, "role": ROLES},
                )
            return False
        self._forbidden.discard(resource)
        return True

    async def _served(self, kind: WorkloadKind) -> Resource | None:
        for version in kind.versions:
            api_version = f"{kind.group}/{version}"
            if kind.plural in await served_resources(self._server, api_version):
                return Resource(
                    name=kind.plural, kind=api.WorkloadManifest, api_version=api_version
                )
        return None

    def _informer(self, resource: Resource, kind: str) -> Informer:
        informer = Informer(
            self._server,
            resource,
            _Named(self, kind),
            clock=self._clock,
            applied=lambda: self._applied(informer, kind),
        )
        return informer

    def _applied(self, informer: Informer, kind: str) -> None:
        self._store.set_synced(kind, synced=informer.synced)
        self._changed.wake()

    async def _follow(self, resource: Resource) -> None:
        await self._informers[resource].keep()
        await asyncio.sleep(RETRY_S)  # discovery documents lag a little behind
        asyncio.get_running_loop().call_soon(self._rediscover.wake)


class _Named:
    """The sink of one kind: items of a list have no kind of their own."""

    def __init__(self, sink: WorkloadInformers, kind: str) -> None:
        self._sink = sink
        self._kind = kind

    def upsert(self, api_object: api.Watched) -> None:
        """Add or replace an object."""
        self._sink.upsert(msgspec.structs.replace(api_object, kind=self._kind))

    def delete(self, api_object: api.Watched) -> None:
        """Remove an object."""
        self._sink.delete(msgspec.structs.replace(api_object, kind=self._kind))


T = TypeVar("T")
_NO_OBJECTS: Map[str, WorkloadObject] = Map()


class WorkloadStore:
    """The workloads and profiles of a cluster, and the view of them, up to date change by change; it does no I/O.

    Only workloads with a tree label are kept, and objects that have none but may own such: a cluster has many Jobs. A
    change that cannot be converted raises `BadInput` and changes nothing.
    """

    def __init__(self) -> None:
        self.view = WorkloadView()

    def upsert(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a workload."""
        before = self.view.objects.get(manifest.metadata.uid)
        if before is None and not is_covered(manifest):
            return
        workload = workload_of(manifest)
        owned = self.view.owned
        if before is not None and before.owner != workload.owner:
            owned = _without_owned(owned, before)
        if workload.owner is not None:
            siblings = owned.get(workload.owner.uid, _NO_OBJECTS)
            owned = owned.set(workload.owner.uid, siblings.set(workload.uid, workload))
        self._change(objects=self.view.objects.set(workload.uid, workload), owned=owned)

    def delete(self, uid: str) -> None:
        """Remove a workload."""
        before = self.view.objects.get(uid)
        if before is not None:
            self._remove(before)

    def put_profile(self, profile: TreeProfile) -> None:
        """Add or replace a profile."""
        self._change(profiles=self.view.profiles.set(profile.name, profile))

    def delete_profile(self, name: str) -> None:
        """Remove a profile."""
        if name in self.view.profiles:
            self._change(profiles=self.view.profiles.delete(name))

    def put_templates(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a Workload; a built-in one comes before one of our API group."""
        workload = workload_of(manifest)
        key = (workload.namespace, workload.name)
        before = self.view.templates.get(key)
        if before is None or before.uid == workload.uid or _is_builtin(workload):
            self._change(templates=self.view.templates.set(key, workload))

    def delete_templates(self, manifest: api.WorkloadManifest) -> None:
        """Remove a Workload."""
        before = self.view.templates.get(manifest.key)
        if before is not None and before.uid == manifest.metadata.uid:
            self._change(templates=self.view.templates.delete(manifest.key))

    def put_check(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace an AdmissionCheck of Kueue; those of other controllers are left out."""
        metadata = manifest.metadata
        if manifest.spec.get("controllerName") != CONTROLLER or metadata.deletion_timestamp:
            self._change(checks=_without(self.view.checks, metadata.name))
            return
        active = any(
            condition["type"] == "Active"
            and condition["status"] == "True"
            and condition.get("observedGeneration") == metadata.generation
            for condition in manifest.status.get("conditions", ())
        )
        check = AdmissionCheck(
            name=metadata.name, uid=metadata.uid, generation=metadata.generation, active=active
        )
        self._change(checks=self.view.checks.set(metadata.name, check))

    def put_queued(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a Workload of Kueue; those without quota or without checks are left out."""
        metadata = manifest.metadata
        queued = None
        if manifest.status.get("admissionChecks"):
            queued = queued_workload(workload_of(manifest), metadata.resource_version)
        without = _without(self.view.queued, metadata.uid)
        if queued is not None or without is not self.view.queued:
            self._change(queued=without if queued is None else without.set(queued.uid, queued))

    def put_flavor(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a ResourceFlavor."""
        flavor = msgspec.convert(manifest.spec, Flavor)
        self._change(flavors=self.view.flavors.set(manifest.metadata.name, flavor))

    def delete_of_kueue(self, manifest: api.WorkloadManifest) -> None:
        """Remove an object of Kueue."""
        view, metadata = self.view, manifest.metadata
        if manifest.kind.endswith("Workload"):
            self._change(queued=_without(view.queued, metadata.uid))
        elif manifest.kind.endswith("AdmissionCheck"):
            self._change(checks=_without(view.checks, metadata.name))
        else:
            self._change(flavors=_without(view.flavors, metadata.name))

    def set_served(self, kinds: AbstractSet[str]) -> None:
        """Set which kinds are read: those of them whose objects are not all known are pending."""
        pending = frozenset(kinds - self.view.synced)
        if pending != self.view.pending:
            self._change(pending=pending)

    def set_synced(self, kind: str, *, synced: bool) -> None:
        """Set whether all objects of a kind are known."""
        kinds = self.view.synced | {kind} if synced else self.view.synced - {kind}
        pending = self.view.pending - {kind} if synced else self.view.pending
        if (kinds, pending) != (self.view.synced, self.view.pending):
            self._change(synced=kinds, pending=pending)

    def set_absent(self, kinds: frozenset[str]) -> None:
        """Set the kinds that are not served in any version."""
        if kinds != self.view.absent:
            self._change(absent=kinds)

    def _remove(self, workload: WorkloadObject) -> None:
        self._change(
            objects=self.view.objects.delete(workload.uid),
            owned=_without_owned(self.view.owned, workload),
        )

    def _change(self, **fields: object) -> None:
        self.view = msgspec.structs.replace(self.view, revision=self.view.revision + 1, **fields)


def _without(objects: Map[str, T], key: str) -> Map[str, T]:
    return objects.delete(key) if key in objects else objects


def _without_owned(
    owned: Map[str, Map[str, WorkloadObject]], workload: WorkloadObject
) -> Map[str, Map[str, WorkloadObject]]:
    if workload.owner is None:
        return owned
    left = owned.get(workload.owner.uid, _NO_OBJECTS)
    if workload.uid in left:
        left = left.delete(workload.uid)
    return owned.set(workload.owner.uid, left) if left else owned.delete(workload.owner.uid)


def _is_builtin(workload: WorkloadObject) -> bool:
    return workload.api_version.startswith("scheduling.k8s.io/")


def is_covered(manifest: api.WorkloadManifest) -> bool:
    """Return whether a workload has a tree label, or owns objects that may have one."""
    kind = BY_KIND.get(manifest.kind)
    if kind is None:
        return False
    if TREE_LABEL in manifest.metadata.labels or kind.parts is None:
        return True
    if kind.part_of and GROUP_TEMPLATE_ANNOTATION in manifest.metadata.annotations:
        return True  # a group that it owns belongs to its own owner
    return any(
        TREE_LABEL in _labels(template)
        for template in pod_templates(kind.template_paths, manifest.spec)
    )


def _labels(template: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = template.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return labels if isinstance(labels, Mapping) else {}
