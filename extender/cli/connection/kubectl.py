"""Run kubectl with a context and a kubeconfig: it has the credentials and their plugins."""

from __future__ import annotations

import collections
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from typing import IO

import msgspec
from msgspec.structs import replace

from extender.core.model.errors import BadInput
from extender.ports.access_ports import AUDIENCE
from extender.runtime.child_process import end_with_parent

NAME = NAMESPACE = "gang-extender"  # as in deploy/kubernetes/service.yaml
LABEL = "app.kubernetes.io/name=gang-extender"
# names of the ports of a Service; the second one is of one without TLS
TLS_PORT, PLAIN_PORT = "https", "http"
LOG_LINES = 5000  # of each pod
ANSWERED_WITHIN_S = 30.0  # with the login of a credential plugin
BY_HAND = "or forward a port to it by other means and give --server URL"


class ServiceTarget(msgspec.Struct, frozen=True):
    """A Service and one of its ports, by name or number; by default those of deploy/."""

    namespace: str = NAMESPACE
    name: str = NAME
    port: str = TLS_PORT
    tls: bool = True


def is_installed() -> bool:
    """Return whether kubectl is in PATH."""
    return shutil.which("kubectl") is not None


class Kubectl:
    """The program, with the context and the kubeconfig that it uses."""

    def __init__(self, context: str | None, kubeconfig: str | None) -> None:
        """Find the program; `kubeconfig`: path, or several as in KUBECONFIG; None: that of kubectl."""
        self.place = f"context {context}" if context else "the current context of the kubeconfig"
        program = shutil.which("kubectl")
        if program is None:
            raise BadInput(
                f"kubectl is not in PATH; it forwards the port of the service in {self.place}: install it, {BY_HAND}"
            )
        self._words = [program, *(("--context", context) if context else ())]
        self._environ = os.environ | ({"KUBECONFIG": kubeconfig} if kubeconfig else {})

    def current_context(self) -> str:
        """Return the name of the current context; empty if there is none."""
        done = self._run("config", "current-context")
        return done.stdout.strip() if done.returncode == 0 else ""

    def find_service(self) -> ServiceTarget:
        """Return the only Service with the label of gang-extender, in any namespace.

        Raises:
            BadInput: There is none, there are several, or they cannot be listed.
        """
        where = f"no Service {NAME} in namespace {NAMESPACE}"
        words = ("get", "services", "-A", f"--selector={LABEL}", "--output=json")
        listed = self._printed(f"{where}, and those of other namespaces cannot be listed", *words)
        services = msgspec.json.decode(listed)["items"]
        names = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in services]
        if len(services) != 1:
            paths = ", ".join(map("/".join, names))
            labelled = f"the Services {paths} have" if paths else "no Service of another one has"
            raise BadInput(
                f"{self.place}: {where}, and {labelled} the label {LABEL}; choose a context with --context, {BY_HAND}"
            )
        ports = services[0]["spec"]["ports"]
        numbers = {port.get("name", ""): str(port["port"]) for port in ports}
        port = numbers.get(TLS_PORT) or numbers.get(PLAIN_PORT) or str(ports[0]["port"])
        return ServiceTarget(*names[0], port, tls=TLS_PORT in numbers)

    def create_token(self, namespace: str, name: str) -> str:
        """Return a new token of a ServiceAccount, for this service only.

        Raises:
            BadInput: The API server does not give it; the message has what kubectl printed.
        """
        words = ("create", "token", name, "--namespace", namespace, "--audience", AUDIENCE)
        return self._printed(f"no token of ServiceAccount {namespace}/{name}", *words).strip()

    def logs(self, namespace: str) -> str:
        """Return the last lines of the logs of the pods of gang-extender in a namespace, each with its pod."""
        words = ("logs", "--namespace", namespace, f"--selector={LABEL}", "--prefix")
        most = (f"--tail={LOG_LINES}", "--all-containers", "--max-log-requests=20")
        return self._printed(f"the logs in namespace {namespace} cannot be read", *words, *most)

    def config_map(self, namespace: str, name: str) -> bytes:
        """Return a ConfigMap as JSON."""
        words = ("get", "configmap", "--namespace", namespace, name, "--output=json")
        return self._printed(f"ConfigMap {namespace}/{name} cannot be read", *words).encode()

    def group_names(self, within_s: float) -> list[tuple[str, str]]:
        """Return kind and NAMESPACE/NAME of each of our groups in all namespaces."""
        columns = "custom-columns=K:.kind,N:.metadata.namespace,M:.metadata.name"
        kinds = "podgroups.gang-extender.dev,compositepodgroups.gang-extender.dev"
        words = ("get", kinds, "-A", "--no-headers", "--output", columns)
        listed = self._printed("groups cannot be listed", *words, within_s=within_s)
        rows = (line.split() for line in listed.splitlines())
        return [(row[0], f"{row[1]}/{row[2]}") for row in rows if len(row) == 3]  # noqa: PLR2004 -- the columns

    def start_port_forward(self, target: ServiceTarget, local_port: int) -> subprocess.Popen[str]:
        """Start to forward a port of 127.0.0.1; the process ends with this one, also when this one is killed.

        It is in a process group of its own: Ctrl-C stops the command, which then stops kubectl.

        Args:
            local_port: The port; 0: any.
        """
        words = ("--namespace", target.namespace, "port-forward", "--address", "127.0.0.1")
        return subprocess.Popen(  # noqa: S603 -- no shell
            [
                *self._words, *words, f"service/{target.name}", f"{local_port or ''}:{target.port}",
            ],
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            preexec_fn=end_with_parent(signal.SIGTERM),  # noqa: PLW1509 -- one system call, its library already loaded
        )  # fmt: skip

    def _printed(self, fault: str, *words: str, within_s: float = ANSWERED_WITHIN_S) -> str:
        """Return what kubectl prints; BadInput with the fault and its last line about it where it fails."""
        done = self._run(*words, within_s=within_s)
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise BadInput(f"{self.place}: {fault}: {why}")
        return done.stdout

    def _run(
        self, *words: str, within_s: float = ANSWERED_WITHIN_S
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(  # noqa: S603 -- no shell
                [*self._words, *words],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                text=True,
                timeout=within_s,
            )
        except subprocess.TimeoutExpired as error:
            msg = f"{self.place}: `kubectl {' '.join(words)}` has not ended after {within_s:.0f} s"
            raise BadInput(msg) from error


LISTENS_WITHIN_S = 30.0  # with the login of a credential plugin
STOPPED_WITHIN_S = 2.0
ERRORS_KEPT = 5
FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> ")
NO_PORT = "does not have a named port"
# Lines of kubectl about what failed; the others are warnings, or what a credential plugin asks of the user.
ERROR = re.compile(r"error: |Error |Unable to connect|The connection to the server |[EF]\d{4} ")


class _NoSuchService(BadInput):
    """The API server has no Service of this name."""


class _NoSuchPort(BadInput):
    """The Service has no port of this name."""


class PortForward:
    """Runs kubectl, and starts it again when it has ended; it ends with `stop`, or with this process."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._target = ServiceTarget()
        self._local_port = 0
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._errors: collections.deque[str] = collections.deque(maxlen=ERRORS_KEPT)

    @property
    def place(self) -> str:
        """Return what the port leads to, for messages."""
        target = self._target
        return f"Service {target.namespace}/{target.name} in {self._kubectl.place}"

    @property
    def namespace(self) -> str:
        """Return the namespace of the Service."""
        return self._target.namespace

    @property
    def last_error(self) -> str:
        """Return the last error that kubectl has printed, or an empty string."""
        return self._errors[-1].removeprefix("error: ") if self._errors else ""

    def url(self) -> str:
        """Return the URL of the local port, which stays the same when kubectl is started again.

        Raises:
            BadInput: There is no such Service, or kubectl cannot forward its port; the message has what it printed.
        """
        if self._process is None or self._process.poll() is not None:
            self.stop()
            try:
                self._start()
            except _NoSuchService:
                self._target = self._kubectl.find_service()
                self._start()
            except _NoSuchPort:
                if not self._target.tls:
                    raise
                self._target = replace(self._target, port=PLAIN_PORT, tls=False)
                self._start()
        scheme = "https" if self._target.tls else "http"
        return f"{scheme}://127.0.0.1:{self._local_port}"

    def stop(self) -> None:
        """Stop kubectl and wait for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join()

    def _start(self) -> None:
        """Start kubectl and wait until it listens."""
        self._errors.clear()
        self._process = self._kubectl.start_port_forward(self._target, self._local_port)
        ports: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        out, errors = self._process.stdout, self._process.stderr
        self._readers = [
            threading.Thread(target=_read_output, args=(out, ports), daemon=True),
            threading.Thread(target=_read_errors, args=(errors, self._errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        port, why = None, "kubectl ended without an error"
        try:
            port = ports.get(timeout=LISTENS_WITHIN_S)
        except queue.Empty:
            why = f"kubectl does not listen after {LISTENS_WITHIN_S:.0f} s"
        finally:  # also when Ctrl-C ends the waiting
            if port is None:
                self.stop()
        if port is not None:
            self._local_port = port
            return
        kind: type[BadInput] = BadInput
        for words, other in (("(NotFound)", _NoSuchService), (NO_PORT, _NoSuchPort)):
            kind = other if any(words in line for line in self._errors) else kind
        raise kind(
            f"kubectl cannot forward a port to {self.place}: {self.last_error or why} (--server URL needs no kubectl)"
        )


def _read_output(stream: IO[str], ports: queue.SimpleQueue[int | None]) -> None:
    """Pass on the port, and None at the end; reads all, because kubectl prints a line for each connection."""
    with stream:
        for line in stream:
            match = FORWARDING.match(line)
            if match:
                ports.put(int(match[1]))
    ports.put(None)


def _read_errors(stream: IO[str], errors: collections.deque[str]) -> None:
    """Keep errors for messages; print everything else, such as the address of a login page."""
    with stream:
        for line in stream:
            if ERROR.match(line):
                errors.append(line.strip())
            else:
                sys.stderr.write(line)
                sys.stderr.flush()
