"""What the workloads of files became, for those who read a plan."""

from __future__ import annotations

import msgspec

from extender.core.workloads.tree_parts import PartStep


class GroupOrigin(msgspec.Struct, frozen=True, gc=False):
    """The workload that a group was made from, and the role of the group in it."""

    workload: str  # Kind/namespace/name
    role: str  # what the user calls it, such as the name of a ReplicatedJob; may be empty
    steps: tuple[PartStep, ...] = ()  # of a composite whose children start one after the other
    apart: tuple[str, ...] = ()  # of a root: the roots of the workload that never run beside it
    # by what its minimum is lowered: the text before the number and that behind it; empty: the workload has nothing for it
    lowered_by: tuple[str, str] = ("", "")


class RefusedWorkload(msgspec.Struct, frozen=True, gc=False):
    """A workload that no tree can be made from."""

    kind: str
    namespace: str
    name: str
    text: str  # names file, object, field and value, and what would help

    @property
    def label(self) -> str:
        """Return `Kind/namespace/name`."""
        return f"{self.kind}/{self.namespace}/{self.name}"
