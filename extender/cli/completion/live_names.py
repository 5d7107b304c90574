"""Names of live groups, workloads and pods for completion, from the service, or from kube-apiserver by kubectl.

A shell waits while it completes a word, so no port is forwarded; and it shows what is printed in the middle of the line,
so nothing is printed: without an answer there are no names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
import typer

from extender import settings as settings_module
from extender.core.model.errors import ExtenderError

WITHIN_S = 2.0
FOUND_MAX = 200


class _Found(msgspec.Struct):
    kind: str
    name: str


class _Names(msgspec.Struct):
    found: list[_Found] = []


def complete_groups(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the names of groups that a word can become, each with its kind."""
    return _complete(context, incomplete, ("PodGroup", "CompositePodGroup"))


def complete_objects(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the names of groups, workloads, pods and nodes that a word can become, each with its kind."""
    return _complete(context, incomplete, ())


def _complete(
    context: typer.Context, incomplete: str, kinds: Sequence[str]
) -> list[tuple[str, str]]:
    given = context.params
    namespace = given.get("namespace") or "default"
    hits = _names(given, incomplete)
    names = ((hit.kind, hit.name) for hit in hits if not kinds or hit.kind in kinds)
    return list(completions(names, namespace, incomplete))


def completions(
    objects: Iterable[tuple[str, str]], namespace: str, incomplete: str
) -> Iterable[tuple[str, str]]:
    """Yield the words for objects, without those that do not begin as the word does.

    Args:
        objects: Kind and NAMESPACE/NAME of each object; of a node its name.
        namespace: Where a NAME without one is looked for.

    >>> list(completions([("PodGroup", "default/train"), ("Pod", "a/train-0")], "default", "tr"))
    [('train', 'PodGroup')]
    >>> list(completions([("PodGroup", "default/train"), ("Pod", "a/train-0")], "default", "a/"))
    [('a/train-0', 'Pod')]
    """
    for kind, path in objects:
        where, _, name = path.rpartition("/")
        words = (name, path) if where == namespace and "/" not in incomplete else (path,)
        for word in words:
            if word.startswith(incomplete):
                yield word, kind
                break


def _names(given: dict[str, Any], incomplete: str) -> list[_Found]:
    """Return objects whose names may match, from the first place that is there."""
    from extender.cli.connection.service_client import DEFAULT_URL, listens

    url = given.get("server") or os.environ.get(f"{settings_module.PREFIX}SERVER")
    in_cluster = given.get("context") or given.get("kubeconfig")
    try:
        if url or (not in_cluster and listens(DEFAULT_URL)):
            return _of_service(given, incomplete)
        return _of_cluster(given)
    except (ExtenderError, OSError, TimeoutError, msgspec.MsgspecError):
        return []  # completion has no place for an error; the command that follows prints it


def _of_service(given: dict[str, Any], incomplete: str) -> list[_Found]:
    from extender.cli.connection.http_request import NoAnswer, TimeLimits
    from extender.cli.connection.service_client import ServiceFinder
    from extender.cli.connection.service_credentials import CredentialOptions

    finder = ServiceFinder(
        given.get("context"),
        given.get("kubeconfig"),
        CredentialOptions(
            given.get("token_file"), given.get("as_service_account"), given.get("server_ca_file")
        ),
    )
    query = urlencode({"q": incomplete or "/", "limit": FOUND_MAX})
    limits = TimeLimits(connect_s=WITHIN_S / 2, whole_s=WITHIN_S / 2)
    url = f"{finder.find(given.get('server'))}/v1/search?{query}"
    try:
        with finder.send("GET", url, limits=limits) as answer:
            return msgspec.json.decode(answer.read(), type=_Names).found
    except NoAnswer as error:
        raise OSError(str(error)) from error
    finally:
        finder.close()


def _of_cluster(given: dict[str, Any]) -> list[_Found]:
    from extender.cli.connection.kubectl import Kubectl

    kubeconfig = given.get("kubeconfig") or os.environ.get(f"{settings_module.PREFIX}KUBECONFIG")
    lines = Kubectl(given.get("context"), kubeconfig).group_names(WITHIN_S)
    return [_Found(kind, name) for kind, name in lines]
