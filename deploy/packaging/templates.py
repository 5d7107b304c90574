"""Make the templates of the chart from deploy/kubernetes: each file, with the few places that values change.

An edit names the text of the source that it replaces, and the text must be there exactly as often as the edit expects:
a change of the source that an edit does not know ends `make chart` with the edit that has to follow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import yaml

from deploy.packaging import manifests

CONTROL_PLANE = 'eq .Values.scheduler.form "control-plane"'
SECOND = 'eq .Values.scheduler.form "second-scheduler"'
CLOUDNATIVE = 'eq .Values.database.source "cloudnative-pg"'
HEADER = "{{- /* Generated from %s by `make chart`; do not edit. */ -}}\n"


class Edit(NamedTuple):
    """One replacement; `old` is a regular expression of whole lines or parts of one."""

    old: str
    new: str
    count: int = 1


class StaleEdit(Exception):
    """The source has changed where an edit is made."""


def edited(text: str, edits: Sequence[Edit], name: str) -> str:
    """Return a source as a template: braces that Helm would read are quoted, then the edits are made.

    Raises:
        StaleEdit: The text of an edit is not there as often as it expects.
    """
    text = text.replace("{{", '{{ "{{" }}')
    for edit in edits:
        text, found = re.subn(
            edit.old,
            lambda match, edit=edit: match.expand(_escaped(edit.new)),
            text,
            flags=re.MULTILINE,
        )
        if found != edit.count:
            raise StaleEdit(
                f"deploy/kubernetes/{name}: {edit.old!r} is there {found} times, not {edit.count}; change the edit in"
                f" deploy/packaging/templates.py as the file was changed"
            )
    return text


def _escaped(new: str) -> str:
    r"""Return a replacement in which only \1 and \2 have a meaning."""
    return re.sub(r"\\(?![12])", r"\\\\", new)


def when(condition: str, text: str, action: str = "if") -> str:
    """Return text that is rendered under a condition, with its value (`with`), or for each of its items (`range`)."""
    return f"{{{{- {action} {condition} }}}}\n{text}{{{{- end }}}}\n"


# --- the Deployment

DATABASE_URL = """\
{{- if eq .Values.database.source "cloudnative-pg" }}
%(cluster)s
{{- else }}
            - name: GANG_EXTENDER_DATABASE_URL
              valueFrom:
                secretKeyRef: {name: {{ .Values.database.secretName }}, key: {{ .Values.database.%(key)s }}}
{{- end }}
"""
HAS_DATABASE_CA = f"or ({CLOUDNATIVE}) .Values.database.caSecretName"
DATABASE_MOUNT = when(
    HAS_DATABASE_CA,
    "            - {name: database, mountPath: /etc/gang-extender/database, readOnly: true}\n",
)
DATABASE_VOLUME = when(
    HAS_DATABASE_CA,
    '        - name: database\n          secret: {secretName: {{ if eq .Values.database.source "cloudnative-pg" }}'
    "gang-extender-database-ca{{ else }}{{ .Values.database.caSecretName }}{{ end }}, "
    "defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}\n",
)
SETTINGS = """\
{{- range $name, $value := .Values.settings }}
            - {name: GANG_EXTENDER_{{ upper $name }}, value: {{ if kindIs "string" $value }}{{ quote $value }}{{ else }}{{ toJson $value | quote }}{{ end }}}
{{- end }}
"""


def _placed(field: str, default: str) -> str:
    """Return a field of the pod with a value, else as the source has it on the control plane."""
    own = when(CONTROL_PLANE, f"{default}\n")
    text = f"      {field}: {{{{ toJson . }}}}\n{{{{- else }}}}\n{own}"
    return when(f".Values.{field}", text, "with")


TOLERATIONS = _placed("nodeSelector", r"\1") + _placed("tolerations", r"\2")
POD_METADATA = """\
    metadata:
      labels: {app.kubernetes.io/name: gang-extender{{ range $name, $value := merge (dict) .Values.podLabels .Values.commonLabels }}, {{ $name }}: {{ $value | quote }}{{ end }}}
{{- with .Values.podAnnotations }}
      annotations: {{ toJson . }}
{{- end }}
    spec:
{{- with .Values.schedulerName }}
      schedulerName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
      imagePullSecrets:
{{- range . }}
        - name: {{ . }}
{{- end }}
{{- end }}
"""
SPREAD = when(
    ".Values.topologySpreadConstraints",
    "      topologySpreadConstraints: {{ toJson . }}\n",
    "with",
)
IMAGE = """\
          image: {{ include "gang-extender.image" . }}
          imagePullPolicy: {{ .Values.image.pullPolicy }}
