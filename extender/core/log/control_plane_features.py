"""Detection of the fields that an API server drops, and of native gang scheduling in kube-scheduler (K60).

An API server whose feature gates are off drops fields without an error. A server-side dry run of full objects shows
what it keeps. This module makes the objects and interprets the answers; it sends no requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from extender.core.log.events import ControlPlaneFeaturesDetected, DroppedField, Known
from extender.core.model.dropped_fields import BUILTIN, GATES, gate_of

OLD: Final = f"{BUILTIN}/v1alpha2"  # Kubernetes 1.36 has other names for some fields (A.0)
# the only version that 1.37 has them in; 1.38 has v1beta1
COMPOSITES_OF_1_37: Final = f"{BUILTIN}/v1alpha3"
GENERAL: Final = f"{BUILTIN}/v1 PodGroup"  # served: native gang scheduling is on by default
NAME: Final = "gang-extender-probe"  # name of every object that is sent, and of its namespace
# Feature gates of kube-scheduler for native gang scheduling. 1.37 has only the first, which includes the other.
NATIVE_GATE: Final = "GenericWorkload"
NATIVE_GANG_GATE: Final = "GangScheduling"
Object = Mapping[str, Any]


class PriorityOf(msgspec.Struct, frozen=True):
    """A priority class for the sample groups."""

    name: str
    preemption_policy: str


class Sample(msgspec.Struct, frozen=True):
    """A full object for a dry-run create."""

    api_version: str
    plural: str
    body: Object

    @property
    def label(self) -> str:
        """Return version and kind, as in events."""
        return f"{self.api_version} {self.body['kind']}"


class DryRunResult(msgspec.Struct, frozen=True):
    """The answer to a sample: the object as the API server would store it, or why there is none."""

    sample: Sample
    kept: Object | None
    problem: str = ""


class SchedulerGates(msgspec.Struct, frozen=True):
    """The feature gates of a kube-scheduler by name, or why they are not known."""

    gates: Mapping[str, bool] | None
    problem: str = ""


def samples(
    served: Iterable[tuple[str, str]], priority: PriorityOf | None = None
) -> tuple[Sample, ...]:
    """Return the full objects to send.

    Args:
        priority: An existing class; without it the fields about priority are not tested.
    """
    groups = [_group(version, plural, priority) for version, plural in sorted(served)]
    return (_pod(), *(group for group in groups if group is not None))


def _pod() -> Sample:
    """Return a member that the strictest Pod Security level accepts."""
    container = {
        "name": "none",
        "image": "registry.invalid/none",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "schedulingGroup": {"podGroupName": NAME},
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return _sample("v1", "pods", "Pod", spec)


def _group(version: str, plural: str, priority: PriorityOf | None) -> Sample | None:
    old = version == OLD
    common: dict[str, Any] = {"schedulingConstraints": {"topology": [{"key": "example.com/rack"}]}}
    common["disruptionMode"] = "PodGroup" if old else {"all": {}}
    if priority is not None:
        common["priorityClassName"] = priority.name
        if not old:
            common["preemptionPolicy"] = priority.preemption_policy
    leaf = {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "resourceClaims": [{"name": "claim", "resourceClaimName": "claim"}],
    }
    above: dict[str, Any] = {}
    if not old:
        above["parentCompositePodGroupName"] = NAME
        above["workloadRef"] = {"workloadName": NAME, "templateName": "leaf"}
    match plural:
        case "podgroups":
            return _sample(version, plural, "PodGroup", leaf | common | above)
        case "compositepodgroups":
            policy = {"schedulingPolicy": {"gang": {"minGroupCount": 2}}}
            return _sample(version, plural, "CompositePodGroup", policy | common | above)
        case "workloads":
            template = {"name": "leaf"} | leaf | common
            return _sample(version, plural, "Workload", {"podGroupTemplates": [template]})
        case _:
            return None


def _sample(api_version: str, plural: str, kind: str, spec: Object) -> Sample:
    metadata = {"name": NAME, "namespace": NAME}
    body = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
    return Sample(api_version, plural, body)


def lost_fields(sent: object, kept: object, path: str) -> list[str]:
    """Return the paths of the fields that were sent and are missing in the answer, outermost first.

    Lists are compared entry by entry: an API server adds its own entries at the end.
    """
    if isinstance(sent, Mapping):
        fields = kept if isinstance(kept, Mapping) else {}
        lost: list[str] = []
        for key, value in sent.items():
            field_path = f"{path}.{key}" if path else key
            lost += lost_fields(value, fields[key], field_path) if key in fields else [field_path]
        return lost
    if isinstance(sent, list):
        entries = kept if isinstance(kept, list) else []
        if len(entries) < len(sent):
            return [path]
        return [
            lost_path
            for a, b in zip(sent, entries, strict=False)
            for lost_path in lost_fields(a, b, path)
        ]
    return [] if sent == kept else [path]


def features_of(
    dry_runs: Sequence[DryRunResult],
    scheduler: SchedulerGates,
    gate: str,
    before: ControlPlaneFeaturesDetected | None,
) -> ControlPlaneFeaturesDetected:
    """Return the detected features.

    Args:
        before: The last record: its `native` is kept while kube-scheduler does not answer.
    """
    lost: list[DroppedField] = []
    policy: Known = "unknown"
    for trial in dry_runs:
        if trial.kept is None:
            continue
        if trial.sample.plural == "pods":
            gates = trial.kept.get("spec", {}).get("schedulingGates") or ()
            policy = "on" if any(entry.get("name") == gate for entry in gates) else "off"
        sent: Object = trial.sample.body["spec"]
        if trial.sample.plural == "pods":  # only the reference to its group
            sent = {"schedulingGroup": sent["schedulingGroup"]}
        fields = dict.fromkeys(lost_fields(sent, trial.kept.get("spec"), "spec"))
        label = trial.sample.label
        lost += [DroppedField(object=label, field=field, gate=gate_of(field)) for field in fields]
    served = tuple(t.sample.label for t in dry_runs if t.sample.plural != "pods")
    if before is not None and scheduler.gates is None and scheduler.problem != NOT_CONFIGURED:
        native, text = before.native_group_scheduling, before.message
    else:
        native, text = native_of(scheduler, served)
    return ControlPlaneFeaturesDetected(
        served=served,
        dropped_fields=tuple(lost),
        untested=tuple(f"{t.sample.label}: {t.problem}" for t in dry_runs if t.kept is None),
        admission_policy=policy,
        native_group_scheduling=native,
        message=text,
    )


NOT_CONFIGURED: Final = "GANG_EXTENDER_SCHEDULER_METRICS_URL is not set"


def native_of(scheduler: SchedulerGates, served: Sequence[str] = ()) -> tuple[Known, str]:
    """Return whether native gang scheduling of kube-scheduler is on, and the evidence.

    Args:
        served: Versions and kinds of kube-apiserver. With PodGroup in v1 the feature is generally available: on by
            default, and some versions later without a gate.
    """
    gates = scheduler.gates or {}
    settings = [
        f"{name}={'true' if gates[name] else 'false'}"
        for name in (NATIVE_GATE, NATIVE_GANG_GATE)
        if name in gates
    ]
    if NATIVE_GATE not in gates and GENERAL in served:
        why = scheduler.problem or f"kube-scheduler has no feature gate {NATIVE_GATE}"
        return "on", f"on by default where {GENERAL} is served; {why}"
    if scheduler.gates is None:
        return "unknown", scheduler.problem
    if not settings:
        return "off", f"kube-scheduler has no feature gate {NATIVE_GATE}"
    text = f"feature gates of kube-scheduler: {', '.join(settings)}"
    return ("on" if gates.get(NATIVE_GATE) else "off"), text


def features_summary(features: ControlPlaneFeaturesDetected | None) -> str:
    """Return what an operator should know of the features, in one line, or an empty string."""
    if features is None:
        return ""
    lines = [f"kube-apiserver drops {text}" for text in dropped_field_texts(features)]
    lines += [f"not tried: {text}" for text in features.untested]
    if features.native_group_scheduling == "on":
        lines.append("kube-scheduler's own group scheduling is on")
    if features.admission_policy == "off":
        lines.append("no admission policy of ours holds members at their creation")
    return "; ".join(lines)


def dropped_field_texts(features: ControlPlaneFeaturesDetected) -> list[str]:
    """Return a text per dropped field: "preemptionPolicy of PodGroup, Workload (feature gate ... is off)"."""
    kinds: dict[str, dict[str, None]] = {}
    for dropped in features.dropped_fields:
        kind = dropped.object.rpartition(" ")[2]
        kinds.setdefault(dropped.field.rpartition(".")[2], {})[kind] = None
    return [
        f"{field} of {', '.join(names)}"
        + (f" (feature gate {GATES[field]} is off)" if field in GATES else "")
        for field, names in kinds.items()
    ]
