"""Keep the objects of a cluster, and the `ClusterView` of them, up to date change by change.

`ObjectStore` gets objects from informers or from files, one at a time, in any order. It keeps only what
is needed to combine objects: the claims and volumes of pods, priority classes, and the two groups that
may have one name. It does no I/O and uses no clock.

Note: a change that cannot be converted raises `BadInput` and changes nothing, so the previous version of
the object stays in the view.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import Final, TypeVar, assert_never

import msgspec
from msgspec.structs import replace

from extender.cluster import types as api
from extender.cluster.read.object_decoding import (
    bad,
    blueprints_of,
    group_of,
    group_warnings,
    guard_of,
    key_of,
    node_of,
    node_selector,
    source_of,
)
from extender.cluster.read.pod_conversion import (
    budget_of,
    end_of,
    end_of_terminating,
    ended,
    group_named,
    pod_of,
    shape_key,
)
from extender.cluster.read.priority_classes import Priorities
from extender.core.model import cluster_view as views
from extender.core.model import pods as core
from extender.core.model.errors import BadInput
from extender.core.model.ids import GroupKey, NodeName, PodUid
from extender.core.model.nodes import Node
from extender.core.model.pod_groups import CHILDREN_MAX, Source

K = TypeVar("K")
V = TypeVar("V")
Name = tuple[str, str]  # namespace and name; the namespace is empty for nodes, volumes and classes

ONE_POD: Final = "ReadWriteOncePod"
_ZONE: Final = "topology.kubernetes.io/zone"
_REGION: Final = "topology.kubernetes.io/region"
_ZONE_LABELS: Final = {  # label of a volume -> equivalent label of nodes
    _ZONE: _ZONE,
    _REGION: _REGION,
    "failure-domain.beta.kubernetes.io/zone": _ZONE,
    "failure-domain.beta.kubernetes.io/region": _REGION,
}
_NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"  # nothing makes volumes for the class
# set with the volume, by kube-controller-manager
_WAS_BOUND: Final = "pv.kubernetes.io/bind-completed"
_DEFAULT_CLASS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
_NO_CLAIMS: Final[Mapping[Name, core.VolumeConstraints]] = {}
_SHAPES_KEPT: Final = 4_096  # shapes shared between pods; a cluster has tens
_ENDS_KEPT: Final = 16_384  # pod ends in the view; the log records them soon after


class _Volume(msgspec.Struct, frozen=True):
    """The nodes on which a volume can be used, the CSI driver that attaches it, if any, and its class."""

    reach: tuple[core.NodeSelector, ...]
    driver: str = ""
    storage_class: str = ""


class ObjectStore:
    """The objects of a cluster and the view of them."""

    def __init__(
        self,
        *,
        guards: bool = False,
        max_children: int = CHILDREN_MAX,
        claims: Mapping[Name, core.VolumeConstraints] = _NO_CLAIMS,
    ) -> None:
        """Start without objects.

        Args:
            guards: Whether the objects are those of an API server: the view has the data for finalizers of our groups, which
                files do not have, and pods wait for claims that do not exist, which files may leave out.
            claims: Those of another cluster, from `claims_named`, that pods may use as well.
        """
        self._claims_elsewhere = claims
        self._guards = guards
        self.view = views.ClusterView(max_children=max_children)
        self.priorities = Priorities()
        self._groups: dict[tuple[GroupKey, Source], api.Group] = {}
        self._uids: dict[Name, PodUid] = {}  # every pod seen, ended ones included
        self._kept: dict[Name, api.Pod] = {}  # pods that depend on other objects
        self._claims: dict[Name, api.PersistentVolumeClaim] = {}
        self._resource_claims: dict[Name, api.ResourceClaim] = {}
        self._volumes: dict[Name, _Volume] = {}
        self._classes: dict[Name, api.StorageClass] = {}
        self._volumes_of_class: Counter[str] = Counter()
        self._users: dict[Name, set[Name]] = {}  # claim, of either kind -> pods
        self._claimed: dict[Name, set[Name]] = {}  # volume -> claims
        self._shapes: dict[core.PodShape, core.PodShape] = {}
        self._shape_of_key: dict[bytes, core.PodShape] = {}
        self._ends: deque[PodUid] = deque()  # of the view, oldest first
        self._warnings: dict[str, tuple[str, ...]] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the warnings about the current objects, in a fixed order."""
        return tuple(text for key in sorted(self._warnings) for text in self._warnings[key])

    def upsert(self, api_object: api.Readable) -> None:
        """Add or replace an object.

        Raises:
            BadInput: The object is invalid; nothing was changed. Log it and continue.
        """
        self._set(api_object, present=True)

    def upsert_all(self, api_objects: Iterable[api.Readable]) -> dict[int, BadInput]:
        """Add or replace objects in less time than one by one, such as all of a cluster.

        Returns:
            The faults of invalid objects by their position; of these nothing was changed.
        """
        faults: dict[int, BadInput] = {}
        nodes: list[Node] = []
        pods: list[core.Pod] = []
        for number, api_object in enumerate(api_objects):
            try:
                if isinstance(api_object, api.Node):
                    nodes.append(node_of(api_object))
                elif isinstance(api_object, api.Pod) and api_object.key not in self._uids:
                    if (pod := self._noted_pod(api_object)) is not None:
                        pods.append(pod)
                else:
                    self.view, pods = views.with_new_pods(self.view, pods), []
                    self.upsert(api_object)
            except BadInput as fault:
                faults[number] = fault
        self.view = views.with_new_pods(views.with_nodes(self.view, nodes), pods)
        return faults

    def delete(self, api_object: api.Readable) -> None:
        """Remove an object; a pod only if its UID is that of `api_object`, or `api_object` has none."""
        self._set(api_object, present=False)

    def _set(self, api_object: api.Readable, *, present: bool) -> None:
        if isinstance(api_object, api.Pod):
            self._set_pod(api_object, present=present)
            return
        name, view = api_object.key, self.view
        match api_object:
            case api.Node():
                self.view = (
                    views.with_node(view, node_of(api_object))
                    if present
                    else views.without_node(view, NodeName(name[1]))
                )
            case api.PodGroup() | api.CompositePodGroup():
                self._set_group(api_object, present=present)
            case api.PersistentVolumeClaim():
                claim = api_object if present else None
                self._relink(name, _replace(self._claims, name, claim), claim)
                self._derive_users(name)
            case api.ResourceClaim():
                _replace(self._resource_claims, name, api_object if present else None)
                self._derive_users(name)
            case api.PersistentVolume():
                self._set_volume(name, _volume_of(api_object) if present else None)
            case api.StorageClass():
                _replace(self._classes, name, api_object if present else None)
                self._derive_all_users()
            case api.PriorityClass():
                classes = self.priorities
                if classes.put(api_object) if present else classes.drop(name[1]):
                    self._derive_priorities()
            case api.Workload():
                blueprints = blueprints_of(api_object) if present else None
                self.view = views.with_blueprints(view, name, blueprints)
            case api.PodDisruptionBudget():
                self.view = (
                    views.with_pdb(view, budget_of(api_object))
                    if present
                    else views.without_pdb(view, *name)
                )
            case _:
                assert_never(api_object)

    # --- groups

    def _set_group(self, group: api.Group, *, present: bool) -> None:
        key, source = key_of(group), source_of(group)
        if source == "crd" and (self._guards or not present):  # also with an invalid spec
            guard = guard_of(group) if present else None
            self.view = views.with_guard(self.view, key, guard)
        if present:
            group_of(group, self.priorities)  # raises before anything is changed
        _replace(self._groups, (key, source), group if present else None)
        self._choose(key)

    def _choose(self, key: GroupKey) -> None:
        """Put into the view the one of two objects of one name that takes precedence (A.3)."""
        builtin, ours = self._groups.get((key, "builtin")), self._groups.get((key, "crd"))
        chosen = builtin or ours
        if chosen is None:
            self._warnings.pop(str(key), None)
            self.view = views.without_group(self.view, key)
            return
        warnings = group_warnings(chosen)
        if builtin is not None and ours is not None:
            text = f"{key}: exists in {builtin.api_version} and in {ours.api_version}; the first one counts"
            warnings = (text, *warnings)
        self._warnings.pop(str(key), None)
        if warnings:
            self._warnings[str(key)] = warnings
        group = replace(group_of(chosen, self.priorities), warnings=warnings)
        self.view = views.with_group(self.view, group)

    def _derive_priorities(self) -> None:
        for (key, _), group in list(self._groups.items()):
            if group.spec.priority is None or not group.spec.preemption_policy:
                self._choose(key)
        for pod in list(self._kept.values()):
            if _has_class_to_read(pod):
                self._show(pod)

    # --- pods

    def _set_pod(self, api_pod: api.Pod, *, present: bool) -> None:
        if present:
            if (pod := self._noted_pod(api_pod)) is not None:
                self.view = views.with_pod(self.view, pod)
        elif api_pod.metadata.uid in {"", self._uids.get(api_pod.key)}:
            self._drop_pod(api_pod.key)

    def _noted_pod(self, api_pod: api.Pod) -> core.Pod | None:
        """Note a pod, and return what the view shall show; None: it has ended."""
        name = api_pod.key
        if ended(api_pod):
            self._drop_pod(name)
            self._uids[name] = uid = PodUid(api_pod.metadata.uid)
            if group_named(api_pod) is not None:
                self._keep_end(uid, end_of(api_pod))
            return None
        pod = self._pod_of(api_pod)  # raises before anything is changed
        before = self._uids.get(name)
        if before is not None and before != pod.uid:
            self._drop_pod(name)  # recreated under its old name
        self._uids[name] = pod.uid
        claims = _all_claims_of(api_pod)
        if name in self._kept:
            self._unlink(name)
        if claims or _has_class_to_read(api_pod):
            self._kept[name] = api_pod
            for claim in claims:
                self._users.setdefault(claim, set()).add(name)
        return pod

    def _drop_pod(self, name: Name) -> None:
        uid = self._uids.pop(name, None)
        if uid is None:
            return
        if name in self._kept:
            self._unlink(name)
        pod = self.view.pods.get(uid)
        if pod is not None and pod.group is not None and (pod.deleting or pod.disruption_target):
            self._keep_end(uid, end_of_terminating(pod.disruption_target, pod.node or ""))
        self.view = views.without_pod(self.view, uid)

    def _keep_end(self, uid: PodUid, end: core.PodEnd) -> None:
        """Keep in the view how a pod ended until the log has it; the deletion may be the only change that has it."""
        if uid not in self.view.ends:
            self._ends.append(uid)
        self.view = views.with_end(self.view, uid, end)
        while len(self._ends) > _ENDS_KEPT:
            self.view = views.with_end(self.view, self._ends.popleft(), None)

    def _unlink(self, name: Name) -> None:
        for claim in _all_claims_of(self._kept.pop(name)):
            _take_out(self._users, claim, name)

    def _pod_of(self, api_pod: api.Pod) -> core.Pod:
        pod = self._pod_with_shape(api_pod)
        spec = api_pod.spec
        if self._guards and (spec.volumes or spec.resource_claims) and pod.node is None:
            waits_for = self._waits_for(api_pod) or self._waits_for_resource_claim(api_pod)
            return replace(pod, waits_for=waits_for) if waits_for else pod
        return pod

    def _pod_with_shape(self, api_pod: api.Pod) -> core.Pod:
        key = shape_key(api_pod)
        if key is not None and (shape := self._shape_of_key.get(key)) is not None:
            return pod_of(api_pod, self.priorities, shape=shape)
        volumes = self._volume_constraints(api_pod) if api_pod.spec.volumes else core.NO_VOLUMES
        pod = self._shared(pod_of(api_pod, self.priorities, volumes))
        if key is not None:
            if len(self._shape_of_key) >= _SHAPES_KEPT:
                self._shape_of_key.clear()
            self._shape_of_key[key] = pod.shape
        return pod

    def _shared(self, pod: core.Pod) -> core.Pod:
        """Return a pod whose shape is the object that all pods with an equal shape have."""
        shape = self._shapes.get(pod.shape)
        if shape is None:
            if len(self._shapes) >= _SHAPES_KEPT:
                self._shapes.clear()
            self._shapes[pod.shape] = pod.shape
        elif shape is not pod.shape:
            return replace(pod, shape=shape)
        return pod

    def _show(self, api_pod: api.Pod) -> None:
        self.view = views.with_pod(self.view, self._pod_of(api_pod))

    # --- volumes

    def claims_named(self, names: Collection[str]) -> Mapping[Name, core.VolumeConstraints]:
        """Return how the claims with some names, of all namespaces, restrict the nodes of a pod that uses them."""
        return {
            key: self._of_claim(key, claim.spec)
            for key, claim in self._claims.items()
            if key[1] in names
        }

    def _volume_constraints(self, pod: api.Pod) -> core.VolumeConstraints:
        """Return how the claims of a pod restrict its nodes."""
        of_claims = [self._of_claim(name, template) for name, template in _claims_of(pod).items()]
        selectors = chain.from_iterable(claim.selectors for claim in of_claims)
        exclusive = chain.from_iterable(claim.exclusive_claims for claim in of_claims)
        unmodelled = chain.from_iterable(claim.unmodelled for claim in of_claims)
        return core.VolumeConstraints(
            selectors=tuple(dict.fromkeys(selectors)),
            exclusive_claims=tuple(sorted(exclusive)),
            unmodelled=tuple(unmodelled),
        )

    def _waits_for(self, api_pod: api.Pod) -> str:
        """Return why kube-scheduler refuses a pod on every node until a claim or volume changes; empty: it does not.

        A claim that was just bound may be read before its new volume, while kube-scheduler binds the pod: such a volume exists.

        Source:
            PreFilter of the plugins VolumeBinding (podHasPVCs) and VolumeZone (getPVbyPod), of Kubernetes 1.36 and 1.37.
        """
        for name, template in _claims_of(api_pod).items():
            text = f"PersistentVolumeClaim {'/'.join(name)} of pod {api_pod.key[1]}"
            claim = self._claims.get(name)
            if claim is None and template is not None:
                return f"{text} does not exist: kube-controller-manager creates it for the pod"
            if claim is None:
                return f"{text} does not exist: create it"
            if claim.metadata.deletion_timestamp is not None:
                return f"{text} is being deleted: create it again when it is gone"
            # for a generic ephemeral volume kube-scheduler takes only a claim that the pod controls
            owners = [owner.uid for owner in claim.metadata.owner_references if owner.controller]
            if template is not None and api_pod.metadata.uid not in owners:
                return f"{text} was not made for this pod: delete it, so that kube-controller-manager creates it"
            volume = claim.spec.volume_name
            was_bound = _WAS_BOUND in claim.metadata.annotations and claim.status.phase != "Lost"
            if volume and not was_bound and ("", volume) not in self._volumes:
                return f"PersistentVolume {volume} of {text} does not exist: create it, or the claim again"
        return ""

    def _waits_for_resource_claim(self, api_pod: api.Pod) -> str:
        """Return why kube-scheduler does not try a pod until a ResourceClaim is there; empty: all are.

        Source:
            PreEnqueue of the plugin DynamicResources (foreachPodResourceClaim), of Kubernetes 1.36 and 1.37.
        """
        namespace, pod = api_pod.key
        names = _resource_claims_of(api_pod)
        for entry in api_pod.spec.resource_claims:
            template = entry.resource_claim_template_name
            if entry.name not in names:
                return (
                    f'spec.resourceClaims "{entry.name}" of pod {pod} has no ResourceClaim yet: create ResourceClaimTemplate '
                    f"{namespace}/{template} if it does not exist; kube-controller-manager makes the claim from it"
                )
            if not names[entry.name]:
                continue  # the controller found that none is needed
            text = f"ResourceClaim {namespace}/{names[entry.name]} of pod {pod}"
            claim = self._resource_claims.get((namespace, names[entry.name]))
            if claim is None or claim.metadata.deletion_timestamp is not None:
                state = "does not exist" if claim is None else "is being deleted"
                created = "create it" if claim is None else "create it again when it is gone"
                return f"{text} {state}: {'kube-controller-manager creates it again' if template else created}"
        return ""

    def _of_claim(self, name: Name, template: api.ClaimSpec | None) -> core.VolumeConstraints:
        """Return how a claim restricts the nodes of a pod.

        Args:
            template: Its spec, if the pod makes it; None: it does not.
        """
        claim, path = self._claims.get(name), "/".join(name)
        if claim is None and name in self._claims_elsewhere:
            return self._claims_elsewhere[name]
        spec = claim.spec if claim is not None else template
        if spec is None:
            return core.VolumeConstraints(unmodelled=(f"claim {path}{core.ABSENT}",))
        selectors: tuple[core.NodeSelector, ...] = ()
        unmodelled: tuple[str, ...] = ()
        volume = self._volumes.get(("", spec.volume_name))
        if not spec.volume_name:
            reach_of_class = self._reach_of_class(spec)
            selectors = reach_of_class or ()
            if reach_of_class is None:
                unmodelled = (f"claim {path}{core.UNBOUND if claim is not None else core.ABSENT}",)
        elif volume is None:
            unmodelled = (f"volume {spec.volume_name} of claim {path}{core.ABSENT}",)
        else:
            selectors = tuple(replace(term, volume=True) for term in volume.reach)
            if volume.driver:
                unmodelled = (f"how many volumes of {volume.driver} a node attaches",)
        exclusive = (path,) if ONE_POD in spec.access_modes else ()
        return core.VolumeConstraints(
            selectors=selectors, exclusive_claims=exclusive, unmodelled=unmodelled
        )

    def _reach_of_class(self, claim: api.ClaimSpec) -> tuple[core.NodeSelector, ...] | None:
        """Return the selectors of the nodes for which the class of a claim without a volume makes one; None: not known.

        With a volume of the class that exists, the claim may get that one; with Immediate it has a volume before the pod
        is scheduled, on one of the allowed nodes that is not known here.

        Source:
            Plugin VolumeBinding, checkVolumeProvisions.
        """
        name = claim.storage_class_name
        if name is None:
            marks = {key: of.metadata.annotations for key, of in self._classes.items()}
            defaults = [
                n for (_, n), own in marks.items() if "true" in map(own.get, _DEFAULT_CLASS)
            ]
            # of several the newest, not known here
            name = defaults[0] if len(defaults) == 1 else ""
        of = self._classes.get(("", name)) if name else None
        if of is None or of.volume_binding_mode == "Immediate" or of.provisioner == _NO_PROVISIONER:
            return None
        if self._volumes_of_class[name]:
            return None
        labels = (
            tuple(
                core.NodeSelectorRequirement(label.key, "In", label.values)
                for label in term.match_label_expressions
            )
            for term in of.allowed_topologies
        )
        terms = tuple(core.SelectorTerm(labels=of_term) for of_term in labels)
        return (core.NodeSelector(terms=terms, volume=True),) if terms else ()

    def _set_volume(self, name: Name, volume: _Volume | None) -> None:
        """Add, replace or remove a volume, and derive what depends on it, or on there being one of its class."""
        before = _replace(self._volumes, name, volume)
        old = before.storage_class if before is not None else ""
        new = volume.storage_class if volume is not None else ""
        for claim in sorted(self._claimed.get(name, ())):
            self._derive_users(claim)
        if old == new:
            return
        self._volumes_of_class.subtract([old])
        self._volumes_of_class.update([new])
        lost, first = not self._volumes_of_class[old], self._volumes_of_class[new] == 1
        if (lost and ("", old) in self._classes) or (first and ("", new) in self._classes):
            self._derive_all_users()

    def _relink(
        self,
        name: Name,
        before: api.PersistentVolumeClaim | None,
        after: api.PersistentVolumeClaim | None,
    ) -> None:
        if before is not None and before.spec.volume_name:
            _take_out(self._claimed, ("", before.spec.volume_name), name)
        if after is not None and after.spec.volume_name:
            self._claimed.setdefault(("", after.spec.volume_name), set()).add(name)

    def _derive_users(self, claim: Name) -> None:
        for name in sorted(self._users.get(claim, ())):
            self._show(self._kept[name])

    def _derive_all_users(self) -> None:
        for claim in sorted(self._users):
            self._derive_users(claim)


