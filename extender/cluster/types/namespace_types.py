"""Namespaces, whose labels are the default of the objects in them."""

from __future__ import annotations

from extender.cluster.types.common_types import KubernetesObject


class Namespace(KubernetesObject, frozen=True, kw_only=True):
    """A namespace; only its metadata is read."""
