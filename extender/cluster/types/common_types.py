"""Types that several kinds share: metadata, conditions, node selectors."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from extender.core.model.pods import Operator
from extender.core.model.quantities import Written

Resources = dict[str, Written]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Instant = Annotated[datetime, Meta(tz=True)]


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of all types: fields are in camelCase."""


class Present(Part, frozen=True, kw_only=True):
    """An object whose fields are not read, only whether it is set."""


class OwnerReference(Part, frozen=True, kw_only=True):
    """The owner of an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(Part, frozen=True, kw_only=True):
    """The metadata of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Instant | None = None
    deletion_timestamp: Instant | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class KubernetesObject(Part, frozen=True, kw_only=True):
    """An object of the API; items of a list may lack `kind` and `apiVersion`."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> tuple[str, str]:
        """Return namespace and name, which identify an object of its kind."""
        return (self.metadata.namespace, self.metadata.name)

    @property
    def label(self) -> str:
        """Return `Kind/namespace/name`, or `Kind/name`, for messages."""
        parts = (type(self).__name__, self.metadata.namespace, self.metadata.name)
        return "/".join(part for part in parts if part)


class StoredCondition(Part, frozen=True, kw_only=True):
    """A condition of any object."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None  # parsed only where needed: pods have five conditions


class Named(Part, frozen=True, kw_only=True):
    """A scheduling gate, or a claim that a container uses; only the name is read."""

    name: str


class ClaimReference(Named, frozen=True, kw_only=True):
    """A ResourceClaim of a pod or a group: one that exists, or one that is made from a template."""

    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class SelectorRequirement(Part, frozen=True, kw_only=True):
    """One expression of a node selector term."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Part, frozen=True, kw_only=True):
    """Expressions that must all match."""

    match_expressions: tuple[SelectorRequirement, ...] = ()
    match_fields: tuple[SelectorRequirement, ...] = ()


class RequiredNodes(Part, frozen=True, kw_only=True):
    """Terms of which at least one must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()
