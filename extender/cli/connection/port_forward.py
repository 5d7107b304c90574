"""A local port that leads to the service in a cluster, through `kubectl port-forward`."""

from __future__ import annotations

import collections
import queue
import re
import subprocess
import sys
import threading
from typing import IO

import msgspec

from extender.cli.connection.kubectl import PLAIN_PORT, Kubectl, ServiceTarget
from extender.core.model.errors import BadInput

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
                self._target = msgspec.structs.replace(self._target, port=PLAIN_PORT, tls=False)
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
        """Start kubectl and wait until it listens.

        Raises:
            BadInput: It does not.
        """
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
