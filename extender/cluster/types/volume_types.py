"""Volumes and their claims."""

from __future__ import annotations

from extender.cluster.types.common_types import KubernetesObject, Part, RequiredNodes


class VolumeNodeAffinity(Part, frozen=True, kw_only=True):
    """The nodes from which a volume can be reached."""

    required: RequiredNodes | None = None


class CsiSource(Part, frozen=True, kw_only=True):
    """A volume of a CSI driver, which may limit how many of them a node attaches."""

    driver: str = ""


class PersistentVolumeSpec(Part, frozen=True, kw_only=True):
    """Of a volume only where it is, and whose."""

    node_affinity: VolumeNodeAffinity = VolumeNodeAffinity()
    csi: CsiSource | None = None


class PersistentVolume(KubernetesObject, frozen=True, kw_only=True):
    """A volume of the cluster."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class ClaimSpec(Part, frozen=True, kw_only=True):
    """Of a claim only what it is bound to and how exclusive it is."""

    volume_name: str = ""
    access_modes: tuple[str, ...] = ()


class PersistentVolumeClaim(KubernetesObject, frozen=True, kw_only=True):
    """A claim of a volume."""

    spec: ClaimSpec = ClaimSpec()
