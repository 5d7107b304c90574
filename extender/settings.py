"""Settings from flags and environment variables; flags take precedence. Units are in the names."""

from __future__ import annotations

import functools
import math
import os
import re
import socket
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from extender.core.model.errors import BadInput
from extender.core.model.pod_groups import CHILDREN_MAX
from extender.core.planner.plan_types import SEARCH_BUDGET
from extender.listener_settings import (
    ListenerSettings,
    check_listeners,
    http_url,
    is_loopback,
    listeners,
)

PREFIX = "GANG_EXTENDER_"
BOOLEANS = {"true": True, "false": False}
LOOPBACK = ("127.0.0.1", "::1", "localhost")
GO_IDLE_S = 90  # the transport of Go closes a connection after so long without a request
# Kubernetes sets these in each pod, for each Service of its namespace.
SERVICE_LINK = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$"
)
# Requests to the API server that an ordinary account may have open at once (K61); each kind of request has as
# many workers, and the connections of the client are as many.
API_REQUESTS_MAX = 24

# A password in a URL: user:PASSWORD@host, or a parameter such as password=PASSWORD.
SECRETS = (
    re.compile(r"(?<=://)(?P<kept>[^/@:]*:).*(?=@)"),
    re.compile(r"(?P<kept>[?&]\w*(password|token|secret)=)[^&]*", re.IGNORECASE),
)
MASK = "***"
SECRET_PATHS = ("notify_url",)  # of these settings the path of the URL may be secret, too


