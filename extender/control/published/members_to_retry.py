"""Members that filter refused before their stage: filter adds them, the nominator makes kube-scheduler try them again."""

from __future__ import annotations

from collections.abc import Callable

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

    def retain(self, is_reserved: Callable[[PodUid], bool]) -> None:
        """Forget the members of which a function returns that they have no reservation any more."""
        self._uids = {uid for uid in self._uids if is_reserved(uid)}
