"""The labels of root groups and workloads as they are in the cluster now; the log has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from extender.core.log.reservation_state import GangState
from extender.core.model.ids import GroupKey, GroupKind
from extender.ports.cluster_ports import Cluster
from extender.ports.workload_ports import Workloads

_NO_LABELS: Final[Mapping[str, str]] = {}


class ObjectLabels:
    """The labels of objects of a cluster."""

    def __init__(self, cluster: Cluster, workloads: Workloads) -> None:
        self._cluster = cluster
        self._workloads = workloads

    def of_gang(self, root: GangState, workload_uid: str) -> Mapping[str, str]:
        """Return the labels of a root group and of the workload that it was made for.

        Of a key that both have, the value is that of the root group.

        Args:
            root: The gang; a root group that was deleted, or is not known yet, has no labels.
            workload_uid: The UID of its workload; empty: it has none.
        """
        namespace, _, name = root.gang.partition("/")
        kind: GroupKind = "CompositePodGroup" if root.kind == "CompositePodGroup" else "PodGroup"
        group = self._cluster.view().groups.get(GroupKey(namespace, name, kind))
        labels = group.labels if group is not None and group.uid == root.uid else _NO_LABELS
        return {**self.of_workload(workload_uid), **labels} if workload_uid else labels

    def of_workload(self, uid: str) -> Mapping[str, str]:
        """Return the labels of a workload; one that is gone, or not known yet, has none."""
        workload = self._workloads.view().objects.get(uid)
        return workload.labels if workload is not None else _NO_LABELS
