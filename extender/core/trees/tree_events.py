"""Events about the trees of workloads: a result of the compiler is recorded when it differs from the last one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from extender.core.log import events as ev
from extender.core.log.reservation_state import WorkloadTree
from extender.core.planner.codec.request_codec import digest_of
from extender.core.workloads.kind_table import BY_KIND
from extender.core.workloads.native_groups import NativeGroup, has_native_groups
from extender.core.workloads.tree_compiler import (
    TABLE_VERSION,
    CompiledTree,
    CompileRequest,
    adopts_groups,
    compile_tree,
)
from extender.core.workloads.tree_parts import ExistingGroup, LeafUse
from extender.core.workloads.tree_policy import TreeProfile, profile_of_name
from extender.core.workloads.workload_kind import Notice, WorkloadKind
from extender.core.workloads.workload_object import (
    OFF,
    PATCH_MANAGER,
    TREE_LABEL,
    WorkloadObject,
    has_tree_label,
    pod_templates,
)

TreeEvent = ev.TreeCompiled | ev.TreeRefused | ev.TreeRetired
_ENCODER = msgspec.json.Encoder(order="deterministic")
_REQUEST = msgspec.json.Decoder(CompileRequest)


def profile_name(kind: WorkloadKind, workload: WorkloadObject) -> str:
    """Return the profile of a workload: as its pod templates have it, else its own label; empty: none, or off.

    The templates of a workload whose own controller makes the groups are not labelled.
    """
    for template in pod_templates(kind.template_paths, workload.spec):
        labels = (template.get("metadata") or {}).get("labels") or {}
        if TREE_LABEL in labels:
            name = str(labels[TREE_LABEL])
            break
    else:
        own = not kind.template_paths or has_native_groups(kind, workload)
        name = workload.labels.get(TREE_LABEL, "") if own else ""
    return "" if name == OFF else name


def is_requested(workload: WorkloadObject, owner: WorkloadObject | None) -> bool:
    """Return whether the workload or its owner has a tree label of its own, not only their namespace."""
    return workload.requested or (owner is not None and owner.requested)


def compile_request(
    workload: WorkloadObject,
    *,
    owner: WorkloadObject | None,
    name: str,
    profiles: Mapping[str, TreeProfile],
    uses: tuple[LeafUse, ...],
    before: WorkloadTree | None,
    templates: WorkloadObject | None,
) -> CompileRequest:
    """Return the input of a compilation.

    Args:
        owner: The object whose annotations count, and that owns the groups; None: the workload.
        name: Of the profile.
        templates: The Workload that its annotation names, if it exists.
    """
    existing = tuple(
        msgspec.convert(group, ExistingGroup, from_attributes=True)
        for group in (before.groups if before else ())
    )
    return CompileRequest(
        workload=workload,
        owner=owner,
        profile=profile_of_name(name, profiles),
        profile_name=name,
        requested=is_requested(workload, owner),
        uses=uses,
        existing=existing,
        templates=templates,
        adopted=bool(before and before.adopted),
    )


def with_native_groups(request: CompileRequest, groups: tuple[NativeGroup, ...]) -> CompileRequest:
    """Return an input with the groups that the workload's own controller made, if they are adopted."""
    if not adopts_groups(BY_KIND[request.workload.kind], request):
        return request
    return replace(request, native=groups)


def decide_tree(
    request: CompileRequest, before: WorkloadTree | None
) -> tuple[TreeEvent | None, bytes]:
    """Compile a workload, and return the event to record (None: nothing changed), and the canonical input."""
    result = compile_tree(BY_KIND[request.workload.kind], request)
    if result.outcome == "kept-out":
        return retire(before, "scheduled-by-other") if before else None, b""
    encoded = _ENCODER.encode(request)  # canonical: equal inputs give equal bytes
    event = _event(request, result, digest_of(encoded, ()))
    return (event if before is None or _differs(event, before) else None), encoded


def decode_request(encoded: bytes) -> CompileRequest:
    """Return the input of canonical bytes.

    Raises:
        msgspec.ValidationError: They are not an input.
    """
    return _REQUEST.decode(encoded)


