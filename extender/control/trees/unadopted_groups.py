"""Groups that another controller made, and that are to hang below a composite, are not planned before they do.

Between the creation of such a group and our annotation on it, it looks like a tree of its own. Its pods are gated, so
they wait; without this they could be placed alone, although the composite asks for more groups than this one.
"""

from __future__ import annotations

from extender.control.log.leader import Leader
from extender.core.model.pod_groups import Group
from extender.core.trees.tree_events import profile_name
from extender.core.workloads.kind_table import BY_KIND, KINDS
from extender.core.workloads.native_groups import adopts, is_native
from extender.core.workloads.tree_policy import profile_of_name
from extender.core.workloads.workload_object import WorkloadObject
from extender.ports.workload_ports import Workloads, WorkloadView

_KINDS = frozenset(kind.kind for kind in KINDS if kind.native_parts is not None)


class AdoptionHold:
    """Answers whether a root is a group that is to be adopted; cheap, from the newest views."""

    def __init__(self, workloads: Workloads | None, leader: Leader) -> None:
        """Prepare; `workloads`: None: there are no trees of workloads, and nothing is held."""
        self._workloads = workloads
        self._leader = leader

    def __call__(self, root: Group) -> bool:
        """Return whether a root has to wait until it hangs below its composite, or is known to be a root."""
        if self._workloads is None or not is_native(root) or root.parent is not None:
            return False
        view = self._workloads.view()
        workload = _root_most(view, view.objects.get(root.owner_uid))
        if workload is None:
            # its owner may be among those that are not listed yet
            return bool(view.pending & _KINDS)
        kind = BY_KIND[workload.kind]
        name = profile_name(kind, workload)
        profile = profile_of_name(name, view.profiles)
        if profile is None and "TreeProfile" not in view.synced:
            return True
        tree = self._leader.committed.trees.get(workload.uid)
        if not adopts(kind, workload, profile) and not (tree is not None and tree.adopted):
            return False
        if tree is None or tree.outcome == "refused":
            return True
        parents = {adopted_group.name: adopted_group.parent for adopted_group in tree.adopted}
        return parents.get(root.key.name, "?") != ""


def _root_most(view: WorkloadView, workload: WorkloadObject | None) -> WorkloadObject | None:
    """Return the workload whose tree an object belongs to; None: it has no tree."""
    if workload is None or workload.owner is None:
        return workload
    if workload.owner.kind not in BY_KIND[workload.kind].part_of:
        return workload
    return view.objects.get(workload.owner.uid)
