"""PersistentVolumes, their claims, and the classes that make them."""

from __future__ import annotations

from typing import Literal

from extender.cluster.types.common_types import KubernetesObject, Part, RequiredNodes


class VolumeNodeAffinity(Part, frozen=True, kw_only=True):
    """The nodes on which a volume can be used."""

    required: RequiredNodes | None = None


class CsiSource(Part, frozen=True, kw_only=True):
    """The CSI driver of a volume; it may limit the number of its volumes per node."""

    driver: str = ""


class PersistentVolumeSpec(Part, frozen=True, kw_only=True):
    """The spec of a volume: its nodes and its driver."""

    node_affinity: VolumeNodeAffinity = VolumeNodeAffinity()
    storage_class_name: str = ""
    csi: CsiSource | None = None


class PersistentVolume(KubernetesObject, frozen=True, kw_only=True):
    """A volume of the cluster."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class ClaimSpec(Part, frozen=True, kw_only=True):
    """The spec of a claim: its volume, its access modes, and the class that makes the volume."""

    volume_name: str = ""
    access_modes: tuple[str, ...] = ()
    storage_class_name: str | None = None  # None: the default class; empty: only volumes that exist


class ClaimStatus(Part, frozen=True, kw_only=True):
    """The status of a claim."""

    phase: str = ""  # Lost: it was bound, and its volume does not exist any more


class PersistentVolumeClaim(KubernetesObject, frozen=True, kw_only=True):
    """A claim of a volume."""

    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class TopologyLabel(Part, frozen=True, kw_only=True):
    """A node label with the values that are allowed."""

    key: str
    values: tuple[str, ...]


class TopologyTerm(Part, frozen=True, kw_only=True):
    """Node labels that must all have an allowed value."""

    match_label_expressions: tuple[TopologyLabel, ...] = ()


class StorageClass(KubernetesObject, frozen=True, kw_only=True):
    """How volumes are made for claims: by whom, when, and for which nodes."""

    provisioner: str = ""
    volume_binding_mode: Literal["Immediate", "WaitForFirstConsumer"] = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()  # one must hold; none: every node
