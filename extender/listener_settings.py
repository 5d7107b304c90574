"""The listeners that the settings describe: addresses, TLS, what each serves, and which combinations are refused.

The verbs change the cluster, so a listener that other machines reach has client certificates. Without TLS the service
listens on loopback only, unless `insecure_plain_http` is set.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from extender.core.model.errors import BadInput

Serves = Literal["everything", "verbs", "api"]
API_LISTEN = "127.0.0.1:8443"  # with TLS; where `api_listen` is unset
SERVER_FILES = ("tls_cert_file", "tls_private_key_file", "client_ca_file")
FORWARDING_FILES = ("tls_client_cert_file", "tls_client_private_key_file")
PORT_MAX = 65535
SHOWN_MAX = 100  # characters of a value of a caller in a message
# A caller that names the server so (SNI) is offered HTTP/1.1 alone: calls that come one after the other cost half on one
# connection that is kept (docs/explanation/design-decisions.md).
HTTP1_SERVER_NAME = "http1.gang-extender"
HELP = (
    "set --tls-cert-file, --tls-private-key-file and --client-ca-file (gang-extender certs makes them), "
    "or listen on 127.0.0.1, or set --insecure-plain-http if something else keeps strangers from this port"
)


class Listener(msgspec.Struct, frozen=True):
    """One address to listen on."""

    setting: str  # the setting that has the address
    host: str
    port: int
    serves: Serves
    tls: bool

    @property
    def address(self) -> str:
        """Return HOST:PORT."""
        return _joined(self.host, self.port)

    @property
    def asks_for_certificates(self) -> bool:
        """Return whether callers need a client certificate."""
        return self.tls and self.serves == "verbs"

    @property
    def shows_reasons(self) -> bool:
        """Return whether the probes have reasons: only where all callers are on this machine and none is authenticated."""
        return is_loopback(self.host) and not self.tls


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the listeners; `Settings` has the others."""

    # One line per setting.
    # fmt: off
    listen: Annotated[str, Meta(description="HOST:PORT for the calls of kube-scheduler; without TLS and --api-listen also for everything else.")] = "127.0.0.1:8888"
    api_listen: Annotated[str, Meta(description="HOST:PORT for the read API, the page and the metrics; unset: 127.0.0.1:8443 with TLS, else those of --listen.")] = ""
    tls_cert_file: Annotated[str, Meta(description="Certificate of this server (PEM, with intermediate CAs); with it the calls of kube-scheduler need a client certificate.")] = ""
    tls_private_key_file: Annotated[str, Meta(description="Private key of --tls-cert-file.")] = ""
    client_ca_file: Annotated[str, Meta(description="CAs whose client certificates may call --listen.")] = ""
    allowed_client_names: Annotated[tuple[str, ...], Meta(description="Names (CN or DNS name) of client certificates that may call --listen.")] = ("system:kube-scheduler", "gang-extender")
    replica_client_names: Annotated[tuple[str, ...], Meta(description="Those of them that other replicas present when they forward a call to the leader.")] = ("gang-extender",)
    tls_client_cert_file: Annotated[str, Meta(description="Certificate that this replica presents to the leader; unset: that of --tls-cert-file.")] = ""
    tls_client_private_key_file: Annotated[str, Meta(description="Private key of --tls-client-cert-file.")] = ""
    server_ca_file: Annotated[str, Meta(description="CAs that the certificate of the leader is verified with, and that of the service that a command queries; unset: those of --client-ca-file, and for commands those of the system.")] = ""
    tls_server_name: Annotated[str, Meta(description="Name that the certificate of the leader must have; unset: the host of its URL.")] = ""
    insecure_plain_http: Annotated[bool, Meta(description="Whether to listen without TLS on addresses that other machines reach: everyone who reaches them may bind and evict pods.")] = False
    allowed_hosts: Annotated[tuple[str, ...], Meta(description="Further names under which a listener without TLS is called (header Host).")] = ()
    advertise_url: Annotated[str, Meta(description="URL under which other replicas reach this one; unset: made from --listen.")] = ""
    # fmt: on

    @property
    def host_port(self) -> tuple[str, int]:
        """Return host and port of `listen`.

        Raises:
            BadInput: It is not HOST:PORT.
        """
        return host_port(self.listen, "listen")

    @property
    def has_tls(self) -> bool:
        """Return whether the listeners have TLS."""
        return bool(self.tls_cert_file)


