"""Tokens and rights in memory, in place of those of kube-apiserver."""

from __future__ import annotations

import asyncio

from extender.core.model.errors import ClusterUnavailable
from extender.ports.access_ports import AccessRight, Caller


class FakeAccessReviews:
    """The fake of `AccessReviews`; `rights` and `tokens` change at once, as with RBAC."""

    def __init__(self) -> None:
        self.tokens: dict[str, Caller] = {}
        self.rights: set[tuple[str, AccessRight]] = set()
        self.asked: list[str] = []  # a user, or the first letters of a token
        self.down = ""  # why nothing is answered
        self.open = asyncio.Event()  # reviews wait for it
        self.open.set()

    def add_user(self, user: str, *rights: AccessRight) -> str:
        """Let a user in with rights, and return the token."""
        token = f"token of {user}".replace(" ", "-")
        self.tokens[token] = Caller(user=user, groups=("system:authenticated",))
        self.rights |= {(user, right) for right in rights}
        return token

    async def _wait(self, text: str) -> None:
        self.asked.append(text)
        await self.open.wait()
        if self.down:
            raise ClusterUnavailable(self.down)

    async def authenticate(self, token: str) -> Caller | None:
        await self._wait("token")
        return self.tokens.get(token)

    async def authorize(self, caller: Caller, right: AccessRight) -> bool:
        await self._wait(str(right))
        everywhere = AccessRight(right.verb)
        wanted = {right} if right.path else {right, everywhere}
        return any((caller.user, one) in self.rights for one in wanted)