class Settings(ListenerSettings, frozen=True, kw_only=True):
    """All settings.

    Each field is the environment variable `GANG_EXTENDER_<FIELD>` and a flag of `serve`, which is made from its type
    and its description; `server` is a flag of the commands that query a service.
    """

    # One line per setting.
    # fmt: off
    database_url: Annotated[str, Meta(description="postgresql://...; unset: an embedded PostgreSQL in the data directory.")] = ""
    data_dir: Annotated[str, Meta(description="Folder of the embedded PostgreSQL; unset: gang-extender in XDG_DATA_HOME or ~/.local/share.")] = ""
    pg_bin: Annotated[str, Meta(description="Folder with the programs initdb and postgres for the embedded PostgreSQL; unset: searched for in the Python package, in PATH and in the folders of the distribution.")] = ""
    anchor_key_file: Annotated[str, Meta(description="File with the Ed25519 key that signs the published anchors of the log and authenticates snapshots (gang-extender keys); keep it away from the database. Unset: anchors are not signed.")] = ""
    authentication: Annotated[Literal["", "none", "kubernetes"], Meta(description="Who may read /v1 and /metrics. none: every client that reaches the listener; kubernetes: bearer tokens with rights on podgroups.gang-extender.dev. Unset: none on a loopback address without TLS and where the cluster is manifests, else kubernetes.")] = ""
    api_server_tokens: Annotated[bool, Meta(description="Whether tokens for the Kubernetes API itself, such as those of kubeconfigs, are accepted besides those with the audience gang-extender.")] = True
    identity: Annotated[str, Meta(description="Name of this replica as holder of the lease, for leader election; unset: host name and port.")] = ""
    cluster: Annotated[tuple[str, ...], Meta(description="Manifests (file or folder) to use as the cluster instead of the Kubernetes API.")] = ()
    node_groups: Annotated[str, Meta(description="YAML file with the node groups of the cluster autoscaler (docs/how-to/node-groups.md): explain answers whether a tree would fit if one of them grew.")] = ""
    server: Annotated[str, Meta(description="URL of the service, for the commands that query it.")] = "http://127.0.0.1:8888"
    token_file: Annotated[str, Meta(description="File with the bearer token for the service, for the commands that query it.")] = ""
    kubeconfig: Annotated[str, Meta(description="Path of a kubeconfig; unset: KUBECONFIG, then the in-cluster configuration.")] = ""
    # the longest back-off of kube-scheduler (10 s) plus 10 s (K33)
    barrier_timeout_s: Annotated[float, Meta(extra={"above": 0}, description="How long bind calls wait for the next member of their gang, until its whole minimum has arrived.")] = 20.0
    bind_timeout_s: Annotated[float, Meta(extra={"above": 0}, description="httpTimeout of the bind entry in the configuration of kube-scheduler.")] = 60.0
    filter_deadline_ms: Annotated[int, Meta(extra={"above": 0}, description="How long a replica waits for the leader in filter, prioritize and preempt; below httpTimeout of their entry.")] = 1500
    search_budget: Annotated[int, Meta(extra={"above": 0}, description="How many search nodes one plan may cost; 20000 take about 2 s of CPU time.")] = SEARCH_BUDGET
    max_children: Annotated[int, Meta(extra={"above": 0}, description="How many child groups one CompositePodGroup may have; a tree with more is invalid.")] = CHILDREN_MAX
    max_new_gangs_per_minute: Annotated[int, Meta(extra={"least": 0}, description="How many new gangs of one namespace are recorded per minute, and at most at once; further ones wait. 0: any number.")] = 3000
    reservation_ttl_s: Annotated[int, Meta(extra={"above": 0}, description="How long an unused reservation is kept.")] = 300
    nomination_delay_ms: Annotated[int, Meta(extra={"least": 0}, description="In a cluster of at most 100 nodes where no other pods wait, a member is nominated only if it is not at bind so long after the removal of its gate; 0: every member is nominated before.")] = 200
    replacement_ttl_s: Annotated[int, Meta(extra={"least": 0}, description="How long the capacity of a lost bound member is held for its replacement; 0: not at all.")] = 60
    hold_capacity_after_s: Annotated[int, Meta(extra={"least": 0}, description="How long a tree waits for capacity before capacity is held for it as it frees; 0: never (docs/explanation/capacity-claims.md).")] = 600
    hold_capacity_for_s: Annotated[int, Meta(extra={"above": 0}, description="How long capacity is held for a tree at most; then others have their turn.")] = 3600
    hold_capacity_max_percent: Annotated[int, Meta(extra={"above": 0, "most": 100}, description="How much of each resource, of the nodes that the pods of a tree may use, may be held for one namespace, in percent; a tree that needs more gets no hold.")] = 50
    moves_after_s: Annotated[int, Meta(extra={"least": 0}, description="How long a gang waits for capacity before running pods are moved for it (docs/how-to/make-room.md); 0: never.")] = 0
    moves_at_most: Annotated[int, Meta(extra={"above": 0}, description="How many pods are moved at most for one gang that waits.")] = 4
    moves_per_hour: Annotated[int, Meta(extra={"above": 0}, description="How many pods of one namespace, and how many for gangs of one namespace, are moved for gangs that wait within an hour at most.")] = 12
    moves_lost_work_min: Annotated[int, Meta(extra={"least": 0}, description="How many GPU-minutes of work the moves for one gang that waits may lose (docs/how-to/lost-work.md).")] = 600
    preemption: Annotated[bool, Meta(description="Whether pods of lower priority may be evicted for a tree.")] = True
    eviction_method: Annotated[Literal["delete", "eviction-api"], Meta(description="delete: delete victims, as kube-scheduler does; eviction-api: evict them through the Eviction API, which enforces PodDisruptionBudgets.")] = "delete"
    unschedulable_gates: Annotated[Literal["keep", "remove"], Meta(description="What to do with our scheduling gate on members that find no capacity; remove: remove it, so that autoscalers see these pods as unschedulable.")] = "keep"
    show_names_across_namespaces: Annotated[bool, Meta(description="Whether conditions, Events and messages on objects of one namespace name objects of another; false: kind, priority, size and the position in the log instead.")] = False
    lease_duration_s: Annotated[float, Meta(extra={"above": 0}, description="How long the lease is valid after a renewal.")] = 10.0
    max_request_body_bytes: Annotated[int, Meta(extra={"above": 0}, description="Largest accepted body of an HTTP request; most paths have a lower limit, see docs/limits.md.")] = 64 * 1024 * 1024
    max_filter_body_bytes: Annotated[int, Meta(extra={"least": 0}, description="Largest accepted body of filter and prioritize; 0: 2 MiB and 300 bytes per node. Set it where kube-scheduler sends whole nodes (nodeCacheCapable: false).")] = 0
    max_preempt_body_bytes: Annotated[int, Meta(extra={"least": 0}, description="Largest accepted body of preempt; 0: 8 MiB. Set it in the same case.")] = 0
    max_body_bytes_in_flight: Annotated[int, Meta(extra={"above": 0}, description="How many bytes the bodies of all open requests may have together.")] = 64 * 1024 * 1024
    header_timeout_s: Annotated[float, Meta(extra={"above": 0}, description="How long the headers of a request may take to arrive.")] = 5.0
    body_timeout_s: Annotated[float, Meta(extra={"above": 0}, description="How long the body of a request may take to arrive.")] = 10.0
    # Go keeps idle connections for 90 s; if the server closes first, a call can fail with EOF (K03)
    keepalive_timeout_s: Annotated[float, Meta(description="How long a connection without requests stays open; above the 90 s of kube-scheduler.")] = 120.0
    max_connections: Annotated[int, Meta(extra={"above": 0}, description="How many connections may be open; at most the limit of open files, less 256.")] = 16384
    max_connections_per_peer: Annotated[int, Meta(extra={"above": 0}, description="How many connections one address may have open; each bind call that waits has one.")] = 8192
    max_streams_per_peer: Annotated[int, Meta(extra={"above": 0}, description="How many streams of events one user may have open, and one address where there is no authentication.")] = 32
    shutdown_grace_s: Annotated[float, Meta(extra={"above": 0}, description="How long open requests may take when the service stops.")] = 5.0
    topology_keys: Annotated[tuple[str, ...], Meta(description="Node labels that are levels of the topology, and whose domains are recorded and measured, even if no group uses them.")] = ()
    capacity_sample_interval_s: Annotated[float, Meta(extra={"above": 0}, description="How often the largest free domain is measured.")] = 60.0
    scheduler_metrics_url: Annotated[str, Meta(description="URL of the metrics of kube-scheduler, such as https://127.0.0.1:10259/metrics; unset: they are not read.")] = ""
    scheduler_metrics_ca_file: Annotated[str, Meta(description="CA file for the metrics of kube-scheduler; may be unset if their URL is of this machine.")] = ""
    scheduler_metrics_token_file: Annotated[str, Meta(description="Token file for the metrics of kube-scheduler; unset: the token of the ServiceAccount of this pod.")] = ""
    notify_url: Annotated[str, Meta(description="URL that gets a signed CloudEvent when a workload is preempted, never fits or waits for long (docs/how-to/notifications.md); unset: nothing is sent.")] = ""
    notify_secret_file: Annotated[str, Meta(description="File with the keys that sign notifications, one a line in base64; needed with a URL for notifications.")] = ""
    notify_ca_file: Annotated[str, Meta(description="CA file for the URL of notifications; unset: the CAs of the system.")] = ""
    notify_namespaces: Annotated[tuple[str, ...], Meta(description="Namespaces whose workloads are notified of; names of other namespaces are then left out. Unset: all.")] = ()
    notify_waiting_after_s: Annotated[int, Meta(extra={"least": 0}, description="How long a gang waits before that is notified; 0: it is not.")] = 3600
    notify_source: Annotated[str, Meta(description="Attribute source of the CloudEvents, such as the name of the cluster.")] = "gang-extender"
    admission_check_retry_s: Annotated[int, Meta(extra={"least": 0}, description="How long Kueue waits after the answer Retry to an AdmissionCheck, before it reserves quota for the workload again (docs/how-to/kueue.md).")] = 30
    log_level: Annotated[str, Meta(description="DEBUG, INFO, WARNING or ERROR.")] = "INFO"
    log_format: Annotated[Literal["", "json", "text"], Meta(description="Form of log lines. Unset: text on a terminal, else json.")] = ""
    # fmt: on

    @property
    def bind_post_within_ms(self) -> int:
        """Return the maximum age of a bind call when its Binding is posted (K31)."""
        return int((self.bind_timeout_s - min(10.0, self.bind_timeout_s / 4)) * 1000)

    @property
    def barrier_limit_s(self) -> float:
        """Return how long the bind calls of a gang wait at most, while further members arrive.

        A tenth of the time within which their Bindings are posted is left for posting them. The first to arrive are
        posted first, so this does not depend on how many there are unless they are posted slower than they arrive.
        """
        return max(self.barrier_timeout_s, self.bind_post_within_ms * 0.0009)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One field of `Settings`, as flags and variables are made from it."""

    name: str
    kind: type[str | int | float | bool]  # of the value, or of each item of a list
    listed: bool  # several values: a flag that is repeated, a variable with commas
    choices: tuple[str, ...]  # the only values; empty: any
    default: Any  # of the type of the field
    help: str  # the help text
    limits: Mapping[str, int] = {}  # of a number: it is *above*, at *least*, at *most* that

    @property
    def variable(self) -> str:
        """Return the name of the environment variable."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """Return the name of the flag."""
        return "--" + self.name.replace("_", "-")


class Origin(msgspec.Struct, frozen=True):
    """Where the value of a setting is from."""

    source: Literal["flag", "variable", "default"]
    name: str  # of the flag or the variable; empty for a default


@functools.cache
def all_settings() -> tuple[Setting, ...]:
    """Return all settings, in the order of the fields."""
    hints = get_type_hints(Settings, include_extras=True)
    settings = []
    for field in msgspec.structs.fields(Settings):
        kind, meta = get_args(hints[field.name])
        listed = get_origin(kind) is tuple
        choices = tuple(filter(None, get_args(kind))) if get_origin(kind) is Literal else ()
        settings.append(
            Setting(
                name=field.name,
                kind=get_args(kind)[0] if listed else str if choices else kind,
                listed=listed,
                choices=choices,
                default=field.default,
                help=meta.description,
                limits=meta.extra or {},
            )
        )
    return tuple(settings)


def default_data_dir(environ: Mapping[str, str]) -> str:
    """Return the default data folder: under XDG_DATA_HOME or the home folder."""
    base = environ.get("XDG_DATA_HOME") or str(
        Path(environ.get("HOME") or "/var/lib") / ".local/share"
    )
    return str(Path(base) / "gang-extender")


def load(environ: Mapping[str, str] | None = None, **flags: object) -> Settings:
    """Return the settings from flags, else the environment, else defaults.

    Args:
        environ: Environment variables; None: those of the process.

    Raises:
        BadInput: A value is invalid; the message names the flag or the variable that has it, the value and the
            expected form.
    """
    variables = dict(os.environ if environ is None else environ)
    raw: dict[str, object] = {}
    names: dict[str, str] = {}  # by setting: where its value is from or would be, for messages
    for setting in all_settings():
        origin = origin_of(setting, variables, flags)
        names[setting.name] = origin.name or f"{setting.flag} ({setting.variable})"
        given = flags[setting.name] if origin.source == "flag" else variables.get(origin.name)
        if origin.source != "default":
            value = _parsed(setting, given, origin.name) if isinstance(given, str) else given
            raw[setting.name] = value
            if isinstance(value, int | float):
                _check_limits(setting, value, origin.name)
    settings = msgspec.convert(raw, type=Settings, strict=False)
    _check(settings, names)
    check_listeners(settings, names)
    computed = computed_defaults(settings, variables)
    unset = {name: value for name, value in computed.items() if not getattr(settings, name)}
    return msgspec.structs.replace(settings, **unset)


def load_for_log(
    database_url: str | None, data_dir: str | None, *, anchor_key_file: str | None = None
) -> Settings:
    """Return the settings of a command that reads or writes a log; either option names it and wins over both variables.

    Raises:
        BadInput: As `load`.
    """
    if data_dir and database_url is None:
        database_url = ""  # GANG_EXTENDER_DATABASE_URL is another log
    return load(None, database_url=database_url, data_dir=data_dir, anchor_key_file=anchor_key_file)


def origin_of(
    setting: Setting, variables: Mapping[str, str], flags: Mapping[str, object]
) -> Origin:
    """Return what sets a setting: its flag, else its variable; for the kubeconfig also KUBECONFIG."""
    if flags.get(setting.name) not in (None, ()):
        return Origin("flag", setting.flag)
    names = (
        (setting.variable, "KUBECONFIG") if setting.name == "kubeconfig" else (setting.variable,)
    )
    for name in names:
        if variables.get(name):
            return Origin("variable", name)
    return Origin("default", "")


def computed_defaults(settings: Settings, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults that depend on the machine or on `listen`, by setting."""
    host, port = settings.host_port
    api = listeners(settings)[-1]
    reads_all = bool(settings.cluster) or (is_loopback(api.host) and not api.tls)
    return {
        "authentication": "none" if reads_all else "kubernetes",
        "data_dir": default_data_dir(variables),
        "identity": f"{socket.gethostname()}:{port}",
        "advertise_url": http_url(host, port, tls=settings.has_tls),
    }


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that look like settings and are none, each with the most similar setting or an empty string.

    Variables that Kubernetes sets in a pod for each Service of its namespace are not returned.

    >>> unknown_variables({"GANG_EXTENDER_LISTENS": ":1", "GANG_EXTENDER_SERVICE_HOST": "10.0.0.1"})
    {'GANG_EXTENDER_LISTENS': 'GANG_EXTENDER_LISTEN'}
    """
    names = [setting.name.upper() for setting in all_settings()]
    unknown = {}
    for variable in sorted(os.environ if environ is None else environ):
        name = variable.removeprefix(PREFIX)
        if name != variable and name not in names and not SERVICE_LINK.search(variable):
            similar = get_close_matches(name, names, n=1, cutoff=0.65)
            unknown[variable] = PREFIX + similar[0] if similar else ""
    return unknown


def unknown_variable_text(variable: str, similar: str) -> str:
    """Return the warning about a variable of `unknown_variables`.

    >>> unknown_variable_text("GANG_EXTENDER_LISTENS", "GANG_EXTENDER_LISTEN")
    'environment variable GANG_EXTENDER_LISTENS is not a setting; did you mean GANG_EXTENDER_LISTEN?'
    """
    hint = f"did you mean {similar}?" if similar else "`gang-extender config` prints all settings"
    return f"environment variable {variable} is not a setting; {hint}"


def without_secrets(name: str, value: object) -> object:
    """Return the value of a setting as it may be shown: without passwords, and of `SECRET_PATHS` without the path."""
    if name in SECRET_PATHS and value:
        place = place_of_url(str(value))
        return place if str(value).rstrip("/") == place else f"{place}/{MASK}"
    return masked(value)


def masked(value: object) -> object:
    """Return a value with the passwords of URLs replaced.

    >>> masked("postgresql://me:secret@db/gang?sslpassword=other&sslmode=require")
    'postgresql://me:***@db/gang?sslpassword=***&sslmode=require'
    """
    if isinstance(value, tuple):
        return tuple(masked(item) for item in value)
    if isinstance(value, str):
        for secret in SECRETS:
            value = secret.sub(rf"\g<kept>{MASK}", value)
    return value


def checked_url(text: str, field: str, example: str) -> str:
    """Return a text that is a URL of HTTP.

    Raises:
        BadInput: It has no host, or another scheme than http and https.
    """
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that are not closed, or a port that is no number
        usable = False
    if not usable:
        raise BadInput(f"{field}: {text!r} is not a URL, for example {example}")
    return text


def place_of_url(url: str) -> str:
    """Return scheme, host and port of a URL, for messages: its path and its parameters may be secret.

    >>> place_of_url("https://me:secret@hooks.example:8443/services/T0/secret?token=x")
    'https://hooks.example:8443'
    """
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def _parsed(setting: Setting, text: str, field: str) -> object:
    """Return the value that a text has for a setting.

    Raises:
        BadInput: It is not one of the values that the setting can have.
    """
    if setting.listed:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if setting.kind is bool:
        if text.lower() not in BOOLEANS:
            raise BadInput(f"{field}: {text!r} is neither true nor false")
        return BOOLEANS[text.lower()]
    if setting.choices and text not in setting.choices:
        raise BadInput(f"{field}: {text!r} is not one of {', '.join(setting.choices)}")
    if setting.kind in (int, float):
        try:
            return msgspec.convert(text, type=setting.kind, strict=False)
        except msgspec.ValidationError as error:
            number = "a whole number" if setting.kind is int else "a number"
            raise BadInput(
                f"{field}: {text!r} is not {number}, for example {setting.default}"
            ) from error
    return text


def _check_limits(setting: Setting, value: float, name: str) -> None:
    """Raise BadInput for a number beyond the limits of a setting."""
    above, least = map(setting.limits.get, ("above", "least"))
    most = setting.limits.get("most", sys.maxsize if setting.kind is int else None)
    if above is not None and not above < value < math.inf:
        raise BadInput(f"{name}: {value} must be a number above {above}")
    if least is not None and value < least:
        raise BadInput(f"{name}: {value} must be {least} or above")
    if most is not None and value > most:
        raise BadInput(f"{name}: {value} must be at most {most}")


def _check(settings: Settings, names: Mapping[str, str]) -> None:
    """Raise BadInput for values with which the service could not work correctly; `names` are for the messages."""
    if not (
        math.isfinite(settings.keepalive_timeout_s) and settings.keepalive_timeout_s > GO_IDLE_S
    ):
        raise BadInput(
            f"{names['keepalive_timeout_s']}: {settings.keepalive_timeout_s} must be above {GO_IDLE_S}, the seconds for "
            "which kube-scheduler keeps a connection"
        )
    if settings.barrier_timeout_s * 1000 >= settings.bind_post_within_ms:
        raise BadInput(
            f"{names['barrier_timeout_s']}: {settings.barrier_timeout_s} leaves no time to bind within "
            f"{names['bind_timeout_s']} {settings.bind_timeout_s}; lower the first or raise the second "
            "(and httpTimeout of the bind entry with it)"
        )
    if settings.authentication == "kubernetes" and settings.cluster:
        raise BadInput(
            f"{names['authentication']}: kubernetes needs a kube-apiserver that reviews tokens, and "
            f"{names['cluster']} names manifests; use none"
        )
    checked_url(settings.server, names["server"], Settings().server)
    _check_metrics_url(settings, names)
    _check_notifications(settings, names)
    if settings.log_level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise BadInput(
            f"{names['log_level']}: {settings.log_level!r} is not one of DEBUG, INFO, WARNING, ERROR"
        )


def _check_notifications(settings: Settings, names: Mapping[str, str]) -> None:
    """Raise BadInput for a URL of notifications that cannot be used; the message does not have it: it may have a secret."""
    if not settings.notify_url:
        return
    name, example = names["notify_url"], "https://events.example/gangs"
    try:
        checked_url(settings.notify_url, name, example)
    except BadInput:
        raise BadInput(
            f"{name}: its value is not a URL of http or https, for example {example}"
        ) from None
    if not settings.notify_secret_file:
        raise BadInput(
            f"{name}: is set without {names['notify_secret_file']}; a receiver can trust a notification only by its "
            "signature (docs/how-to/notifications.md)"
        )
    if not settings.notify_source:
        raise BadInput(
            f"{names['notify_source']}: is empty; a CloudEvent needs a source, for example {Settings().notify_source}"
        )


def _check_metrics_url(settings: Settings, names: Mapping[str, str]) -> None:
    """Raise BadInput for a URL that is not local and not verified by a CA: the token must not be sent there."""
    url, name = settings.scheduler_metrics_url, names["scheduler_metrics_url"]
    if not url:
        return
    parts = urlsplit(checked_url(url, name, "https://127.0.0.1:10259/metrics"))
    verified = parts.scheme == "https" and bool(settings.scheduler_metrics_ca_file)
    if parts.hostname not in LOOPBACK and not verified:
        raise BadInput(
            f"{name}: {url!r} is not on this machine; refusing to send the token to a remote host "
            f"without https and a CA; set {names['scheduler_metrics_ca_file']}"
        )
