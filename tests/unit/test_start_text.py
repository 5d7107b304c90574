"""The lines that `serve` prints on a terminal name the cluster, the event log and the page of each mode."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from extender import composition, telemetry
from extender.cli.commands import serve_command
from extender.cli.commands.serve_command import start_text
from extender.core.model.errors import BadInput
from extender.settings import load


def lines_of(monkeypatch, *, in_pod=False, **flags):
    if in_pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    else:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return start_text(load({"HOME": "/home/me"}, **flags)).splitlines()


@pytest.mark.parametrize(
    ("flags", "in_pod", "cluster"),
    [
        ({"cluster": ("a", "b")}, False, "manifests in a, b"),
        ({"kubeconfig": "/k"}, False, "Kubernetes, by kubeconfig /k"),
        ({}, False, "Kubernetes, by kubeconfig ~/.kube/config"),
        ({}, True, "Kubernetes, by the ServiceAccount of this pod"),
        ({"kubeconfig": "/k"}, True, "Kubernetes, by kubeconfig /k"),
    ],
    ids=["manifests", "kubeconfig", "default kubeconfig", "in a pod", "kubeconfig in a pod"],
)
def test_the_cluster_is_named(monkeypatch, flags, in_pod, cluster):
    line = lines_of(monkeypatch, in_pod=in_pod, **flags)[1]
    assert line == (
        f"Cluster: {cluster}. Event log: embedded PostgreSQL in /home/me/.local/share/gang-extender."
    )


def test_the_database_is_named_without_its_password(monkeypatch):
    line = lines_of(monkeypatch, database_url="postgresql://me:s3cret@db/gang")[1]
    assert line.endswith("Event log: PostgreSQL at me@db:5432/gang.")


@pytest.mark.parametrize(
    ("listen", "page"),
    [
        ("127.0.0.1:8888", "http://127.0.0.1:8888/"),
        ("0.0.0.0:9", "http://127.0.0.1:9/"),
        ("[::]:9", "http://127.0.0.1:9/"),
        ("[::1]:9", "http://[::1]:9/"),
        ("10.0.0.7:9", "http://10.0.0.7:9/"),
    ],
)
def test_the_page_can_be_opened_on_this_machine(monkeypatch, listen, page):
    """A service that listens on all addresses is opened on loopback."""
    first = lines_of(monkeypatch, listen=listen, insecure_plain_http=True)[0]
    assert first == f"gang-extender 0.1.0 listens on {listen}; the page is {page}"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            {},
            "There is no authentication: every user of this machine may bind and evict pods through this port.",
        ),
        (
            {"listen": "0.0.0.0:9", "insecure_plain_http": True},
            "There is no authentication: everyone who reaches 0.0.0.0:9 may bind and evict pods (--insecure-plain-http).",
        ),
    ],
    ids=["loopback", "insecure"],
)
def test_the_text_names_who_may_use_a_listener_without_tls(monkeypatch, flags, sentence):
    assert lines_of(monkeypatch, **flags)[2] == sentence


def test_with_tls_both_listeners_are_named_and_the_page_is_https(monkeypatch):
    """The page is on the listener of the API; no sentence about authentication."""
    files = {"tls_cert_file": "c", "tls_private_key_file": "k", "client_ca_file": "a"}
    lines = lines_of(monkeypatch, listen="0.0.0.0:8888", **files)
    assert lines[0] == (
        "gang-extender 0.1.0 listens on 0.0.0.0:8888 and 127.0.0.1:8443; the page is https://127.0.0.1:8443/"
    )
    assert len(lines) == 3


def test_a_read_api_without_authentication_is_named(monkeypatch):
    """Where it is switched off, or has a cluster of manifests, which knows no tokens."""
    files = {"tls_cert_file": "c", "tls_private_key_file": "k", "client_ca_file": "a"}
    for flags in ({"authentication": "none"}, {"cluster": ("a.yaml",)}):
        lines = lines_of(monkeypatch, api_listen="0.0.0.0:8443", **files, **flags)
        assert (
            "The read API has no authentication: everyone who reaches 0.0.0.0:8443 reads the state of all namespaces "
            "(--authentication none)."
        ) in lines


@pytest.mark.parametrize("listens", [False, True], ids=["before", "after"])
def test_only_an_error_of_the_start_is_about_an_address(monkeypatch, listens):
    """A pipe that breaks later ends the service with its traceback in the log."""

    async def failing(settings, on_listening, children):
        if listens:
            on_listening()
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(composition, "serve", failing)
    children = Mock()
    monkeypatch.setattr(composition, "fork_children", lambda answer: children)
    monkeypatch.setattr(telemetry, "set_up_logging", lambda level, stream, form: None)
    lines = []
    monkeypatch.setattr(serve_command.log, "exception", lines.append)
    with pytest.raises(SystemExit if listens else BadInput) as ended:
        serve_command.serve()
    assert lines == (["the service ends by an error"] if listens else [])
    children.close.assert_called_once_with()
    assert (
        ended.value.code == 1 if listens else "cannot listen on 127.0.0.1:8888" in str(ended.value)
    )
