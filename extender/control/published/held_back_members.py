"""Members that filter refused before their stage: filter adds them, the nominator makes kube-scheduler try them again."""

from __future__ import annotations

from collections.abc import Collection

from extender.core.model.ids import PodUid


class HeldBackMembers:
    """The members by UID; kept in memory only, because kube-scheduler keeps the refusal in the status of the pod."""

    def __init__(self) -> None:
        self._uids: set[PodUid] = set()

    def __contains__(self, uid: PodUid) -> bool:
        return uid in self._uids

    def add(self, uid: PodUid) -> None:
        """Record that filter has refused a member before its stage."""
        self._uids.add(uid)

    def discard(self, uid: PodUid) -> None:
        """Record that kube-scheduler will try a member again."""
        self._uids.discard(uid)

    def retain(self, uids: Collection[PodUid]) -> None:
        """Forget all other members."""
        self._uids.intersection_update(uids)