def _replace(table: dict[K, V], key: K, value: V | None) -> V | None:
    """Set a value, or remove it where it is None; return the one before."""
    before = table.get(key)
    if value is not None:
        table[key] = value
    elif before is not None:
        del table[key]
    return before


def _take_out(index: dict[Name, set[Name]], key: Name, name: Name) -> None:
    names = index.get(key, set())
    names.discard(name)
    if not names:
        index.pop(key, None)


def _claims_of(api_pod: api.Pod) -> dict[Name, api.ClaimSpec | None]:
    """Return a pod's claims by name; with the spec that a generic ephemeral volume has for its own, `<pod>-<volume>`."""
    namespace, pod = api_pod.key
    claims: dict[Name, api.ClaimSpec | None] = {}
    for volume in api_pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            claims.setdefault((namespace, volume.persistent_volume_claim.claim_name))
        elif volume.ephemeral is not None:
            template = volume.ephemeral.volume_claim_template.spec
            claims[namespace, f"{pod}-{volume.name}"] = template
    return claims


def _resource_claims_of(api_pod: api.Pod) -> dict[str, str]:
    """Return the names of the ResourceClaims by entry of a pod, empty for one that needs none; without those not made yet."""
    of_templates = {
        status.name: status.resource_claim_name for status in api_pod.status.resource_claim_statuses
    }
    return of_templates | {
        entry.name: entry.resource_claim_name
        for entry in api_pod.spec.resource_claims
        if entry.resource_claim_name
    }