"""
EXTRA_ENV = when(".Values.extraEnv", "            - {{ toJson . }}\n", "range")
EXTRA_MOUNTS = when(".Values.extraVolumeMounts", "            - {{ toJson . }}\n", "range")
EXTRA_VOLUMES = when(".Values.extraVolumes", "        - {{ toJson . }}\n", "range")
PERIOD_S = int(manifests.container()["startupProbe"]["periodSeconds"])
STARTUP = f"\\1 {{{{ div (add .Values.startupSeconds {PERIOD_S - 1}) {PERIOD_S} }}}}"
NOTIFY_VARIABLES = (
    r"\1- {name: GANG_EXTENDER_NOTIFY_URL, valueFrom: {secretKeyRef: "
    "{name: {{ .Values.notify.secretName }}, key: url}}}\n"
    r"\1\2"
)


def _database_url(container: str, key: str) -> str:
    """Return the variables of a container that name its database; those of the Cluster are read from its patch."""
    patch = yaml.safe_load(manifests.text_of("cloudnative-pg/extender-patch.yaml"))
    under = f"/spec/template/spec/{container}/0/env/"
    found = [one["value"] for one in patch if one["path"].startswith(under) and one["op"] != "test"]
    text = yaml.safe_dump(found, sort_keys=False, width=1000).rstrip("\n")
    return DATABASE_URL % {
        "cluster": "\n".join(" " * 12 + line for line in text.split("\n")),
        "key": key,
    }


def _resources(values: str) -> Edit:
    """Return the edit that sets the resources of a container."""
    resources = f"          resources: {{{{ toJson .Values.{values} }}}}\n"
    return Edit(r"^          resources:\n(?:            .*\n)+", resources)


def _secret(value: str) -> tuple[Edit, Edit]:
    """Return the edits that mount a Secret, which the source has as comments, where a value names it."""
    name, condition = value.removesuffix("Key"), f".Values.{value}.secretName"
    volume = f"        - name: {name}\n          secret: {{secretName: {{{{ {condition} }}}}, "
    return (
        Edit(rf"^( +)# (- \{{name: {name}, mountPath: .*\n)", when(condition, r"\1\2")),
        Edit(
            rf"^        # - name: {name}\n        #   secret: \{{secretName: gang-extender-[a-z-]+, (.*\n)",
            when(condition, volume + r"\1"),
        ),
    )


URL = (
    r"^            - name: GANG_EXTENDER_DATABASE_URL\n              valueFrom:\n"
    r"                secretKeyRef: \{name: gang-extender-database, key: %s\}\n"
)


def _deployment() -> tuple[Edit, ...]:
    return (
        Edit(r"^  replicas: .*$", "  replicas: {{ .Values.replicas }}"),
        Edit(
            r"^    metadata:\n      labels: \{app.kubernetes.io/name: gang-extender\}\n    spec:\n",
            POD_METADATA,
        ),
        Edit(r"^(      priorityClassName:) .*$", r"\1 {{ .Values.priorityClassName }}"),
        Edit(r"^(      hostNetwork:) true$", rf"\1 {{{{ {CONTROL_PLANE} }}}}"),
        Edit(
            r"^(      dnsPolicy:) ClusterFirstWithHostNet$",
            rf'\1 {{{{ ternary "ClusterFirstWithHostNet" "ClusterFirst" ({CONTROL_PLANE}) }}}}',
        ),
        Edit(r"^(      nodeSelector: .*)\n(      tolerations:\n        - .*)\n", TOLERATIONS),
        Edit(r"^(      terminationGracePeriodSeconds: .*\n)", r"\1" + SPREAD),
        Edit(
            r"^      affinity:\n(?:        .*\n)+",
            "      affinity: {{ toJson .Values.affinity }}\n",
        ),
        Edit(r"^          image: .*\n", IMAGE, 2),
        Edit(r"^( +- \{name: GANG_EXTENDER_DATA_DIR, .*\n)", r"\1" + EXTRA_ENV, 2),
        Edit(
            rf"^(          startupProbe:\n.*\n            periodSeconds: {PERIOD_S}\n            failureThreshold:) .*$",
            STARTUP,
        ),
        Edit(URL % "migrate-url", _database_url("initContainers", "migrateUrlKey")),
        Edit(URL % "url", _database_url("containers", "urlKey")),
        Edit(r'(GANG_EXTENDER_LISTEN, value: "0.0.0.0:)8888', r"\1{{ .Values.ports.verbs }}"),
        Edit(r'(GANG_EXTENDER_API_LISTEN, value: "0.0.0.0:)8443', r"\1{{ .Values.ports.https }}"),
        Edit(
            r'(GANG_EXTENDER_ADVERTISE_URL, value: "https://\$\(POD_IP\):)8888',
            r"\1{{ .Values.ports.verbs }}",
        ),
        Edit(r"^ +- \{name: GANG_EXTENDER_(?:BARRIER_TIMEOUT_S|SHUTDOWN_GRACE_S), .*\n", "", 2),
        Edit(r"^ +- \{name: GANG_EXTENDER_LOG_LEVEL, .*\n", SETTINGS),
        Edit(r"containerPort: 8888, hostPort: 8888", _ports("verbs")),
        Edit(r"containerPort: 8443, hostPort: 8443", _ports("https")),
        _resources("resources"),
        Edit(
            r"^( +)# (- \{name: GANG_EXTENDER_ANCHOR_KEY_FILE, .*\n)",
            when(".Values.anchorKey.secretName", r"\1\2"),
        ),
        Edit(
            r"^( +)# - \{name: GANG_EXTENDER_NOTIFY_URL, .*\n"
            r" +# (- \{name: GANG_EXTENDER_NOTIFY_SECRET_FILE, .*\n)",
            when(".Values.notify.secretName", NOTIFY_VARIABLES),
        ),
        *_secret("anchorKey"),
        *_secret("notify"),
        Edit(r"^( +- \{name: tmp, mountPath: /tmp\}\n)", r"\1" + DATABASE_MOUNT + EXTRA_MOUNTS, 2),
        Edit(
            r"^(        - name: tmp\n          emptyDir: .*\n)",
            r"\1" + DATABASE_VOLUME + EXTRA_VOLUMES,
        ),
        Edit(
            r"secretName: gang-extender-tls,", "secretName: {{ .Values.certificates.secretName }},"
        ),
    )


def _ports(name: str) -> str:
    port = f"{{{{ .Values.ports.{name} }}}}"
    return f"containerPort: {port}{{{{ if {CONTROL_PLANE} }}}}, hostPort: {port}{{{{ end }}}}"


# --- the other files

OWN_LABELS = "{{ range $name, $value := merge (dict) .Values.%s.labels $.Values.commonLabels }}, {{ $name }}: {{ $value | quote }}{{ end }}"
LABELS = r"^(  labels: \{app.kubernetes.io/name: gang-extender)\}$"
KEPT = """\
metadata:
{{- if .Values.crds.keep }}
  annotations: {helm.sh/resource-policy: keep}
{{- end }}
{{- with .Values.commonLabels }}
  labels: {{ toJson . }}
{{- end }}
"""
SCHEDULER_CONFIG = """\
# The file for `kube-scheduler --config` on the nodes of the control plane: NOTES.txt has the command that reads it.
apiVersion: v1
kind: ConfigMap
metadata:
  name: gang-extender-scheduler-config
  namespace: gang-extender
  labels: {app.kubernetes.io/name: gang-extender}
