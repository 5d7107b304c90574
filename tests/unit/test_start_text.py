"""The lines that `serve` prints on a terminal name the cluster, the event log and the page of each mode."""

from __future__ import annotations

import pytest

from extender.cli.commands.serve_command import start_text
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
    first = lines_of(monkeypatch, listen=listen)[0]
    assert first == f"gang-extender 0.1.0 listens on {listen}; the page is {page}"
