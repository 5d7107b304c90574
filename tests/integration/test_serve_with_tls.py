"""`serve` with TLS as a process: who gets an answer on which port, and files that are replaced while it runs."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

from deploy.demo.ports import free_port
from tests.bench.memory import in_memory_mib
from tests.support.certificates import certificate_folder, client_context, tls_settings
from tests.support.failure_report import show_log
from tests.support.service import fork_server
from tests.support.service.http2_client import http2_client
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.postgres


def ask(url, context, body=None):
    """Return the status and the text of an answer, or None and the reason why there is none."""
    request = urllib.request.Request(
        url, data=body, headers={"Content-Type": "application/json"} if body is not None else {}
    )
    try:
        with urllib.request.urlopen(request, context=context) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return None, str(error)


def until_running(condition, process):
    """Wait for a condition of a service, which goes on running."""

    def look():
        assert process.poll() is None
        return condition()

    until(look)


@pytest.fixture
def running(serve, manifests, tmp_path):
    """Start it with certificates; gives the folder, the URLs of both listeners, the process and the file of its log."""
    made = certificate_folder(tmp_path / "certs", clients=("stranger",))
    api, log = f"127.0.0.1:{free_port()}", tmp_path / "log"
    flags = {**tls_settings(made), "api_listen": api}
    words = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", value)]  # fmt: skip
    with log.open("wb") as stdout:
        process, address, _ = serve(
            "--cluster", str(manifests), *words, stdout=stdout, stderr=subprocess.STDOUT
        )
    show_log(log)
    anyone = client_context(made, None)
    until_running(lambda: ask(f"https://{api}/readyz", anyone)[0] == 200, process)
    return made, f"https://{address}", f"https://{api}", process, log


def test_each_port_serves_its_callers(running):
    """The verbs: only kube-scheduler's certificate; the API: without one, and without reasons in the probes."""
    made, verbs, api, _, log = running
    anyone, scheduler = client_context(made, None), client_context(made)
    for verb in ("filter", "prioritize", "preempt", "bind"):
        url = f"{verbs}/scheduler/{verb}"
        status, text = ask(url, scheduler, b"{")
        assert (status, text.startswith(f"{verb}: ")) == (400, True)
        assert ask(url, client_context(made, "client-stranger"), b"{")[0] == 403
        assert ask(url, anyone, b"{")[0] is None
        assert ask(f"{api}/scheduler/{verb}", anyone, b"{")[0] == 404
    assert ask(f"{verbs}/v1/gangs", scheduler)[0] == 404
    assert ask(f"{verbs}/livez", client_context(made, "client-stranger"))[0] == 200
    assert ask(f"{api}/readyz", anyone) == (200, '{"ready":true,"checks":[]}')
    assert ask(f"{verbs.replace('https', 'http')}/livez", None)[0] is None
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (listening,) = [line for line in lines if line["message"] == "listening"]
    assert listening["page"] == f"{api}/ui/"
    assert listening["addresses"] == [verbs[8:], api[8:]]
    assert not any("There is no authentication" in line["message"] for line in lines)


def test_renewed_files_are_used_within_seconds(running):
    """`gang-extender certs --renew` replaces them; no signal is sent, and a broken file changes nothing."""
    made, verbs, api, process, log = running
    host, _, port = api[8:].partition(":")

    def presented():
        return ssl.get_server_certificate((host, int(port)))

    before = presented()
    made.key("server").rename(made.folder / "kept")
    made.key("server").write_text("rubbish")
    until_running(lambda: "are not usable" in log.read_text(), process)
    assert presented() == before
    (made.folder / "kept").rename(made.key("server"))
    made.renew(datetime.now(UTC), timedelta(days=40))
    until_running(lambda: presented() != before, process)
    assert ask(f"{verbs}/scheduler/filter", client_context(made), b"{")[0] == 400
    metrics = ask(f"{api}/metrics", client_context(made, None))[1]
    assert 'gang_extender_tls_reloads_total{files="server",result="loaded"} 1.0' in metrics
    assert 'gang_extender_tls_reloads_total{files="server",result="failed"} 1.0' in metrics
    assert 'gang_extender_tls_certificate_expires_in_seconds{certificate="server"} ' in metrics


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--listen", "0.0.0.0:0"), "can be reached from other machines, and without TLS"),
        (
            ("--tls-cert-file", "x"),
            "needs --tls-private-key-file (GANG_EXTENDER_TLS_PRIVATE_KEY_FILE) and",
        ),
        (("--client-ca-file", "{made}/server.key"), "has no certificate in PEM"),
    ],
    ids=["plain beyond loopback", "one of three", "not a certificate"],
)
def test_what_would_not_be_safe_does_not_start(serve, manifests, tmp_path, words, fault):
    """Exit 2, one line that names the setting."""
    made = certificate_folder(tmp_path / "certs")
    words = [word.format(made=made.folder) for word in words]
    if words[0] == "--client-ca-file":
        rest = tls_settings(made) | {"client_ca_file": words[1]}
        words = [part for name, value in rest.items() for part in (f"--{name.replace('_', '-')}", value)]  # fmt: skip
    process, _, _ = serve(
        "--cluster", str(manifests), *words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, err = process.communicate()
    assert process.returncode == 2
    text = err.decode()
    assert fault in text
    assert text.startswith("gang-extender: ")


UNREAD_CALLS = 40
LEFT_MIB = 32  # what unread answers may leave behind in memory


@pytest.fixture
def impatient():
    """Let services end answers without progress after half a second, of ten."""
    with fork_server.shortened({"http.responses.unsent_answers.STALL_S": 0.5}):
        yield


async def test_answers_that_are_not_read_end_and_leave_no_memory(impatient, running):
    """Over HTTP/2 with a window of 0: each stream is reset after the time without progress and its memory is free."""
    made, verbs, _, process, _ = running
    pod = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"containers": []},
    }
    names = [f"node-{number:05}-{'x' * 100}" for number in range(5_000)]
    body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
    before_mib = in_memory_mib(process.pid)
    async with http2_client(made, int(verbs.rpartition(":")[2]), window=0) as caller:
        unread = []
        for _ in range(UNREAD_CALLS):
            unread.append(caller.start("/scheduler/filter", body))
            await eventually(
                lambda: caller.h2.outbound_flow_control_window > len(body),
                "the window of the service",
            )
        for number in unread:
            with pytest.raises(ConnectionResetError):
                await caller.answer(number)
        assert not caller.ended.is_set(), "the connection goes on"
        await eventually(
            lambda: in_memory_mib(process.pid) < before_mib + LEFT_MIB, "its memory is free"
        )
