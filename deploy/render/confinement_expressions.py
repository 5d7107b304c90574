"""CEL expressions over objects before and after a request, for the policies that confine writes.

Fields are compared by name, so a field of a newer API version is covered too. `dyn` keeps the type checker from
refusing to walk over the fields of a type that it knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from deploy.render.tree_policy_expressions import text, texts
from extender.core.model.pods import EXEMPT_NAMESPACES
from extender.ports.written_names import EXEMPT_LABEL, SERVICE_ACCOUNT


def is_service() -> str:
    """Return the condition that the request is of the account of the service."""
    return f"request.userInfo.username == {text(SERVICE_ACCOUNT)}"


def is_exempt() -> str:
    """Return the condition that the namespace is exempt, by its name or by its label."""
    labels, key = "namespaceObject.metadata.labels", text(EXEMPT_LABEL)
    return (
        f"request.namespace in {texts(EXEMPT_NAMESPACES)}\n"
        f"|| (has({labels}) && {key} in {labels} && {labels}[{key}] == 'true')"
    )


def changed(field: str, allowed: Sequence[str]) -> str:
    """Return the list of the names below a field that were added, changed or removed, except for the allowed ones.

    kube-apiserver evaluates it for each write of the service, and nearly always nothing has changed. So equality comes
    first; and where as many names remain as there were, none was removed without one that was added, which is found.
    """
    keep = f" && !(key in {texts(allowed)})" if allowed else ""
    # `now` and `old` are bound once, by lists of one item: looking up `object.spec` for each key costs more than comparing.
    return (
        f"[dyn(object.{field})].map(now, [dyn(oldObject.{field})].map(old,\n"
        f"now.filter(key, !(key in old && now[key] == old[key]){keep})\n"
        f"+ ({_count('now', allowed)} == {_count('old', allowed)} ? []\n"
        f": old.filter(key, !(key in now){keep})))[0])[0]"
    )


def _count(mapping: str, allowed: Sequence[str]) -> str:
    """Return the number of names in a map without the allowed ones."""
    return " - ".join(
        [f"size({mapping})", *(f"({text(name)} in {mapping} ? 1 : 0)" for name in allowed)]
    )


def list_of(parent: str, field: str) -> str:
    """Return a list, empty if it is not set."""
    return f"(has({parent}.{field}) ? {parent}.{field} : [])"


def exists_named(parent: str, field: str, name: str) -> str:
    """Return the condition that a list has an item of that name."""
    return f"has({parent}.{field}) && {parent}.{field}.exists(one, one.name == {text(name)})"


def without(expression: str, field: str, value: str) -> str:
    """Return a list of metadata without one value."""
    return f"{list_of(f'{expression}.metadata', field)}.filter(one, one != {text(value)})"


def keys_but(labels: str, key: str) -> str:
    """Return labels or annotations as a list of "key=value" without one key, in the order of the keys."""
    return f"{labels}.filter(key, key != {text(key)}).map(key, key + '=' + {labels}[key]).sort()"


def uids(expression: str) -> str:
    """Return the UIDs of the owners of an object, in order."""
    return f"{list_of(f'{expression}.metadata', 'ownerReferences')}.map(owner, owner.uid).sort()"


def condition_is(kind: str, status: str, reason: str) -> str:
    """Return the condition that `c`, a condition of an object, has this type, status and reason."""
    return (
        f"(c.type == {text(kind)} && c.status == {text(status)}\n"
        f"&& has(c.reason) && c.reason == {text(reason)})"
    )