data:
  config.yaml: |
{{ .Files.Get (printf "files/scopes/%s.yaml" .Values.scheduler.scope) | replace "nvidia.com/gpu" .Values.scheduler.contendedResource | replace "127.0.0.1:8888" (printf "127.0.0.1:%v" .Values.ports.verbs) | indent 4 }}
"""
CLUSTER = (
    Edit(r"^(  instances:) .*$", r"\1 {{ .Values.database.cloudnativePG.instances }}"),
    Edit(
        r"^(  postgresql:\n    synchronous: .*\n)",
        "{{- with .Values.database.cloudnativePG.imageName }}\n  imageName: {{ . }}\n{{- end }}\n"
        "{{- if gt (int .Values.database.cloudnativePG.instances) 1 }}\n" + r"\1" + "{{- end }}\n",
    ),
    Edit(
        r"^(    size:) .*\n",
        r"\1 {{ .Values.database.cloudnativePG.storage.size }}" + "\n"
        "{{- with .Values.database.cloudnativePG.storage.storageClass }}\n    storageClass: {{ . }}\n{{- end }}\n",
    ),
)
MONITOR = (
    Edit(
        r"(kind: ServiceMonitor\nmetadata:\n.*\n.*\n)" + LABELS,
        rf"\1\2{OWN_LABELS % 'serviceMonitor'}}}",
    ),
    # the account and its Secret, unless one with a token is named
    Edit(
        r"^(apiVersion: v1\nkind: ServiceAccount\n(?:.*\n)*?---\n)(?=apiVersion: monitoring)",
        "{{- if not .Values.serviceMonitor.credentials.secretName }}\n" + r"\1" + "{{- end }}\n",
    ),
    Edit(
        r"\{name: gang-extender-metrics, key: token\}",
        '{name: {{ .Values.serviceMonitor.credentials.secretName | default "gang-extender-metrics" }}, '
        "key: {{ .Values.serviceMonitor.credentials.key }}}",
    ),
    Edit(r"^(      interval:) .*$", r"\1 {{ .Values.serviceMonitor.interval }}"),
    Edit(r"\{name: gang-extender-tls, key", "{name: {{ .Values.certificates.secretName }}, key"),
)
# of deploy/monitoring/rules.yaml
RUNBOOK = r"https://docs\.example\.com/gang-extender/docs/alerts/"
RULES = (
    Edit(
        r"^( +runbook_url:) " + RUNBOOK,
        r"\1 {{ $.Values.prometheusRules.runbookUrl }}/",
        len(re.findall(RUNBOOK, manifests.alerting_rules())),
    ),
    Edit(LABELS, rf"\1{OWN_LABELS % 'prometheusRules'}}}"),
)
DASHBOARDS = (
    Edit(
        r'^(  labels: \{app.kubernetes.io/name: gang-extender), grafana_dashboard: "1"\}$',
        rf"\1{OWN_LABELS % 'dashboards'}}}",
    ),
)
SECOND_SCHEDULER = (
    Edit(r"^(  replicas:) [0-9]+", r"\1 {{ .Values.secondScheduler.replicas }}"),
    Edit(r"^(          image:) .*$", r"\1 {{ .Values.secondScheduler.image }}"),
    _resources("secondScheduler.resources"),
    Edit(
        r"(secretName:) gang-extender-scheduler-client$",
        r"\1 {{ .Values.certificates.schedulerClientSecretName }}",
    ),
)
NETWORK_POLICY = (
    Edit(r"port: 8888\}", "port: {{ .Values.ports.verbs }}}"),
    Edit(r"port: 8443\}", "port: {{ .Values.ports.https }}}"),
)
ANNOTATIONS = "{{- range $name, $value := .Values.%s.annotations }}\n%s{{ $name }}: {{ $value | quote }}\n{{- end }}\n"
SERVICE = (
    Edit(
        r'(prometheus.io/port:) "8443"\n',
        r"\1 {{ .Values.ports.https | quote }}" + "\n" + ANNOTATIONS % ("service", " " * 4),
    ),
)
ACCOUNT = (
    Edit(
        r"(kind: ServiceAccount\nmetadata:\n.*\n.*\n.*\n)",
        r"\1"
        + when(".Values.serviceAccount.annotations", "  annotations: {{ toJson . }}\n", "with"),
    ),
)
INGRESS = (
    Edit(r"^  annotations: .*$", "  annotations: {{ toJson .Values.ingress.annotations }}"),
    Edit(
        r"^  ingressClassName: .*\n",
        when(".Values.ingress.className", "  ingressClassName: {{ . }}\n", "with"),
    ),
    Edit(
        r"^  tls:\n    - \{hosts: \[.*\], secretName: .*\}\n",
        "{{- with .Values.ingress.tlsSecretName }}\n  tls:\n"
        "    - {hosts: [{{ $.Values.ingress.host }}], secretName: {{ . }}}\n{{- end }}\n",
    ),
    Edit(r"^(    - host:) .*$", r"\1 {{ .Values.ingress.host }}"),
)


HOOK = """\
metadata:
  annotations:
    helm.sh/hook: pre-upgrade
    helm.sh/hook-delete-policy: before-hook-creation
