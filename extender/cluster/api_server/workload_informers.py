"""The `Workloads` port on a real API server: informers of the workload kinds that are served, and writes of groups.

The CRD of a kind may appear or go at any time: discovery is repeated every minute, and whenever a resource disappears.
These informers never make the view of the cluster not ready: without them no new tree is made, and trees that exist are
scheduled as before.
"""

from __future__ import annotations

import functools
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
from extender.cluster.api_server.informers import Informer, Informers, Resource
from extender.cluster.connection.api_client import (
    APPLY_PATCH,
    ApiResponse,
    ApiServer,
    Request,
    write_request,
)
from extender.cluster.read.object_decoding import profile_of, workload_of
from extender.cluster.write.group_writer import TreeGroupWriter
from extender.cluster.write.pod_writer import rfc3339, send
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
from extender.runtime.periodic import PeriodicTask
from extender.runtime.wakeup import Wakeup

log = logging.getLogger(__name__)

DISCOVER_EVERY_S = 60.0
RETRY_S = 1.0
ROLES = "deploy/kubernetes/workloads/rbac.yaml"
# Our own kind first: until the built-in one is read too, it counts.
TEMPLATE_VERSIONS = ("gang-extender.dev/v1alpha1", "scheduling.k8s.io/v1beta1")


def _manifests(kind: str, plural: str, api_version: str) -> Resource:
    return Resource(name=plural, kind=api.WorkloadManifest, api_version=api_version, read_as=kind)


PROFILES = Resource(
    name="treeprofiles",
    kind=api.TreeProfile,
    api_version="gang-extender.dev/v1alpha1",
    read_as="TreeProfile",
)
# By the kinds of the copy: a Workload of Kueue is not one of ours. Checks first, the others are read for them.
OF_KUEUE = [
    _manifests(f"Kueue {kind}", name, KUEUE)
    for kind, name in (
        ("AdmissionCheck", "admissionchecks"),
        ("ResourceFlavor", "resourceflavors"),
        ("Workload", "workloads"),
    )
]


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
        self._informers = Informers("workload kind")
        self._forbidden: set[Resource] = set()  # logged
        self._changed = Wakeup()

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
            changes=self._informers.changes,
            expected=(ClusterUnavailable,),
            failure="discovery of workload kinds failed",
        )
        try:
            await discovery.run()
        finally:
            await self._informers.stop()

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
        query = {"fieldManager": manager, "force": "true"}
        request = write_request("PATCH", f"{path}/status", body, APPLY_PATCH, query=query)
        await send(self._server, f"status of {kind} {metadata['name']}", request)

    # --- details

    async def _discover(self) -> None:
        """Keep one informer for every kind that is served."""
        desired = [
            _manifests(TEMPLATES_KIND, "workloads", api_version)
            for api_version in TEMPLATE_VERSIONS
            if "workloads" in await served_resources(self._server, api_version)
        ]
        if "treeprofiles" in await served_resources(self._server, PROFILES.api_version):
            desired.append(PROFILES)
        groups = await served_groups(self._server)
        for kind in self._kinds:
            served = await self._served(kind) if kind.group in groups else None
            if served is not None:
                desired.append(served)
        if KUEUE.partition("/")[0] in groups:
            of_kueue = await served_resources(self._server, KUEUE)
            desired += [each for each in OF_KUEUE if each.name in of_kueue]
        desired = [resource for resource in desired if await self._allowed(resource)]
        await self._informers.keep_only(desired)
        self._store.set_absent(
            frozenset(kind.kind for kind in self._kinds if kind.group not in groups)
        )
        self._changed.wake()
        if PROFILES not in desired:  # there are none, and that is known
            self._store.set_synced("TreeProfile", synced=True)
        self._store.set_served(frozenset(resource.read_as for resource in desired))
        for resource in desired:
            self._informers.follow(resource, functools.partial(self._informer, resource))

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
                return _manifests(kind.kind, kind.plural, api_version)
        return None

    def _informer(self, resource: Resource) -> Informer:
        def applied() -> None:
            self._store.set_synced(resource.read_as, synced=informer.synced)
            self._changed.wake()

        log.info("workload kind is served", extra={"resource": resource.label})
        informer = Informer(self._server, resource, self._store, clock=self._clock, applied=applied)
        return informer