def listeners(settings: ListenerSettings) -> tuple[Listener, ...]:
    """Return the listeners, that of the verbs first.

    Raises:
        BadInput: An address is not HOST:PORT.
    """
    host, port = host_port(settings.listen, "listen")
    tls = settings.has_tls
    api = settings.api_listen or (API_LISTEN if tls else "")
    if not api:
        return (Listener("listen", host, port, "everything", tls=False),)
    return (
        Listener("listen", host, port, "verbs", tls),
        Listener("api_listen", *host_port(api, "api_listen"), "api", tls),
    )


def check_listeners(settings: ListenerSettings, names: Mapping[str, str]) -> None:
    """Raise BadInput for listeners that would be open to strangers, or that miss a file.

    Args:
        names: By setting, the flag or variable that sets it; for messages.
    """
    host_port(settings.listen, names["listen"])
    if settings.api_listen:
        host_port(settings.api_listen, names["api_listen"])
    _check_files(settings, names)
    all_listeners = listeners(settings)
    for listener in all_listeners:
        if not (listener.tls or is_loopback(listener.host) or settings.insecure_plain_http):
            raise BadInput(
                f"{names[listener.setting]}: {listener.address} can be reached from other machines, and without TLS "
                f"every caller may use it; {HELP}"
            )
    if len({listener.address for listener in all_listeners if listener.port}) < len(
        [listener for listener in all_listeners if listener.port]
    ):
        raise BadInput(
            f"{names['api_listen']}: {all_listeners[0].address} is also {names['listen']}; the API and the verbs need two "
            "addresses, for example ports 8888 and 8443"
        )


def _check_files(settings: ListenerSettings, names: Mapping[str, str]) -> None:
    for group in (SERVER_FILES, FORWARDING_FILES):
        given = [name for name in group if getattr(settings, name)]
        if given and len(given) < len(group):
            missing = " and ".join(names[name] for name in group if name not in given)
            raise BadInput(
                f"{names[given[0]]}: {getattr(settings, given[0])!r} needs {missing} too; set all of them, or none"
            )
    if settings.has_tls:
        return
    for name in (FORWARDING_FILES[0], "tls_server_name"):
        if getattr(settings, name):
            raise BadInput(
                f"{names[name]}: {getattr(settings, name)!r} is for a service with TLS; "
                f"set {names[SERVER_FILES[0]]} too"
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a host.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def foreign_host(host: str, names: Collection[str]) -> str:
    """Return why a request without TLS may be that of a page elsewhere (DNS rebinding); empty: its host is one of `names`.

    >>> foreign_host("[::1]:8888", {"::1"}), foreign_host("LOCALHOST", {"localhost"})
    ('', '')

    Args:
        host: The header Host, with any port: a forwarded port is another one.
        names: Names and addresses of this service, in lower case.
    """
    if host_name(host) in names:
        return ""
    return (
        f"Host {host[:SHOWN_MAX]!r} is not this service; call it by the address that it listens on"
    )


def foreign_origin(origin: str | None, host: str) -> str:
    """Return why a request is that of a page of another server; empty: it is not."""
    if origin is None or origin.partition("://")[2] == host:
        return ""
    return f"Origin {origin[:SHOWN_MAX]!r}: pages of other servers may not send requests here"


def host_name(host: str) -> str:
    """Return the name or address in a header Host, in lower case, without the port."""
    name = host.lower()
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]


def host_port(text: str, field: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT.

    Raises:
        BadInput: The text has another form.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise BadInput(f"{field}: {text!r} is not HOST:PORT, for example 127.0.0.1:8888")
    return host.strip("[]"), int(port)


def http_url(host: str, port: int, *, tls: bool = False) -> str:
    """Return the URL of a host and a port.

    >>> http_url("::1", 8888)
    'http://[::1]:8888'
    """
    return f"http{'s' if tls else ''}://{_joined(host, port)}"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