def replay_tree(request: CompileRequest, digest: str) -> ev.TreeCompiled | ev.TreeRefused | None:
    """Return the event that the input gives now; None: another controller schedules the workload."""
    result = compile_tree(BY_KIND[request.workload.kind], request)
    return None if result.outcome == "kept-out" else _event(request, result, digest)


def retire(before: WorkloadTree, reason: ev.RetireReason) -> ev.TreeRetired:
    """Return the event that a workload needs no groups any more."""
    return ev.TreeRetired(kind=before.kind, workload=before.workload, uid=before.uid, reason=reason)


def _event(
    request: CompileRequest, result: CompiledTree, digest: str
) -> ev.TreeCompiled | ev.TreeRefused:
    workload, owner, refusal = request.workload, request.owner, result.refusal
    subject: dict[str, Any] = {
        "kind": workload.kind,
        "workload": f"{workload.namespace}/{workload.name}",
        "uid": workload.uid,
        "generation": workload.generation,
        "table_version": TABLE_VERSION,
        "profile": request.profile_name,
        "input_digest": digest,
    }
    if result.outcome == "refused":
        assert refusal is not None
        return ev.TreeRefused(**subject, **msgspec.structs.asdict(refusal))
    return ev.TreeCompiled(
        **subject,
        owner=str(owner) if owner else "",
        owner_uid=owner.uid if owner else "",
        groups=result.groups,
        adopted=result.adopted,
        basic=result.outcome == "basic",
        suspended=BY_KIND[workload.kind].suspended(workload),
        reason=refusal.reason if refusal else "",
        message=refusal.message if refusal else "",
        notices=tuple(ev.NoticeRecord(reason=n.reason, message=n.message) for n in result.notices),
    )


def _differs(event: ev.TreeCompiled | ev.TreeRefused, before: WorkloadTree) -> bool:
    """Return whether a result is new; a new generation alone does not."""
    outcome, notices = "refused", tuple[ev.NoticeRecord, ...]()
    same = True  # a refused tree keeps what it has
    if isinstance(event, ev.TreeCompiled):
        outcome, notices = "basic" if event.basic else "compiled", event.notices
        now = (event.groups, event.adopted, event.suspended)
        same = now == (before.groups, before.adopted, before.suspended)
    shown = (outcome, event.profile, event.reason, event.message, notices)
    shown_before = (before.outcome, before.profile, before.reason, before.message, before.notices)
    return not same or shown != shown_before


# --- tree labels that came too late


def unused_label(workload: WorkloadObject, owned: Iterable[WorkloadObject]) -> Notice | None:
    """Return a notice for a workload whose own tree label does not reach its pods; None: it does, or it has none.

    Args:
        owned: The workloads that it owns, those with a tree label.
    """
    kind = BY_KIND[workload.kind]
    if workload.labels.get(TREE_LABEL, OFF) in ("", OFF) or workload.deleting:
        return None
    if kind.finished(workload) or kind.kept_out(workload) or _reaches_pods(kind, workload, owned):
        return None
    text = (
        f"the label {TREE_LABEL} has no effect: the pods of {workload.kind} {workload.namespace}/{workload.name} do not "
        "get it. It was added after the workload was created, or the admission policy of the kind "
        "(deploy/kubernetes/workloads/tree-policies.yaml) was not installed then, or the workload had a field such as "
        "spec.scheduling, which keeps the label out, and kube-apiserver dropped it: create the workload again without"
    )
    return Notice(reason="LabelNotUsed", message=text)


def _reaches_pods(
    kind: WorkloadKind, workload: WorkloadObject, owned: Iterable[WorkloadObject]
) -> bool:
    if kind.is_part(workload) or kind.policy_owner(workload):
        return True  # the label of its owner counts
    if kind.label_patch is not None:
        items = workload.spec.get(kind.label_patch.field) or ()
        if any(item.get(kind.label_patch.key) == PATCH_MANAGER for item in items):
            return True
        # the label may come from elsewhere; without a status its controller has not made anything yet
        return not workload.status or any(profile_name(BY_KIND[o.kind], o) for o in owned)
    return not kind.template_paths or has_tree_label(kind.template_paths, workload.spec)
