"""Settings from the environment, read once; flags of the same names win. Units are in the names."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from extender.core.errors import BadInput

PREFIX = "GANG_EXTENDER_"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set; each field is the environment variable `GANG_EXTENDER_<FIELD>`."""

    database_url: str = ""  # empty: an embedded PostgreSQL in data_dir
    data_dir: str = ""
    pg_bin: str = ""  # folder with initdb and postgres, for the embedded server
    listen: str = "127.0.0.1:8888"
    advertise: str = ""  # URL under which other replicas reach us; from `listen` when empty
    holder: str = ""  # name of this replica in the lease; host name and port when empty
    cluster: tuple[str, ...] = ()  # manifests; empty: the Kubernetes API
    server: str = "http://127.0.0.1:8888"
    kubeconfig: str = ""
    barrier_timeout_s: float = (
        20.0  # kube-scheduler's longest back-off (10 s) and 10 s more (DESIGN 9.3)
    )
    bind_timeout_s: float = 60.0  # httpTimeout of the bind entry in the scheduler's configuration
    filter_deadline_ms: int = (
        1500  # below httpTimeout of the entry of filter, prioritize and preempt
    )
    plan_budget: int = 200_000  # search nodes
    reservation_ttl_s: int = 300
    replacement_ttl_s: int = (
        60  # room of a lost bound member is held so long for its replacement; 0: not at all
    )
    preemption: Literal["on", "off"] = "on"
    eviction: Literal["delete", "evict"] = "delete"  # as kube-scheduler does, or the Eviction API
    refused_gates: Literal["keep", "lift"] = "keep"  # lift: autoscalers see refused members
    lease_ttl_s: float = 10.0
    body_max_bytes: int = 64 * 1024 * 1024
    grace_s: float = 5.0
    topology_keys: tuple[str, ...] = ()
    room_every_s: float = 60.0  # how often the largest free room is measured
    # kube-scheduler's page of metrics, such as https://127.0.0.1:10259/metrics; empty: it is not asked
    scheduler_metrics_url: str = ""
    scheduler_metrics_ca_file: str = ""  # who signs its certificate; may be empty on this machine
    scheduler_metrics_token_file: str = ""  # who we are; the ServiceAccount of this pod where empty
    log_level: str = "INFO"

    @property
    def bind_post_within_ms(self) -> int:
        """Give how old a bind call may be when its Binding is posted (EXTENDER 3.6)."""
        return int((self.bind_timeout_s - min(10.0, self.bind_timeout_s / 4)) * 1000)

    @property
    def host_port(self) -> tuple[str, int]:
        """Split `listen`.

        Raises:
            BadInput: It is not HOST:PORT.
        """
        host, _, port = self.listen.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:  # noqa: PLR2004 -- the last port
            msg = f"{PREFIX}LISTEN: {self.listen!r} is not HOST:PORT, for example 127.0.0.1:8888"
            raise BadInput(msg)
        return host.strip("[]"), int(port)


def default_data_dir(environ: Mapping[str, str]) -> str:
    """Give the folder for data when nobody names one: under XDG_DATA_HOME or the home folder."""
    base = environ.get("XDG_DATA_HOME") or str(
        Path(environ.get("HOME") or "/var/lib") / ".local/share"
    )
    return str(Path(base) / "gang-extender")


def load(environ: Mapping[str, str] | None = None, **flags: object) -> Settings:
    """Read settings: flags, then the environment, then defaults.

    Args:
        environ: Variables; those of the process when None.
        flags: Values given on the command line; None means not given.

    Raises:
        BadInput: A value does not fit; the message names variable, value and what it should be.
    """
    variables = dict(os.environ if environ is None else environ)
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    raw: dict[str, object] = {}
    for name in fields:
        text = variables.get(PREFIX + name.upper())
        if text is not None and text != "":
            raw[name] = _listed(text) if name in ("cluster", "topology_keys") else text
    raw.setdefault("kubeconfig", variables.get("KUBECONFIG", ""))
    raw |= {name: value for name, value in flags.items() if value not in (None, ())}
    raw.setdefault("data_dir", default_data_dir(variables))
    try:
        settings = msgspec.convert(raw, type=Settings, strict=False)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("$.")[2].strip("`")
        msg = f"{PREFIX}{field.upper()}: {raw.get(field)!r}: {str(error).partition(' - ')[0]}"
        raise BadInput(msg) from error
    _check(settings)
    host, port = settings.host_port
    return msgspec.structs.replace(
        settings,
        holder=settings.holder or f"{socket.gethostname()}:{port}",
        advertise=settings.advertise or f"http://{host}:{port}",
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _check(settings: Settings) -> None:
    """Refuse values that would break a promise."""
    for name in (
        "filter_deadline_ms",
        "barrier_timeout_s",
        "bind_timeout_s",
        "lease_ttl_s",
        "plan_budget",
        "reservation_ttl_s",
        "grace_s",
        "room_every_s",
        "body_max_bytes",
    ):
        value = getattr(settings, name)
        if not (math.isfinite(value) and value > 0):
            msg = f"{PREFIX}{name.upper()}: {value} must be a number above 0"
            raise BadInput(msg)
    if settings.replacement_ttl_s < 0:
        msg = f"{PREFIX}REPLACEMENT_TTL_S: {settings.replacement_ttl_s} must be 0 or above"
        raise BadInput(msg)
    if settings.barrier_timeout_s * 1000 >= settings.bind_post_within_ms:
        msg = (
            f"{PREFIX}BARRIER_TIMEOUT_S: {settings.barrier_timeout_s} leaves no time to bind within "
            f"{PREFIX}BIND_TIMEOUT_S {settings.bind_timeout_s}; lower the first or raise the second "
            "(and httpTimeout of the bind entry with it)"
        )
        raise BadInput(msg)
    _check_metrics_url(settings)
    if settings.log_level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        msg = f"{PREFIX}LOG_LEVEL: {settings.log_level!r} is not one of DEBUG, INFO, WARNING, ERROR"
        raise BadInput(msg)


def _check_metrics_url(settings: Settings) -> None:
    """Refuse to send a token to whoever answers."""
    url = settings.scheduler_metrics_url
    if not url:
        return
    name = f"{PREFIX}SCHEDULER_METRICS_URL"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = None, ""
    if parts is None or parts.scheme not in ("http", "https") or not host:
        msg = f"{name}: {url!r} is not a URL, for example https://127.0.0.1:10259/metrics"
        raise BadInput(msg)
    verified = parts.scheme == "https" and bool(settings.scheduler_metrics_ca_file)
    if host not in LOOPBACK and not verified:
        msg = (
            f"{name}: {url!r} is not on this machine, so our token would go to whoever answers; use https and "
            f"name the CA of kube-scheduler's certificate in {PREFIX}SCHEDULER_METRICS_CA_FILE"
        )
        raise BadInput(msg)
