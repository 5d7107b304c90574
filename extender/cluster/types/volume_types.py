"""PersistentVolumes and their claims."""

from __future__ import annotations

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
    csi: CsiSource | None = None


class PersistentVolume(KubernetesObject, frozen=True, kw_only=True):
    """A volume of the cluster."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class ClaimSpec(Part, frozen=True, kw_only=True):
    """The spec of a claim: its volume and its access modes."""

    volume_name: str = ""
    access_modes: tuple[str, ...] = ()


class PersistentVolumeClaim(KubernetesObject, frozen=True, kw_only=True):
    """A claim of a volume."""

    spec: ClaimSpec = ClaimSpec()
