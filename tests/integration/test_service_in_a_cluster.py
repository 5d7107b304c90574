"""`--context`: the service in a cluster, through a process of kubectl that ends with the command."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deploy.demo.ports import free_port
from extender.cli.connection import service_client
from extender.cli.connection.kubectl import Kubectl, PortForward
from extender.core.model.errors import BadInput
from tests.support.certificates import certificate_folder
from tests.support.service import fork_server
from tests.support.service.command_line import run_command
from tests.support.service.relaying_kubectl import RelayingKubectl
from tests.support.waiting import until

FORWARD = ["--address", "127.0.0.1"]


class Answers(BaseHTTPRequestHandler):
    """Answers lists with an empty list, and streams with a comment, and then nothing."""

    def do_GET(self):
        stream = "follow" in self.path
        body = b": hello\n\n" if stream else b"[]"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
        if not stream:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if stream:
            self.server.streaming.set()
            self.server.ending.wait()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return certificate_folder(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def service(certificates, request):
    """A server on a port of this machine that answers as the read API without a gang; with TLS, as in a cluster."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    if getattr(request, "param", "tls") == "tls":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate("server"), certificates.key("server"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    server.streaming, server.ending = threading.Event(), threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    yield server
    server.ending.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def kubectl(tmp_path, service):
    """A kubectl in PATH, whose cluster has the service."""
    return RelayingKubectl(tmp_path, service.server_port)


