"""docker-compose.yml under podman-compose: built, brought up, looked at, taken down.

Owns the commands. The surprise: the conditions of `depends_on` are met from here, service by service,
as docker compose does it. podman before 4.6 does not wait for `service_healthy`, runs health checks
only where systemd is, and starts a one-shot that has ended again for each that depends on it.
"""

from __future__ import annotations

import ast
import json
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

from deploy.compose.generate import CERTIFICATES as CERTIFICATES_OF_THE_EXTENDER
from tests.compose.engine import CommandError, Engine
from tests.compose.images import COMPOSE_FILE, ROOT
from tests.compose.shipped_file import replaced
from tests.support import waiting

# What containers compute is not seen from here, so that a wait counts all time.
PATIENCE_S = 300.0
POLL_S = 0.5
PORT = "18443"  # not the default of the file, so that its variable is used
KEPT = ("uid", "state", "reserved", "bound", "observed", "groups", "members")  # of a gang
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


class StoryError(Exception):
    """A check failed; the message names it."""


def until(what: str, look: Callable[[], object]) -> None:
    """Wait until something is so.

    Raises:
        StoryError: It did not come true.
    """
    why = ""

    def holds() -> bool:
        nonlocal why
        try:
            return bool(look())
        except (OSError, ValueError, CommandError) as problem:
            why = str(problem)
            return False

    try:
        waiting.until(holds, what, every_s=POLL_S, state=lambda: why, patience_s=PATIENCE_S)
    except waiting.WaitedInVain as error:
        raise StoryError(str(error)) from error


class Project:
    """The services of the shipped file."""

    def __init__(self, engine: Engine) -> None:
        """Read the file; nothing is run."""
        self.engine = engine
        self.document = yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))
        (published,) = (
            port
            for service in self.document["services"].values()
            for port in service.get("ports", [])
        )
        engine.environment["PAGE_PORT"] = PORT
        self.address, port, _ = replaced(published, engine.environment).split(":")
        self.port = int(port)
        self._context: ssl.SSLContext | None = None

    def compose(self, *arguments: str, options: tuple[str, ...] = ()) -> None:
        """Run podman-compose on the shipped file; its output goes where ours goes.

        Raises:
            CommandError: It failed.
        """
        program = [sys.executable, "-m", "podman_compose", "--file", str(COMPOSE_FILE)]
        self.engine.show([*program, *options, *arguments], folder=ROOT)

    def build(self) -> None:
        """Build our image from deploy/Dockerfile, with this machine's configuration of pip."""
        with pip_mounts(self.engine.folder) as mounts:
            words = [
                "--pull=never",
                "--network=host",
                *(f"--volume={mount}:ro" for mount in mounts),
            ]
            self.compose("build", "extender", options=(f"--podman-build-args={' '.join(words)}",))

    def up(self) -> None:
        """Start the services one after the other, each when what it depends on is as it asks.

        Raises:
            StoryError: A condition of `depends_on` was never met.
        """
        services = self.document["services"]
        graph = {name: set(service.get("depends_on", {})) for name, service in services.items()}
        for name in TopologicalSorter(graph).static_order():
            for other, how in services[name].get("depends_on", {}).items():
                look = self._met(other, how["condition"])
                until(f"{name} needs {other}: {how['condition']}", look)
            self.compose("up", "--detach", "--no-build", "--no-deps", name)

    def _met(self, service: str, condition: str) -> Callable[[], bool]:
        conditions = {
            "service_started": lambda: self.state(service)["Status"] == "running",
            "service_healthy": lambda: self.healthy(service),
            "service_completed_successfully": lambda: self.completed(service),
        }
        return conditions[condition]

    def completed(self, service: str) -> bool:
        """Return whether a service has ended well.

        Raises:
            StoryError: It has ended with another exit code than 0.
        """
        code = self.exit_code(service)
        if code:
            raise StoryError(f"{service} has ended with exit code {code}")
        return code == 0

    def healthy(self, service: str) -> bool:
        """Run a service's health check and return whether it passes.

        Raises:
            StoryError: The service has ended.
        """
        if (code := self.exit_code(service)) is not None:
            raise StoryError(f"{service} has ended with exit code {code}")
        return self.engine.succeeds("healthcheck", "run", self.container(service))

    def container(self, service: str) -> str:
        """Return the id of a service's container.

        Raises:
            CommandError: It has none.
        """
        label = f"label=com.docker.compose.service={service}"
        found = self.engine.podman("ps", "--all", "--no-trunc", "--quiet", "--filter", label)
        if not found:
            raise CommandError(f"no container of service {service}")
        return found.splitlines()[0]

    def state(self, service: str) -> dict[str, Any]:
        """Return the state of a service's container, as podman inspects it."""
        container = self.engine.podman("container", "inspect", self.container(service))
        state: dict[str, Any] = json.loads(container)[0]["State"]
        return state

    def exit_code(self, service: str) -> int | None:
        """Return the exit code of a service's container; None while it has not ended."""
        state = self.state(service)
        return int(state["ExitCode"]) if state["Status"] in {"exited", "stopped"} else None

    def logs(self, service: str, *, lines: int = 40) -> str:
        """Return the last lines that a service printed."""
        done = subprocess.run(
            ["podman", "logs", f"--tail={lines}", self.container(service)],
            env=self.engine.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def get(self, path: str) -> str:
        """Read a path of the extender through the published port.

        Raises:
            OSError: No answer, or an error (HTTPError).
        """
        url = f"https://{self.address}:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=600, context=self._tls()) as response:
            text: str = response.read().decode()
            return text

    def _tls(self) -> ssl.SSLContext:
        """Return a context that trusts the CA of the project, and nothing else."""
        if self._context is None:
            file = f"{CERTIFICATES_OF_THE_EXTENDER}/ca.crt"
            text = self.engine.podman("exec", self.container("extender"), "cat", file)
            self._context = ssl.create_default_context(cadata=text)
        return self._context

    def gangs(self) -> dict[str, Any]:
        """Return every gang as it is now: state, groups with their domains, and each member with node and state.

        The last answer of the planner is left out: it may change while nothing else does.
        """
        names = [line["gang"] for line in json.loads(self.get("/v1/gangs"))]
        found = {name: json.loads(self.get(f"/v1/gangs/{name}")) for name in names}
        return {name: {key: gang[key] for key in KEPT} for name, gang in found.items()}

    def down(self) -> None:
        """Take everything down, with the volumes."""
        self.compose("down", "--volumes")


@contextmanager
def pip_mounts(folder: Path) -> Iterator[list[str]]:
    """Return what a build must see so that pip in it is configured as on this machine.

    The configuration is a mounted file: nothing of it is kept in an image.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    values: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in {"global", "install", ":env:"}:  # in this order: later ones win
            values[key] = ast.literal_eval(value)
    paths = {
        word for value in values.values() for word in value.split() if Path(word).is_absolute()
    }
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".conf") as file:
        lines = [key + " = " + "\n  ".join(value.splitlines()) for key, value in values.items()]
        file.write("\n".join(["[global]", *lines, ""]))
        file.flush()
        seen = sorted(path for path in paths | {str(CERTIFICATES)} if Path(path).exists())
        yield [f"{file.name}:/etc/pip.conf", *(f"{path}:{path}" for path in seen)]