"""
REPLAY = (
    Edit(r"^metadata:\n(?=  name: gang-extender-replay)", HOOK),
    Edit(
        r"^    metadata:\n      labels: \{app.kubernetes.io/name: gang-extender-replay\}\n    spec:\n",
        POD_METADATA.replace("name: gang-extender{{", "name: gang-extender-replay{{"),
    ),
    Edit(r"^(      nodeSelector: .*)\n(      tolerations:\n        - .*)\n", TOLERATIONS),
    Edit(r"^          image: .*\n", IMAGE),
    Edit(r"--since, 90d,", "--since, {{ .Values.replay.since | quote }},"),
    Edit(URL % "url", _database_url("containers", "urlKey")),
    Edit(r"^( +- \{name: GANG_EXTENDER_DATA_DIR, .*\n)", r"\1" + EXTRA_ENV),
    _resources("replay.resources"),
    Edit(r"^( +- \{name: tmp, mountPath: /tmp\}\n)", r"\1" + DATABASE_MOUNT + EXTRA_MOUNTS),
    Edit(
        r"^(        - name: tmp\n          emptyDir: .*\n)", r"\1" + DATABASE_VOLUME + EXTRA_VOLUMES
    ),
)


class Source(NamedTuple):
    """One template: its source below deploy/kubernetes, the condition under which it is rendered, and its edits."""

    source: str
    condition: str = ""
    edits: Sequence[Edit] = ()


VERBATIM: Mapping[str, Source] = {
    "rbac.yaml": Source("rbac.yaml", "", ACCOUNT),
    "ingress.yaml": Source("ingress/ingress.yaml", ".Values.ingress.enabled", INGRESS),
    "replay-job.yaml": Source("replay/job.yaml", ".Values.replay.enabled", REPLAY),
    "service.yaml": Source("service.yaml", "", SERVICE),
    "confinement.yaml": Source("confinement.yaml", ".Values.policies.confinement"),
    "group-limits.yaml": Source("group-limits.yaml", ".Values.policies.groupLimits"),
    "admission-policy.yaml": Source("admission-policy.yaml", ".Values.policies.members"),
    "flowschema.yaml": Source("flowschema.yaml", ".Values.flowSchema"),
    "priorityclasses.yaml": Source("priorityclasses.yaml", ".Values.priorityClass"),
    "crds.yaml": Source("crds.yaml", ".Values.crds.install", (Edit(r"^metadata:\n", KEPT, 4),)),
    "certificates.yaml": Source(
        "cert-manager/certificates.yaml", 'eq .Values.certificates.source "cert-manager"'
    ),
    "database-cluster.yaml": Source("cloudnative-pg/cluster.yaml", CLOUDNATIVE, CLUSTER),
    "database-roles.yaml": Source("cloudnative-pg/roles.yaml", CLOUDNATIVE),
    "service-monitor.yaml": Source(
        "service-monitor/service-monitor.yaml", ".Values.serviceMonitor.enabled", MONITOR
    ),
    "prometheus-rule.yaml": Source(
        "prometheus-rules/prometheus-rule.yaml", ".Values.prometheusRules.enabled", RULES
    ),
    "dashboards.yaml": Source(
        "dashboards/dashboards.yaml", ".Values.dashboards.enabled", DASHBOARDS
    ),
    "second-scheduler.yaml": Source("second-scheduler/scheduler.yaml", SECOND, SECOND_SCHEDULER),
    "pool-policy.yaml": Source(
        "second-scheduler/pool-policy.yaml", f"and .Values.policies.members ({SECOND})"
    ),
    "network-policy.yaml": Source(
        "second-scheduler/network-policy.yaml",
        f"and .Values.networkPolicy ({SECOND})",
        NETWORK_POLICY,
    ),
    "kueue-admission-check.yaml": Source(
        "kueue/admission-check.yaml", ".Values.kueue.admissionCheck"
    ),
    "leaf-policy.yaml": Source(
        "workloads/leaf-policy.yaml", f"and .Values.workloads.enabled ({CONTROL_PLANE})"
    ),
    "leaf-policy-second-scheduler.yaml": Source(
        "second-scheduler/leaf-policy.yaml", f"and .Values.workloads.enabled ({SECOND})"
    ),
}
BY_KIND: Mapping[str, str] = {
    "workloads-rbac.yaml": "workloads/rbac.yaml",
    "workloads-policies.yaml": "workloads/tree-policies.yaml",
}


def templates() -> Iterator[tuple[str, str]]:
    """Yield name and text of each template that is made here.

    Raises:
        StaleEdit: See `edited`.
    """
    for name, (source, condition, edits) in VERBATIM.items():
        text = edited(manifests.text_of(source), edits, source)
        yield name, _headed(source, when(condition, text) if condition else text)
    for name, source in BY_KIND.items():
        parts = [_for_its_kind(part) for part in manifests.parts_of(source)]
        yield name, _headed(source, when(".Values.workloads.enabled", "".join(parts)))
    _, probe = manifests.parts_of("namespace.yaml")
    yield "namespace.yaml", _headed("namespace.yaml", probe)
    source = "deployment.yaml"
    deployment, budget = manifests.parts_of(source)
    yield source, _headed(source, edited(deployment, _deployment(), source))
    budget = when(".Values.podDisruptionBudget", budget)
    yield "pod-disruption-budget.yaml", _headed(source, budget)
    yield "scheduler-config.yaml", _headed("scopes", when(CONTROL_PLANE, SCHEDULER_CONFIG))


COMMON = (
    "{{ range $name, $value := $.Values.commonLabels }}, {{ $name }}: {{ $value | quote }}{{ end }}"
)
COMMON_LINES = "{{- range $name, $value := $.Values.commonLabels }}\n    {{ $name }}: {{ $value | quote }}\n{{- end }}\n"


def _headed(source: str, text: str) -> str:
    """Return a template with its first line, and with the common labels on each object; the definitions have no others."""
    # where a value has labels for one object, the edit has put both together
    text = re.sub(
        r"^(  labels: \{app(?:(?!commonLabels).)*)\}$",
        lambda match: f"{match[1]}{COMMON}}}",
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(r"^  labels:\n", lambda match: match[0] + COMMON_LINES, text, flags=re.MULTILINE)
    return HEADER % f"deploy/kubernetes/{source}" + text


def _for_its_kind(part: str) -> str:
    """Return a document, rendered only if its kind is wanted."""
    kind = yaml.safe_load(part)["metadata"]["labels"][manifests.KIND_LABEL]
    text = "---\n" + part.replace("{{", '{{ "{{" }}')
    return when(f'has "{kind}" .Values.workloads.kinds', text) if kind[:1].isupper() else text


def files() -> Iterator[tuple[str, str]]:
    """Yield name and text of each file that templates include as it is."""
    for file in sorted((manifests.SOURCE / "scopes").glob("*.yaml")):
        yield f"scopes/{file.name}", file.read_text(encoding="utf-8")
