"""Which token a command sends to which service, over TLS that it verifies, and never in the clear to another machine."""

from __future__ import annotations

import contextlib
import gc
import json
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from extender.cli.connection import service_client
from extender.cli.connection.http_request import TimeLimits
from extender.cli.connection.service_credentials import CredentialOptions, ServiceCredentials
from tests.support.certificates import certificate_folder
from tests.support.service.command_line import run_command
from tests.support.service.relaying_kubectl import RelayingKubectl
from tests.support.waiting import until

ACCOUNT = ("--as-service-account", "team-a/robot")


class Asking(BaseHTTPRequestHandler):
    """Answers an empty list to a token that it knows, 403 to one of a user without rights, and 401 otherwise."""

    def do_GET(self):
        given = self.headers.get("Authorization", "")
        self.server.given.append(given)
        token = given.removeprefix("Bearer ")
        status = 200 if token in self.server.accepted else 403 if token == "weak" else 401
        body = b"[]" if status == 200 else json.dumps({"detail": f"detail of {status}"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if (
            self.server.waits
        ):  # it has announced to close, as of HTTP/1.0, and leaves that to the caller
            with contextlib.suppress(OSError):
                self.connection.recv(1)
            self.server.ended.set()

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return certificate_folder(tmp_path_factory.mktemp("certificates"), names=["127.0.0.1"])


@pytest.fixture
def service(certificates, request):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Asking)
    server.given, server.accepted = [], {"secret"}
    server.waits, server.ended = False, threading.Event()
    plain = getattr(request, "param", "") == "plain"
    if not plain:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate("server"), certificates.key("server"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.url = f"{'http' if plain else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[0.02])
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def kubectl(tmp_path, service):
    return RelayingKubectl(tmp_path, service.server_port)


@pytest.fixture
def ask(service, certificates, kubectl):
    """Run a command against the service at its address, whose CA is given."""

    def run(*words, **environ):
        ca = ("--server-ca-file", str(certificates.certificate("ca")))
        words = ("gangs", "-o", "json", "--server", service.url, *ca, *words)
        return run_command(*words, **kubectl.environ, **environ)

    return run


def test_connections_end_with_the_command(ask, service, tmp_path):
    """Also one with TLS that the service has not closed; else it is open until the memory of the command is freed."""
    service.waits = True
    (tmp_path / "token").write_text("secret")
    assert ask("--token-file", str(tmp_path / "token")).returncode == 0
    gc.collect()
    until(service.ended.is_set, "the end of the connection")


def kubeconfig(path, **user):
    """Write a kubeconfig of one user."""
    cluster = {"server": "https://127.0.0.1:1"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": cluster}],
        "contexts": [
            {"name": "c", "context": {"cluster": "k", "user": "u"}},
            {"name": "bare", "context": {"cluster": "k", "user": "none"}},
        ],
        "users": [{"name": "u", "user": user}, {"name": "none", "user": {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_the_token_of_a_file_is_sent(ask, service, tmp_path):
    """By the flag or its variable, with the first request; read again when it is refused."""
    file = tmp_path / "token"
    file.write_text("secret\n")
    for done in (ask("--token-file", str(file)), ask(GANG_EXTENDER_TOKEN_FILE=str(file))):
        assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert service.given == ["Bearer secret"] * 2
    file.write_text("old")
    done = ask("--token-file", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gang-extender: detail of 401\n"
    assert service.given[2:] == ["Bearer old"] * 2
    file.write_text("weak")
    done = ask("--token-file", str(file))
    assert (done.returncode, done.stderr) == (2, "gang-extender: detail of 403\n")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "No such file"),
        ("", "has no token"),
        ("a b", "one token"),
        ("caf\u00e9", "one token"),
    ],
)
def test_a_file_without_a_token_is_named(ask, service, tmp_path, content, sentence):
    """Nothing is sent."""
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    done = ask("--token-file", str(file))
    assert done.returncode == 2
    assert done.stderr.startswith(f"gang-extender: --token-file {file}: ")
    assert sentence in done.stderr
    assert service.given == []


def test_the_token_of_a_kubeconfig_is_sent_where_it_is_asked_for(ask, service, tmp_path):
    """After a 401, to the server that was named together with the context; from a plugin too."""
    path = kubeconfig(tmp_path / "config", token="secret")
    done = ask("--kubeconfig", path, "--context", "c")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert service.given == ["", "Bearer secret"]
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "of-plugin"},
    }
    plugin = {
        "apiVersion": credential["apiVersion"],
        "command": sys.executable,
        "args": ["-c", f"print('''{json.dumps(credential)}''')"],
        "interactiveMode": "Never",
    }
    service.accepted.add("of-plugin")
    done = ask("--kubeconfig", kubeconfig(tmp_path / "exec", exec=plugin))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert service.given[2:] == ["", "Bearer of-plugin"]


def test_the_token_of_a_kubeconfig_is_sent_through_a_forwarded_port(service, kubectl, tmp_path):
    """Also without the CA: the port leads into the pod; with another CA than that of the service it is refused."""
    path = kubeconfig(tmp_path / "config", token="secret")
    words = ("gangs", "-o", "json", "--kubeconfig", path)
    done = run_command(*words, **kubectl.environ)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert service.given == ["", "Bearer secret"]
    other = certificate_folder(tmp_path / "other")
    ca = str(other.certificate("ca"))
    done = run_command(*words, "--server-ca-file", ca, **kubectl.environ)
    assert (done.returncode, done.stdout) == (2, "")
    assert "certificate" in done.stderr
    assert len(service.given) == 2


def test_a_service_that_is_named_alone_gets_no_token_of_the_kubeconfig(ask, service, tmp_path):
    """It could use the token for the whole cluster."""
    path = kubeconfig(tmp_path / "config", token="secret")
    for environ in ({"KUBECONFIG": path}, {"GANG_EXTENDER_KUBECONFIG": path}):
        done = ask(**environ)
        assert (done.returncode, done.stdout) == (2, "")
        assert "asks for a token; give --context NAME" in done.stderr
    assert service.given == ["", ""]


def test_a_user_without_a_token_sends_one_of_an_account(ask, service, kubectl, tmp_path):
    """A kubeconfig with a client certificate: the message names the way, and the way works."""
    path = kubeconfig(tmp_path / "config", **{"client-certificate-data": "", "username": ""})
    done = ask("--kubeconfig", path, "--context", "bare")
    assert done.returncode == 2
    assert "has none (a client certificate is for the API server only); give --as-service-acc" in (
        done.stderr
    )
    done = ask("--kubeconfig", path, *ACCOUNT)
    assert done.returncode == 2
    assert "no token of ServiceAccount team-a/robot: Error from server (NotFound)" in done.stderr
    kubectl.describe(tokens={"team-a/robot": "secret"})
    done = ask("--kubeconfig", path, *ACCOUNT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    words = ["create", "token", "robot", "--namespace", "team-a", "--audience", "gang-extender"]
    assert kubectl.calls[-1]["words"] == words
    assert service.given == ["", "Bearer secret"]
    done = ask("--as-service-account", "robot")
    assert done.stderr == "gang-extender: --as-service-account: 'robot' is not NAMESPACE/NAME\n"


def test_a_certificate_that_is_not_verified_gets_no_request(service, kubectl, tmp_path):
    """The sentence names the flag for the CA; its file must be one."""
    (tmp_path / "token").write_text("secret")
    words = ("gangs", "--server", service.url, "--token-file", str(tmp_path / "token"))
    done = run_command(*words, **kubectl.environ)
    assert done.returncode == 2
    assert "--server-ca-file FILE" in done.stderr
    done = run_command(*words, "--server-ca-file", "/nowhere", **kubectl.environ)
    assert done.stderr == "gang-extender: --server-ca-file /nowhere: No such file or directory\n"
    assert service.given == []


@pytest.mark.parametrize("command", [("gangs",), ("events", "--follow")])
def test_no_token_in_the_clear_to_another_machine(tmp_path, command, kubectl):
    """Refused before anything is sent."""
    (tmp_path / "token").write_text("secret")
    words = (*command, "--server", "http://192.0.2.1:8888", "--token-file", str(tmp_path / "token"))
    done = run_command(*words, **kubectl.environ)
    assert done.returncode == 2
    assert "http://192.0.2.1:8888: refusing to send a token without TLS" in done.stderr


@pytest.mark.parametrize("service", ["plain"], indirect=True)
def test_on_this_machine_a_token_needs_no_tls(service, kubectl, tmp_path):
    """As through a port that is forwarded by hand; a stream too."""
    (tmp_path / "token").write_text("weak")
    words = ("--server", service.url, "--token-file", str(tmp_path / "token"))
    for command in (("gangs",), ("events", "--follow")):
        done = run_command(*command, *words, **kubectl.environ)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "gang-extender: detail of 403\n"
    assert service.given == ["Bearer weak"] * 2


def test_the_found_context_is_whose_token_is_sent(service, kubectl, tmp_path, monkeypatch):
    """Where nothing listens on this machine, the current context of kubectl is asked, with its token."""
    monkeypatch.setattr(service_client, "DEFAULT_URL", "http://127.0.0.1:1")
    kubectl.describe(context="c")
    path = kubeconfig(tmp_path / "config", token="secret")
    done = run_command("gangs", "-o", "json", KUBECONFIG=path, **kubectl.environ)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert service.given == ["", "Bearer secret"]


@pytest.mark.parametrize("service", ["plain"], indirect=True)
def test_requests_at_the_same_time_ask_for_one_token(service):
    """As of a page through the proxy: a plugin that opens a browser opens one."""
    loaded, count = [], 4
    together = threading.Barrier(count)

    def load():
        loaded.append("secret")
        return "secret"

    credentials = ServiceCredentials(CredentialOptions(), lambda: None, load)

    def ask_one(_):
        together.wait()
        with credentials.send("GET", service.url, headers={}, body=None, limits=TimeLimits(), of_cluster=True, forwarded=False) as answer:  # fmt: skip
            return answer.status

    with ThreadPoolExecutor(count) as threads:
        assert [*threads.map(ask_one, range(count))] == [200] * count
    assert loaded == ["secret"]
