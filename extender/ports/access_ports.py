"""Port to what decides who a caller is and what the caller may read: for Kubernetes, kube-apiserver."""

from __future__ import annotations

from typing import Protocol

import msgspec

AUDIENCE = "gang-extender"  # of tokens that are made for this service
RESOURCE = "podgroups.gang-extender.dev"  # rights on it are rights on what this service shows


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent a request, from its token: the fields of a `UserInfo` of Kubernetes."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class AccessRight(msgspec.Struct, frozen=True):
    """One right: a verb on our groups in a namespace, or on a path.

    >>> str(AccessRight("list", "team-a")), str(AccessRight("get", path="/metrics"))
    ('list podgroups.gang-extender.dev in namespace team-a', 'get the path /metrics')
    """

    verb: str  # get | list | create, as in RBAC; of a path get | post
    namespace: str = ""  # empty: all of them
    path: str = ""  # a nonResourceURL of RBAC; empty: the right is on `RESOURCE`

    def __str__(self) -> str:
        if self.path:
            return f"{self.verb} the path {self.path}"
        where = f"namespace {self.namespace}" if self.namespace else "all namespaces"
        return f"{self.verb} {RESOURCE} in {where}"


class AccessReviews(Protocol):
    """Answers who has a token, and which rights a caller has; it remembers nothing."""

    async def authenticate(self, token: str) -> Caller | None:
        """Return who has a token; None: it is not valid here."""

    async def authorize(self, caller: Caller, right: AccessRight) -> bool:
        """Return whether a caller has a right."""