T = TypeVar("T")
_NO_OBJECTS: Map[str, WorkloadObject] = Map()


class WorkloadStore:
    """The workloads and profiles of a cluster, and the view of them, up to date change by change; it does no I/O.

    Only workloads with a tree label are kept, and objects that have none but may own such: a cluster has many Jobs. A
    change that cannot be converted raises `BadInput` and changes nothing.
    """

    def __init__(self) -> None:
        self.view = WorkloadView()

    def upsert(self, api_object: api.WorkloadManifest | api.TreeProfile) -> None:
        """Add or replace an object."""
        if isinstance(api_object, api.TreeProfile):
            self.put_profile(profile_of(api_object))
            return
        put = {
            TEMPLATES_KIND: self._put_templates,
            "Kueue AdmissionCheck": self._put_check,
            "Kueue ResourceFlavor": self._put_flavor,
            "Kueue Workload": self._put_queued,
        }.get(api_object.kind, self._put_workload)
        put(api_object)

    def delete(self, api_object: api.WorkloadManifest | api.TreeProfile) -> None:
        """Remove an object."""
        view, uid, name = self.view, api_object.metadata.uid, api_object.metadata.name
        if isinstance(api_object, api.TreeProfile):
            self._change(profiles=_without(view.profiles, name))
        elif api_object.kind == TEMPLATES_KIND:
            before = view.templates.get(api_object.key)
            if before is not None and before.uid == uid:
                self._change(templates=view.templates.delete(api_object.key))
        elif api_object.kind == "Kueue Workload":
            self._change(queued=_without(view.queued, uid))
        elif api_object.kind == "Kueue AdmissionCheck":
            self._change(checks=_without(view.checks, name))
        elif api_object.kind == "Kueue ResourceFlavor":
            self._change(flavors=_without(view.flavors, name))
        elif (workload := view.objects.get(uid)) is not None:
            self._change(
                objects=view.objects.delete(uid), owned=_without_owned(view.owned, workload)
            )

    def _put_workload(self, manifest: api.WorkloadManifest) -> None:
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

    def put_profile(self, profile: TreeProfile) -> None:
        """Add or replace a profile."""
        self._change(profiles=self.view.profiles.set(profile.name, profile))

    def _put_templates(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a Workload; a built-in one comes before one of our API group."""
        workload = workload_of(manifest)
        key = (workload.namespace, workload.name)
        before = self.view.templates.get(key)
        builtin = workload.api_version.startswith("scheduling.k8s.io/")
        if before is None or before.uid == workload.uid or builtin:
            self._change(templates=self.view.templates.set(key, workload))

    def _put_check(self, manifest: api.WorkloadManifest) -> None:
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

    def _put_queued(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a Workload of Kueue; those without quota or without checks are left out."""
        metadata = manifest.metadata
        queued = None
        if manifest.status.get("admissionChecks"):
            queued = queued_workload(workload_of(manifest), metadata.resource_version)
        without = _without(self.view.queued, metadata.uid)
        self._change(queued=without if queued is None else without.set(queued.uid, queued))

    def _put_flavor(self, manifest: api.WorkloadManifest) -> None:
        """Add or replace a ResourceFlavor."""
        flavor = msgspec.convert(manifest.spec, Flavor)
        self._change(flavors=self.view.flavors.set(manifest.metadata.name, flavor))

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

    def _change(self, **fields: object) -> None:
        """Replace fields of the view; it stays the same where each has the object that it had."""
        if any(getattr(self.view, name) is not value for name, value in fields.items()):
            revision = self.view.revision + 1
            self.view = msgspec.structs.replace(self.view, revision=revision, **fields)


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