def _all_claims_of(api_pod: api.Pod) -> set[Name]:
    """Return the claims that a pod uses, of volumes and of devices."""
    namespace = api_pod.metadata.namespace
    devices = _resource_claims_of(api_pod) if api_pod.spec.resource_claims else {}
    return {*_claims_of(api_pod), *((namespace, name) for name in devices.values() if name)}


def _has_class_to_read(api_pod: api.Pod) -> bool:
    """Return whether priority or preemption policy are those of the class, as in files; an API server writes both."""
    spec = api_pod.spec
    return spec.priority is None or bool(spec.priority_class_name and not spec.preemption_policy)


def _volume_of(volume: api.PersistentVolume) -> _Volume:
    driver = volume.spec.csi.driver if volume.spec.csi is not None else ""
    return _Volume(_reach(volume), driver, volume.spec.storage_class_name)


def _reach(volume: api.PersistentVolume) -> tuple[core.NodeSelector, ...]:
    """Return the selectors of the nodes on which a volume can be used: its node affinity, zone and region labels.

    A node without any zone or region label matches the labels, as in kube-scheduler.

    Source:
        Plugins VolumeBinding (bound volumes) and VolumeZone.
    """
    selectors = []
    required = volume.spec.node_affinity.required
    if required is not None:
        try:
            selectors.append(node_selector(required))
        except BadInput as fault:
            raise bad(volume, "spec.nodeAffinity.required", str(fault)) from fault
    absent = (core.NodeSelectorRequirement(label, "DoesNotExist") for label in sorted(_ZONE_LABELS))
    nowhere = core.SelectorTerm(labels=tuple(absent))
    for label, twin in _ZONE_LABELS.items():
        value = volume.metadata.labels.get(label)
        if value is None:
            continue
        zones = tuple(sorted({zone.strip() for zone in value.split("__")}))
        terms = [core.SelectorTerm(labels=(core.NodeSelectorRequirement(label, "In", zones),))]
        if twin != label:
            without = core.NodeSelectorRequirement(label, "DoesNotExist")
            labels = (without, core.NodeSelectorRequirement(twin, "In", zones))
            terms.append(core.SelectorTerm(labels=labels))
        selectors.append(core.NodeSelector(terms=(*terms, nowhere)))
    return tuple(selectors)
