"""The values of the chart: values_schema.yaml and defaults of deploy/kubernetes become values.yaml, the JSON Schema and a table."""

from __future__ import annotations

import copy
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from deploy.packaging import manifests
from extender.settings import all_settings

DEFINITION = Path(__file__).with_name("values_schema.yaml")
WIDTH = 118
# Settings that the templates write, because other fields of the Deployment follow from them.
FIXED_SETTINGS = frozenset({
    "database_url", "data_dir", "listen", "api_listen", "authentication", "tls_cert_file", "tls_private_key_file",
    "client_ca_file", "tls_server_name", "advertise_url", "anchor_key_file", "scheduler_metrics_url",
    "notify_url", "notify_secret_file",
})  # fmt: skip
# Variables of the Deployment that operators change: defaults of `settings`.
TUNED = ("barrier_timeout_s", "shutdown_grace_s", "log_level")


def defaults() -> dict[str, Any]:
    """Return what deploy/kubernetes has for values without a default of their own, by path."""
    spec = manifests.deployment()["spec"]
    variables = manifests.variables()
    ports = {one["name"]: one["containerPort"] for one in manifests.container()["ports"]}
    second = next(
        d
        for d in manifests.documents_of("second-scheduler/scheduler.yaml")
        if d["kind"] == "Deployment"
    )
    (scheduler,) = second["spec"]["template"]["spec"]["containers"]
    cluster = manifests.documents_of("cloudnative-pg/cluster.yaml")[0]["spec"]
    *_, monitor = manifests.documents_of("service-monitor/service-monitor.yaml")
    reference = manifests.container()["env"][0]["valueFrom"]["secretKeyRef"]
    (migrate,) = spec["template"]["spec"]["initContainers"]
    (ingress,) = manifests.documents_of("ingress/ingress.yaml")
    (replay,) = manifests.documents_of("replay/job.yaml")
    rules = yaml.safe_load(manifests.alerting_rules())["groups"][0]["rules"]
    runbook = rules[0]["annotations"]["runbook_url"]
    probe = manifests.container()["startupProbe"]
    volumes = {one["name"]: one for one in spec["template"]["spec"]["volumes"]}
    return {
        "image.repository": manifests.NAME,
        "replicas": spec["replicas"],
        "ports.verbs": ports["verbs"],
        "ports.https": ports["https"],
        "priorityClassName": spec["template"]["spec"]["priorityClassName"],
        "resources": manifests.container()["resources"],
        "affinity": spec["template"]["spec"]["affinity"],
        "startupSeconds": probe["periodSeconds"] * probe["failureThreshold"],
        "ingress.annotations": ingress["metadata"]["annotations"],
        "replay.resources": replay["spec"]["template"]["spec"]["containers"][0]["resources"],
        "settings": {
            name: int(text) if text.isdigit() else text
            for name in TUNED
            for text in [variables[f"GANG_EXTENDER_{name.upper()}"]]
        },
        "database.secretName": reference["name"],
        "database.urlKey": reference["key"],
        "database.migrateUrlKey": migrate["env"][0]["valueFrom"]["secretKeyRef"]["key"],
        "database.cloudnativePG.instances": cluster["instances"],
        "database.cloudnativePG.storage.size": cluster["storage"]["size"],
        "certificates.secretName": volumes["tls"]["secret"]["secretName"],
        "certificates.schedulerClientSecretName": "gang-extender-scheduler-client",
        "workloads.kinds": manifests.kinds_of_workloads(),
        "serviceMonitor.interval": monitor["spec"]["endpoints"][0]["interval"],
        "serviceMonitor.credentials.key": monitor["spec"]["endpoints"][0]["authorization"][
            "credentials"
        ]["key"],
        "prometheusRules.runbookUrl": runbook.rpartition("/")[0],
        "secondScheduler.image": scheduler["image"],
        "secondScheduler.replicas": second["spec"]["replicas"],
        "secondScheduler.resources": scheduler["resources"],
    }


def schema() -> dict[str, Any]:
    """Return the JSON Schema, with a default for every value that is no group of others.

    Raises:
        ValueError: A value has two defaults or none.
    """
    made = yaml.safe_load(DEFINITION.read_text(encoding="utf-8"))
    given = defaults()
    for path, field in _leaves(made, ""):
        if ("default" in field) == (path in given):
            raise ValueError(f"{path} needs one default: in {DEFINITION.name} or in defaults()")
        if path in given:
            field["default"] = given.pop(path)
    if given:
        raise ValueError(f"no such values: {', '.join(given)}")
    fields = made["properties"]
    fields["workloads"]["properties"]["kinds"]["items"] = {"enum": manifests.kinds_of_workloads()}
    fields["settings"]["properties"] = {
        one.name: {"type": ["string", "number", "boolean"], "description": one.help}
        for one in sorted(all_settings(), key=lambda one: one.name)
        if one.name not in FIXED_SETTINGS
    }
    fields["global"] = {
        "type": "object",
        "description": "Not used; Helm gives it to charts that are part of another one.",
        "default": {},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart gang-extender",
        **made,
    }


def _is_group(field: dict[str, Any]) -> bool:
    """Return whether the values in a field are described one by one: the settings have one default together."""
    return "properties" in field and "default" not in field


def leaves() -> list[tuple[str, dict[str, Any]]]:
    """Return path and schema of each value that is no group of others, in the order of the file."""
    return [(path, field) for path, field in _leaves(schema(), "") if path != "global"]


def _leaves(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in node["properties"].items():
        if _is_group(field):
            yield from _leaves(field, f"{path}{name}.")
        else:
            yield f"{path}{name}", field


def values() -> dict[str, Any]:
    """Return the defaults as Helm reads them."""
    made: dict[str, Any] = {}
    for path, field in leaves():
        *groups, last = path.split(".")
        node = made
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = copy.deepcopy(field["default"])
    return made


def render_values() -> str:
    """Return values.yaml, with the description of each value above it."""
    lines = [
        "# Generated from deploy/packaging/values_schema.yaml and deploy/kubernetes by `make chart`; do not edit.",
        "# Wrong names and values are refused (values.schema.json).",
    ]
    _write(schema(), 0, lines)
    return "\n".join(lines) + "\n"


def _write(node: dict[str, Any], depth: int, lines: list[str]) -> None:
    indent = "  " * depth
    for name, field in node["properties"].items():
        if name == "global":
            continue
        if depth == 0:
            lines.append("")
        description = " ".join(field["description"].split())
        lines += textwrap.wrap(
            description,
            WIDTH + 2,
            initial_indent=f"{indent}# ",
            subsequent_indent=f"{indent}# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        if _is_group(field):
            lines.append(f"{indent}{name}:")
            _write(field, depth + 1, lines)
        else:
            text = yaml.safe_dump(
                {name: field["default"]}, sort_keys=False, width=WIDTH, default_flow_style=False
            )
            lines += [f"{indent}{line}" for line in text.rstrip("\n").split("\n")]


def render_schema() -> str:
    """Return values.schema.json."""
    return json.dumps(schema(), indent=2) + "\n"


def render_table() -> str:
    """Return the table of values of the README."""
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for path, field in leaves():
        kinds = field.get("enum")
        choices = f" One of {', '.join(f'`{kind}`' for kind in kinds)}." if kinds else ""
        rows.append(
            f"| `{path}` | `{json.dumps(field['default'])}` | {field['description']}{choices} |"
        )
    return "\n".join(rows) + "\n"
