"""The `AccessReviews` port on a real API server: TokenReview and SubjectAccessReview.

Owns the form of both reviews, and which audiences a token may have. It remembers no answer.
"""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from extender.cluster.connection.api_client import ApiResponse, ApiServer, Request
from extender.core.model.errors import ClusterUnavailable
from extender.ports.access_ports import AUDIENCE, RESOURCE, AccessRight, Caller

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
SUBJECTS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
TIMEOUT_S = 3.0  # a caller waits; less than the 5 s that the headers of a request may take
TRIES_MAX = 2


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _SubjectStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _SubjectReview(msgspec.Struct):
    status: _SubjectStatus


class KubernetesAccessReviews:
    """Asks kube-apiserver about every token and every right.

    A token with the audience `gang-extender` can be used for nothing else, so it is looked for first
    (`kubectl create token NAME --audience gang-extender`). The tokens of people have the audience of the API server:
    OIDC, exec plugins of clouds, static tokens; nothing makes one for another audience from them. A service that took
    only its own audience could not be read with a kubeconfig at all, so those are accepted as well, as the metrics
    of kube-scheduler and of the kubelet accept them. What that costs: such a token gives its rights in the cluster to
    any service that receives it. Where all callers have tokens of their own, `api_server_tokens` is switched off.
    """

    def __init__(self, server: ApiServer, *, api_server_tokens: bool = True) -> None:
        """Keep the connection.

        Args:
            server: As an account with the ClusterRole `system:auth-delegator`.
            api_server_tokens: Whether tokens for the API server itself are accepted too.
        """
        self._server = server
        self._audiences: tuple[list[str], ...] = ([AUDIENCE],)
        if api_server_tokens:
            self._audiences += ([],)  # none named: those of the API server

    async def authenticate(self, token: str) -> Caller | None:
        """Return who has a token; see the port."""
        for audiences in self._audiences:
            spec = {"token": token, "audiences": audiences}
            body = await self._review(TOKENS, "authentication.k8s.io/v1", "TokenReview", spec)
            status = msgspec.json.decode(body, type=_TokenReview).status
            # An authenticator that does not know audiences names none: it did not check them.
            checked = not audiences or AUDIENCE in status.audiences
            if status.authenticated and checked and status.user.username:
                user = status.user
                return Caller(
                    user=user.username,
                    uid=user.uid,
                    groups=tuple(user.groups),
                    extra=tuple((key, tuple(values)) for key, values in sorted(user.extra.items())),
                )
        return None

    async def authorize(self, caller: Caller, right: AccessRight) -> bool:
        """Return whether a caller has a right; see the port."""
        spec: dict[str, object] = {
            "user": caller.user,
            "uid": caller.uid,
            "groups": caller.groups,
            "extra": {key: list(values) for key, values in caller.extra},
        }
        if right.path:
            spec["nonResourceAttributes"] = {"path": right.path, "verb": right.verb}
        else:
            resource, _, group = RESOURCE.partition(".")
            spec["resourceAttributes"] = {
                "group": group,
                "resource": resource,
                "verb": right.verb,
                "namespace": right.namespace,
            }
        version, kind = "authorization.k8s.io/v1", "SubjectAccessReview"
        body = await self._review(SUBJECTS, version, kind, spec)
        status = msgspec.json.decode(body, type=_SubjectReview).status
        return status.allowed and not status.denied

    async def _review(self, path: str, version: str, kind: str, spec: object) -> bytes:
        """Return the answer to a review."""
        request = Request(
            method="POST",
            path=path,
            body=msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec}),
            timeout_s=TIMEOUT_S,
            budget_s=TIMEOUT_S,
            tries_max=TRIES_MAX,
        )
        try:
            return await self._server.call(request)
        except ApiResponse as refusal:
            hint = ""
            if refusal.status == HTTPStatus.FORBIDDEN:
                hint = "; the account of gang-extender needs the ClusterRole system:auth-delegator"
            raise ClusterUnavailable(f"{kind}: {refusal}{hint}", refused=True) from refusal