def is_running(pid):
    """Return whether a process runs; a zombie does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return status != "Z"
    return False


def test_a_command_with_a_context_asks_the_service_of_that_cluster(kubectl):
    """The answer is that of the service; what a credential plugin prints is passed on; kubectl has ended."""
    done = run_command("gangs", "-o", "json", "--context", "prod", **kubectl.environ)
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert done.stderr == "open https://login.example.com/device\n"
    (call,) = kubectl.calls
    assert call["words"] == [
        *("--context", "prod", "--namespace", "gang-extender", "port-forward", *FORWARD),
        *("service/gang-extender", ":https"),
    ]
    assert not is_running(call["pid"])


READERS = (
    ("gangs",), ("trees",), ("explain", "x"), ("history", "a/b"), ("events",), ("preemptions",), ("state",),
    ("report", "pending"), ("plan",), ("drain", "n0"), ("verify",), ("decision", "replay", "1"), ("status",),
)  # fmt: skip


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_every_reader_of_a_service_takes_a_kubeconfig(command, kubectl, tmp_path):
    """Also without a context; the file is the one that kubectl reads."""
    path = tmp_path / "config"
    path.write_text("{}")
    run_command(*command, "--kubeconfig", str(path), **kubectl.environ)
    (call,) = kubectl.forwards
    assert call["kubeconfig"] == str(path)
    assert "--context" not in call["words"]


def test_the_variable_of_the_kubeconfig_counts_for_a_context(kubectl, tmp_path):
    (tmp_path / "config").write_text("{}")
    paths = f"/nowhere:{tmp_path / 'config'}"
    done = run_command(
        "gangs", "--context", "prod", GANG_EXTENDER_KUBECONFIG=paths, **kubectl.environ
    )
    assert done.returncode == 0
    assert kubectl.calls[0]["kubeconfig"] == paths


def test_a_service_of_another_name_is_found_by_its_label(kubectl):
    """In any namespace; its port is that with the name http."""
    kubectl.describe(here=["tools/gangs"], labelled=["tools/gangs"])
    done = run_command("gangs", "-o", "json", "--context", "prod", **kubectl.environ)
    assert (done.returncode, done.stdout) == (0, "[]\n")
    by_name, listed, found = kubectl.calls
    assert "service/gang-extender" in by_name["words"]
    assert listed["words"][2:] == [
        *("get", "services", "-A", "--selector=app.kubernetes.io/name=gang-extender"),
        "--output=json",
    ]
    assert found["words"][-2:] == ["service/gangs", ":80"]
    assert found["words"][found["words"].index("--namespace") + 1] == "tools"


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        (
            {"here": []},
            "context prod: no Service gang-extender in namespace gang-extender, and no Service of another one has the "
            "label app.kubernetes.io/name=gang-extender; choose a context with --context, or forward a port to it by "
            "other means and give --server URL",
        ),
        (
            {"here": [], "labelled": ["a/x", "b/y"]},
            "context prod: no Service gang-extender in namespace gang-extender, and the Services a/x, b/y have the "
            "label app.kubernetes.io/name=gang-extender; choose a context with --context, or forward a port to it by "
            "other means and give --server URL",
        ),
        (
            {"trouble": 'error: context "prod" does not exist'},
            "kubectl cannot forward a port to Service gang-extender/gang-extender in context prod: "
            'context "prod" does not exist (--server URL needs no kubectl)',
        ),
    ],
    ids=["none", "several", "no context"],
)
def test_a_service_that_cannot_be_reached_is_one_sentence(kubectl, cluster, sentence):
    """With the context, what kubectl printed, and what would help."""
    kubectl.describe(**cluster)
    done = run_command("gangs", "--context", "prod", **kubectl.environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gang-extender: {sentence}\n"


def test_without_kubectl_both_alternatives_are_named(kubectl):
    kubectl.remove()
    done = run_command("gangs", "--context", "prod", **kubectl.environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "gang-extender: kubectl is not in PATH; it forwards the port of the service in context prod: install it, "
        "or forward a port to it by other means and give --server URL\n"
    )


def test_a_server_with_a_context_is_asked_at_its_address(kubectl):
    """The context is whose token is sent there; no port is forwarded."""
    for words in (("gangs", "--context", "prod"), ("events", "--follow", "--context", "prod")):
        done = run_command(*words, "--server", "http://127.0.0.1:9", **kubectl.environ)
        assert (done.returncode, done.stdout) == (2, "")
        assert "no answer from http://127.0.0.1:9: " in done.stderr
    assert kubectl.calls == []


def test_a_service_without_tls_is_found_at_its_other_port(kubectl):
    """As that of an installation with `insecure_plain_http`: its port has another name, and there is nothing to verify."""
    kubectl.describe(port_name="http", port=1)
    done = run_command("gangs", "--context", "prod", **kubectl.environ)
    assert [call["words"][-1] for call in kubectl.forwards] == [":https", ":http"]
    assert done.stderr.startswith("open https://login")


def test_a_kubeconfig_that_is_not_there_is_named(kubectl):
    done = run_command("gangs", "--kubeconfig", "/nowhere", **kubectl.environ)
    assert done.stderr == "gang-extender: --kubeconfig: no file /nowhere\n"
    done = run_command(
        "gangs", "--context", "p", GANG_EXTENDER_KUBECONFIG="/nowhere", **kubectl.environ
    )
    assert done.stderr == "gang-extender: GANG_EXTENDER_KUBECONFIG: no file /nowhere\n"
    assert (done.returncode, kubectl.calls) == (2, [])


@pytest.fixture
def nothing_listens(monkeypatch):
    """Move the default address to a port of this machine on which nothing listens."""
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr(service_client, "DEFAULT_URL", url)
    return url


def test_where_nothing_listens_the_current_context_is_asked_and_named(kubectl, nothing_listens):
    """As a plugin of kubectl asks; a line on stderr names it, and how to choose."""
    kubectl.describe(context="kind-test")
    done = run_command("gangs", "-o", "json", **kubectl.environ)
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert done.stderr.splitlines()[0] == (
        f"gang-extender: nothing listens at {nothing_listens}: asking the service in context kind-test of the "
        "kubeconfig; --context or --server chooses another one"
    )
    assert kubectl.forwards[0]["words"][:2] == ["--context", "kind-test"]


def test_an_address_that_is_given_is_the_only_one(kubectl, nothing_listens):
    """Neither --server nor its variable falls back to a cluster."""
    kubectl.describe(context="kind-test")
    for words, environ in (
        (("--server", nothing_listens), {}),
        ((), {"GANG_EXTENDER_SERVER": nothing_listens}),
    ):
        done = run_command("gangs", *words, **environ, **kubectl.environ)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"no answer from {nothing_listens}: " in done.stderr
    assert kubectl.calls == []


@pytest.mark.parametrize("service", ["plain"], indirect=True)
def test_a_service_on_this_machine_is_asked_before_a_cluster(kubectl, service, monkeypatch):
    """kubectl is not even started."""
    url = f"http://127.0.0.1:{service.server_port}"
    monkeypatch.setattr(service_client, "DEFAULT_URL", url)
    kubectl.describe(context="kind-test")
    done = run_command("gangs", "-o", "json", **kubectl.environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert kubectl.calls == []


@pytest.mark.parametrize("installed", [True, False], ids=["no context", "no kubectl"])
def test_without_a_current_context_the_address_is_the_answer(kubectl, nothing_listens, installed):
    if not installed:
        kubectl.remove()
    done = run_command("gangs", **kubectl.environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gang-extender: no answer from {nothing_listens}: ")
    assert "--context NAME" in done.stderr


def test_a_forward_that_has_ended_is_started_again_at_the_same_port(kubectl, monkeypatch):
    """So that a follower goes on at the address that it has."""
    for name, value in kubectl.environ.items():
        monkeypatch.setenv(name, value)
    forward = PortForward(Kubectl("prod", None))
    try:
        url = forward.url()
        assert forward.url() == url
        (first,) = kubectl.forwards
        os.kill(first["pid"], signal.SIGKILL)
        until(lambda: not is_running(first["pid"]), "the end of kubectl")
        assert forward.url() == url
        _, second = kubectl.forwards
        assert is_running(second["pid"])
        kubectl.describe(trouble="error: You must be logged in to the server (Unauthorized)")
        os.kill(second["pid"], signal.SIGKILL)
        until(lambda: not is_running(second["pid"]), "the end of kubectl")
        with pytest.raises(BadInput, match="You must be logged in"):
            forward.url()
    finally:
        forward.stop()
    assert not is_running(kubectl.forwards[-1]["pid"])


def running(kubectl, *words):
    """Start a command that finds this kubectl."""
    environ = os.environ | kubectl.environ
    return fork_server.run(words, environ, subprocess.PIPE, errors=subprocess.PIPE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_kubectl_ends_with_the_command_whatever_ends_it(kubectl, service, number):
    """Ctrl-C, the end of a session, or a kill that nothing can catch."""
    with running(kubectl, "events", "--follow", "--context", "prod") as process:
        service.streaming.wait()
        (call,) = kubectl.forwards
        assert is_running(call["pid"])
        process.send_signal(number)
        process.wait()
        until(lambda: not is_running(call["pid"]), "the end of kubectl")
        if number != signal.SIGKILL:
            assert process.returncode == 0
            assert process.stderr.read() == b"open https://login.example.com/device\n"


def test_ctrl_c_during_a_question_ends_kubectl(kubectl, service):
    """An answer that takes long is not waited for."""
    with running(kubectl, "explain", "follow", "--context", "prod") as process:
        service.streaming.wait()
        (call,) = kubectl.forwards
        process.send_signal(signal.SIGINT)
        process.wait()
        until(lambda: not is_running(call["pid"]), "the end of kubectl")
        assert b"Traceback" not in process.stderr.read()
