"""The extender API v1 of kube-scheduler as structs, field for field; the only module that decodes its bytes.

Outer keys are Go names in PascalCase and always present. The pod is core/v1 JSON and is kept as raw bytes, because
most calls need only its UID. Go's decoder ignores the case of keys; this module reads exactly what Go writes.

Source: staging/src/k8s.io/kube-scheduler/extender/v1/types.go (K06).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import msgspec
from aiohttp import web

from extender.core.model.ids import NodeName, PodUid
from extender.http.responses.unsent_answers import SentResponse


class _NodeMeta(msgspec.Struct):
    name: str


class _NodeName(msgspec.Struct):
    metadata: _NodeMeta


class NodeList(msgspec.Struct):
    """v1.NodeList with its items as raw bytes."""

    items: list[msgspec.Raw] | None = None
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


class ExtenderArgs(msgspec.Struct, rename="pascal"):
    """Request of filter and prioritize. `nodes` is set when nodeCacheCapable is false, else `node_names`."""

    pod: msgspec.Raw
    nodes: NodeList | None = None
    node_names: list[NodeName] | None = None


class ExtenderFilterResult(msgspec.Struct, rename="pascal"):
    """Answer of filter."""

    nodes: NodeList | None = None
    node_names: list[NodeName] | None = None
    failed_nodes: dict[NodeName, str] = {}
    failed_and_unresolvable_nodes: dict[NodeName, str] = {}
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal"):
    """One score; it must be an integer, or kube-scheduler drops the whole list."""

    host: NodeName
    score: int


class ExtenderBindingArgs(
    msgspec.Struct,
    rename={
        "pod_name": "PodName",
        "pod_namespace": "PodNamespace",
        "pod_uid": "PodUID",
        "node": "Node",
    },
):
    """Request of bind."""

    pod_name: str
    pod_namespace: str
    pod_uid: PodUid
    node: NodeName


class ExtenderBindingResult(msgspec.Struct, rename="pascal"):
    """Answer of bind; an empty `error` means that the pod IS bound."""

    error: str


class MetaPod(msgspec.Struct, rename={"uid": "UID"}):
    """A victim by UID."""

    uid: PodUid


class MetaVictims(
    msgspec.Struct, rename={"pods": "Pods", "num_pdb_violations": "NumPDBViolations"}
):
    """Victims of one node; empty `pods` or a null in it make kube-scheduler panic."""

    pods: list[MetaPod]
    num_pdb_violations: int = 0


class OfferedMetaVictims(
    msgspec.Struct, rename={"pods": "Pods", "num_pdb_violations": "NumPDBViolations"}
):
    """Victims of one node as kube-scheduler offers them; it may send null for none."""

    pods: list[MetaPod] | None = None
    num_pdb_violations: int = 0


class _PodMeta(msgspec.Struct):
    uid: PodUid


class _VictimPod(msgspec.Struct):
    metadata: _PodMeta


class Victims(msgspec.Struct, rename={"pods": "Pods", "num_pdb_violations": "NumPDBViolations"}):
    """Victims of one node as full pods (nodeCacheCapable false)."""

    pods: list[_VictimPod] | None = None
    num_pdb_violations: int = 0


class ExtenderPreemptionArgs(msgspec.Struct, rename="pascal"):
    """Request of preempt; one of the two maps is set."""

    pod: msgspec.Raw
    node_name_to_victims: dict[NodeName, Victims] | None = None
    node_name_to_meta_victims: dict[NodeName, OfferedMetaVictims] | None = None


class ExtenderPreemptionResult(msgspec.Struct, rename="pascal"):
    """Answer of preempt: always by UID, whatever the request carried."""

    node_name_to_meta_victims: dict[NodeName, MetaVictims]


decode_args = msgspec.json.Decoder(ExtenderArgs).decode  # of filter and prioritize
decode_binding = msgspec.json.Decoder(ExtenderBindingArgs).decode
decode_preemption = msgspec.json.Decoder(ExtenderPreemptionArgs).decode
_preemption_result = msgspec.json.Decoder(ExtenderPreemptionResult)
_node = msgspec.json.Decoder(_NodeName)
_uid_only = msgspec.json.Decoder(_VictimPod)
encode = msgspec.json.Encoder().encode


def uid_of(pod: msgspec.Raw) -> PodUid:
    """Return the UID of the pod of a call, or an empty string where it cannot be read.

    The caller then decodes the whole pod, and that error names the invalid field.
    """
    try:
        return _uid_only.decode(pod).metadata.uid
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return PodUid("")


def offered_names(args: ExtenderArgs) -> list[NodeName]:
    """Return the names of the offered nodes, in the order of the request."""
    if args.node_names is not None:
        return args.node_names
    items = args.nodes.items if args.nodes is not None else None
    return [NodeName(_node.decode(item).metadata.name) for item in items or ()]


def filter_result(
    args: ExtenderArgs, passed: set[NodeName], failed: dict[NodeName, str]
) -> ExtenderFilterResult:
    """Return the answer in the form of the request: with names of nodes, or with whole nodes."""
    if args.node_names is not None or args.nodes is None:
        names = [name for name in args.node_names or () if name in passed]
        return ExtenderFilterResult(node_names=names, failed_and_unresolvable_nodes=failed)
    kept = [i for i in args.nodes.items or () if _node.decode(i).metadata.name in passed]
    return ExtenderFilterResult(nodes=NodeList(items=kept), failed_and_unresolvable_nodes=failed)


def preemption_result(victims: dict[NodeName, MetaVictims]) -> bytes:
    """Return an encoded answer of preempt, decoded once to check that it has no null.

    Raises:
        ValueError: A node has no victims.
    """
    body = encode(ExtenderPreemptionResult(node_name_to_meta_victims=victims))
    checked = _preemption_result.decode(body)
    if any(not entry.pods for entry in checked.node_name_to_meta_victims.values()):
        raise ValueError("an answer of preempt names a node without victims")
    return body


Verb = Literal["filter", "prioritize", "preempt", "bind"]
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


class VerbCall(NamedTuple):
    """A call whose body has arrived within its limits."""

    verb: Verb
    body: bytes
    closed: Callable[[], bool]  # whether the caller has closed its connection
    forwarded: bool = False  # by another replica
    waited_ms: int = 0  # at that replica


class VerbAnswer(NamedTuple):
    """The response to a call."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = {}

    def response(self) -> web.Response:
        """Return it as a response of aiohttp."""
        headers = {"Content-Type": self.content_type, **self.headers}
        return SentResponse(status=self.status, body=self.body, headers=headers)


def text_answer(status: int, text: str, headers: Mapping[str, str] | None = None) -> VerbAnswer:
    """Return an answer of one line of text."""
    return VerbAnswer(f"{text}\n".encode(), status, TEXT, headers or {})
